// Tests what texts of others may be, and how they are shown.
#include "runtime/os/foreign_text.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

TEST(RunId, IsThirtyTwoDigits) {
  EXPECT_TRUE(is_run_id("0123456789abcdef0123456789abcdef"));
  for (const char* text : {"", "x", "0123456789abcdef0123456789abcde", "0123456789abcdef0123456789abcdef0",
                           "0123456789ABCDEF0123456789abcdef", "0123456789abcdef0123456789abcde\n",
                           "0123456789abcdef;reboot #9abcdef"})
    EXPECT_FALSE(is_run_id(text)) << text;
}

TEST(HostName, IsNoOptionAndNothingForAShell) {
  for (const char* name : {"n0", "gpu-1.cluster.example", "10.0.0.1", "[fe80::1%eth0]", "under_score"})
    EXPECT_TRUE(may_be_host_name(name)) << name;
  for (const char* name :
       {"", "-oProxyCommand=x", "a b", "a;b", "$(x)", "`x`", "a/b", "a\nb", "a\"b", "a'b", "user@a"})
    EXPECT_FALSE(may_be_host_name(name)) << name;
}

TEST(Printable, ShowsWhatATerminalWouldObey) {
  const struct {
    std::string text, shown;
  } cases[] = {{"plain\ttext\n", "plain\ttext\n"},
               {"\x1b]0;title\x07", "\\x1b]0;title\\x07"},
               {"a\rb\x7f", "a\\x0db\\x7f"},
               {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
               {"\xc2\x9b"
                "31m",
                "\\xc2\\x9b31m"},  // CSI
               {"\xff\xc3", "\\xff\\xc3"},
               {"\xc0\x8a", "\\xc0\\x8a"},           // a newline in more bytes than need be
               {"\xed\xa0\x80", "\\xed\\xa0\\x80"},  // a surrogate
               {std::string("\0", 1), "\\x00"}};
  for (const auto& each : cases) {
    EXPECT_EQ(printable(each.text), each.shown);
    EXPECT_EQ(printable(each.shown), each.shown);
  }
}

TEST(TextWithin, RefusesWhatIsTooLong) {
  const TemporaryDirectory directory;
  const std::string path = directory / "text";
  ASSERT_TRUE(posix_env().replace_text(path, "12345").ok());
  EXPECT_EQ(read_text_within(posix_env(), path, 5).value(), "12345");
  const Result<std::string> longer = read_text_within(posix_env(), path, 4);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().code, ExitCode::data);
  EXPECT_THAT(longer.error().message, testing::HasSubstr("text has 5 bytes, and such a file has 4 at most"));
  EXPECT_FALSE(read_text_within(posix_env(), directory / "none", 4).ok());
}

// A file may grow between the look at its size and the reading.
TEST(TextWithin, ReadsNoMoreOfAFileThanThat) {
  const TemporaryDirectory directory;
  const std::string path = directory / "text";
  ASSERT_TRUE(posix_env().replace_text(path, std::string(20'000, 'x')).ok());
  EXPECT_EQ(posix_env().read_text_within(path, 20'000).value().size(), 20'000U);
  const Result<std::string> longer = posix_env().read_text_within(path, 19'999);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().code, ExitCode::data);
  EXPECT_EQ(longer.error().message, path + " has more than 19999 bytes");
  EXPECT_EQ(text_within_or_empty(posix_env(), path, 20'000).size(), 20'000U);
  EXPECT_EQ(text_within_or_empty(posix_env(), path, 19'999), "");
}

// A link in the place of a log would have lines added to other files of the run's user.
TEST(Files, BehindALinkGetNoLine) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(posix_env().replace_text(directory / "private", "").ok());
  ASSERT_EQ(::symlink((directory / "private").c_str(), (directory / "events.jsonl").c_str()), 0);
  const Result<void> added = posix_env().append_line(directory / "events.jsonl", "line");
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.error().code, ExitCode::checkpoint);
  EXPECT_THAT(added.error().message, testing::HasSubstr("it is a link, expected a file"));
  EXPECT_EQ(posix_env().read_text(directory / "private").value(), "");
}

// Nobody writes into the pipe, so whoever waited would wait for ever.
TEST(Files, OfAnotherKindAreNotOpened) {
  const TemporaryDirectory directory;
  const std::string pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Result<std::string> text = posix_env().read_text(pipe);
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(text.error().message,
              testing::HasSubstr("it is a pipe, a device or a socket, expected a file"));
  EXPECT_FALSE(posix_env().open(pipe, OpenMode::read).ok());
  EXPECT_EQ(posix_env().read_text("/dev/null").value(), "")
      << "what the user names himself is as he wants it";
}

}  // namespace
}  // namespace holdfast::test
