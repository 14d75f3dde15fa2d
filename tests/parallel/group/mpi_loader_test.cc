#include "parallel/group/mpi_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

TEST(MpiLoader, AMissingLibraryIsASentence) {
  const TemporaryDirectory directory;
  const auto module = load_mpi_module(directory.path());
  ASSERT_FALSE(module.ok());
  EXPECT_EQ(module.error().code, ExitCode::config);
  EXPECT_THAT(module.error().message, HasSubstr("the MPI library could not be loaded: " + directory.path()));
  EXPECT_THAT(module.error().message, HasSubstr("No such file or directory; run tools/bootstrap"));
}

TEST(MpiLoader, AnotherFileInItsPlaceIsASentence) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(posix_env().replace_text(directory / mpi_module_file, std::string(4096, 'x')).ok());
  const auto module = load_mpi_module(directory.path());
  ASSERT_FALSE(module.ok());
  EXPECT_THAT(module.error().message, HasSubstr("invalid ELF header; run tools/bootstrap"));
}

}  // namespace
}  // namespace holdfast::test
