// Where nobody else can put settings.
#include "runtime/core/home_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temporary_directory.h"

namespace holdfast {
namespace {

TEST(PrivateDirectory, IsOnlyOfThisUser) {
  const TemporaryDirectory directory;
  const std::string path = directory / "home";
  ASSERT_TRUE(make_private_directory(path).ok());
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  EXPECT_TRUE(make_private_directory(path).ok()) << "it is there already";
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  EXPECT_FALSE(make_private_directory(path).ok());
  ASSERT_EQ(::chmod(path.c_str(), 0700), 0);
  ASSERT_EQ(::symlink(path.c_str(), (directory / "link").c_str()), 0);
  EXPECT_FALSE(make_private_directory(directory / "link").ok());
  EXPECT_FALSE(make_private_directory(directory / "none/home").ok());
}

}  // namespace
}  // namespace holdfast
