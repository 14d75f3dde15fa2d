// Tests what is known about hosts beyond one run: rates and bits of preflights, taints that expire, and a file that may be anything.
#include "runtime/run/host_book.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/forwarding_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

constexpr std::int64_t minute_us = 60'000'000, now_us = 1'790'000'000'000'000;

// An Env whose state directory is a test's.
class StateEnv : public ForwardingEnv {
 public:
  explicit StateEnv(std::string directory) : ForwardingEnv(posix_env()), directory_(std::move(directory)) {}
  std::string variable(const std::string& name) override {
    return name == "XDG_STATE_HOME" ? directory_ : ForwardingEnv::variable(name);
  }

 private:
  std::string directory_;
};

HostTrial trial(double rate, const char* test = "t1", const char* device = "cpu") {
  return {.time_us = now_us, .device = device, .kind = "cpu", .test = test, .tokens_per_s = rate};
}

TEST(HostBook, TheUsualRateIsTheMedianOfTheNewestTrials) {
  HostBook book;
  EXPECT_FALSE(book.usual_rate("a", "cpu", "cpu", "t1").has_value());
  for (const double rate : {900.0, 100.0, 110.0, 90.0, 105.0, 95.0}) book.add_trial("a", trial(rate));
  book.add_trial("a", trial(5.0, "t2"));
  EXPECT_EQ(book.usual_rate("a", "cpu", "cpu", "t1"), 100.0) << "900 is forgotten";
  EXPECT_EQ(book.usual_rate("a", "cpu", "cpu", "t2"), 5.0);
  EXPECT_FALSE(book.usual_rate("b", "cpu", "cpu", "t1").has_value());
  EXPECT_FALSE(book.usual_rate("a", "cpu", "cpu, matmul amx", "t1").has_value());
}

TEST(HostBook, DoesNotGrowForEver) {
  HostBook book;
  for (int i = 0; i < 200; ++i) {
    const std::string test = fmt::format("t{}", i);
    for (int again = 0; again < 10; ++again) book.add_trial("a", trial(100.0, test.c_str()));
  }
  EXPECT_EQ(book.find("a")->trials.size(), HostBook::devices_max * HostBook::trials_max);
  EXPECT_TRUE(book.usual_rate("a", "cpu", "cpu", "t199").has_value());
  EXPECT_FALSE(book.usual_rate("a", "cpu", "cpu", "t0").has_value());
  for (int i = 0; i < 300; ++i) book.set_bits({.kind = "cpu", .test = fmt::format("t{}", i), .digest = "d"});
  EXPECT_EQ(book.bits.size(), HostBook::bits_max);
  book.set_bits({.kind = "cpu", .test = "t299", .digest = "e"});
  EXPECT_EQ(book.find_bits("cpu", "t299")->digest, "e");
  EXPECT_EQ(book.find_bits("cpu", "t0"), nullptr);
}

TEST(HostBook, TaintsExpire) {
  HostBook book;
  book.entry("n2").taint = HostTaint{.reason = "the fan", .since_us = now_us, .until_us = now_us + minute_us};
  book.entry("n1").taint = HostTaint{.since_us = now_us};
  EXPECT_THAT(book.tainted(now_us),
              ElementsAre(Pair("n1", "host n1 is tainted; holdfast untaint n1 ends that"),
                          Pair("n2", HasSubstr("host n2 is tainted until 2026-"))));
  EXPECT_THAT(book.tainted(now_us).at("n2"), HasSubstr(": the fan; holdfast untaint n2 ends that"));
  EXPECT_THAT(book.tainted(now_us + minute_us), ElementsAre(Pair("n1", testing::_)));
  book.forget_expired(now_us + minute_us);
  EXPECT_EQ(book.hosts.size(), 1U) << "nothing else is known of n2";
}

TEST(HostBook, IsReadAsItWasWritten) {
  const TemporaryDirectory directory;
  StateEnv env(directory.path());
  EXPECT_EQ(read_host_book(env).value(), HostBook{}) << "there is no file yet";
  const auto change = [](HostBook& book) -> Result<void> {
    book.add_trial("b", trial(100.0));
    book.entry("a").taint = HostTaint{.reason = "\x1b[31m fan"};
    book.entry("b").checked_us = now_us;
    book.set_bits({.kind = "cpu", .test = "t1", .digest = "d", .time_us = now_us});
    return {};
  };
  ASSERT_TRUE(change_host_book(env, change).ok());
  HostBook expected;
  ASSERT_TRUE(change(expected).ok());
  EXPECT_EQ(read_host_book(env).value(), expected);
  EXPECT_THAT(expected.tainted(now_us).at("a"), Not(HasSubstr("\x1b")));
  const Result<void> refused =
      change_host_book(env, [](HostBook&) -> Result<void> { return fail(ExitCode::config, "no"); });
  EXPECT_EQ(refused.error().message, "no");
  EXPECT_EQ(read_host_book(env).value(), expected);
}

TEST(HostBook, RefusesWhatItDoesNotKnowAndLeavesIt) {
  const TemporaryDirectory directory;
  StateEnv env(directory.path());
  const std::string path = host_book_path(env).value();
  ASSERT_TRUE(env.make_directories(directory.path() + "/holdfast").ok());
  for (const auto& [text, sentence] : std::map<std::string, std::string>{
           {R"({"version":9,"hosts":[]})", "version 9 of the format, and this program knows version 1 alone"},
           {R"({"version":1,"hosts":[{"host":"-oProxyCommand=x"}]})", "damaged"},
           {R"({"version":1,"hosts":[{"host":"a","trials":[{"tokens_per_s":-1}]}]})", "damaged"},
           {"{", "damaged"}}) {
    ASSERT_TRUE(env.replace_text(path, text).ok());
    const Result<HostBook> book = read_host_book(env);
    ASSERT_FALSE(book.ok()) << text;
    EXPECT_EQ(book.error().code, ExitCode::config);
    EXPECT_THAT(book.error().message, HasSubstr(sentence));
    EXPECT_THAT(book.error().message, HasSubstr(path));
    EXPECT_FALSE(change_host_book(env, [](HostBook&) -> Result<void> { return {}; }).ok());
    EXPECT_EQ(env.read_text(path).value(), text);
  }
}

}  // namespace
}  // namespace holdfast::test
