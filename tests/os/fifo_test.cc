#include "runtime/os/fifo.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/os/env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

TEST(Fifo, IsReadAsItComesAndLeftFull) {
  const TemporaryDirectory directory;
  const std::string path = directory / "pipe";
  Result<std::unique_ptr<Fifo>> fifo = make_posix_fifo(path);
  ASSERT_TRUE(fifo.ok()) << fifo.error().message;
  EXPECT_EQ((*fifo)->read(), "") << "it waits for nobody";
  const int writer = ::open(path.c_str(), O_WRONLY | O_NONBLOCK);
  ASSERT_GE(writer, 0);
  ASSERT_EQ(::write(writer, "one\ntwo\n", 8), 8);
  EXPECT_EQ((*fifo)->read(), "one\ntwo\n");
  ASSERT_TRUE((*fifo)->fill().ok());
  EXPECT_EQ(::write(writer, "three\n", 6), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ((*fifo)->read(), "") << "of what filled it nothing is told";
  ASSERT_EQ(::write(writer, "three\n", 6), 6);
  EXPECT_EQ((*fifo)->read(), "three\n");
  ::close(writer);
  fifo->reset();
  EXPECT_FALSE(posix_env().status(path)->exists);
}

TEST(Fifo, SaysWhereItCannotBe) {
  const TemporaryDirectory directory;
  const Result<std::unique_ptr<Fifo>> fifo = make_posix_fifo(directory / "nowhere/pipe");
  ASSERT_FALSE(fifo.ok());
  EXPECT_EQ(fifo.error().code, ExitCode::config);
  EXPECT_THAT(fifo.error().message, testing::EndsWith("nowhere/pipe: No such file or directory"));
}

}  // namespace
}  // namespace holdfast::test
