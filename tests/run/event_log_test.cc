#include "runtime/run/event_log.h"
#include "runtime/core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <sstream>

#include "runtime/core/random.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

TEST(EventLine, IsOneJsonObject) {
  EventLine line;
  line.begin("step", 123).field("step", 7).field("loss", 2.5).field("tokens", std::uint64_t{1} << 63);
  line.field("host", "a\"b\\c\nd\x01").null_field("nothing");
  const std::string_view text = line.end();
  EXPECT_EQ(text.find('\n'), std::string_view::npos);
  const auto json = Json::parse(text);
  EXPECT_EQ(json["event"], "step");
  EXPECT_EQ(json["time_us"], 123);
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["tokens"].get<std::uint64_t>(), std::uint64_t{1} << 63);
  EXPECT_EQ(json["host"], "a\"b\\c\nd\x01");
  EXPECT_TRUE(json["nothing"].is_null());
}

TEST(EventLine, ObjectsNest) {
  EventLine line;
  line.begin("start", 1).object("kernels").object("add").field("name", "avx2").end_object();
  line.object("copy").end_object().end_object().field("ranks", 2).counts("hosts", {{"a", 2}, {"b", 1}});
  EXPECT_EQ(
      line.end(),
      R"({"event":"start","time_us":1,"kernels":{"add":{"name":"avx2"},"copy":{}},"ranks":2,"hosts":{"a":2,"b":1}})");
}

TEST(EventLine, BeginStartsAFreshLine) {
  EventLine line;
  line.begin("first", 1).field("only_first", 1).end();
  EXPECT_EQ(line.begin("second", 2).end(), R"({"event":"second","time_us":2})");
}

TEST(EventLine, DoublesReadBackToTheSameBits) {
  const RandomStream stream(9, 9);
  std::vector<double> values = {0.0,
                                -0.0,
                                1.0,
                                -3.0,
                                0.1,
                                1e22,
                                1e300,
                                std::numeric_limits<double>::denorm_min(),
                                std::numeric_limits<double>::max(),
                                9007199254740993.0,
                                123456789012345678.0};
  for (std::uint64_t i = 0; i < 2000; ++i) values.push_back(std::bit_cast<double>(stream.bits(i)));
  EventLine line;
  for (const double value : values) {
    const auto json = Json::parse(line.begin("e", 0).field("v", value).end());
    if (!std::isfinite(value)) {
      EXPECT_TRUE(json["v"].is_null());
      continue;
    }
    ASSERT_TRUE(json["v"].is_number_float()) << json.dump();
    ASSERT_EQ(std::bit_cast<std::uint64_t>(json["v"].get<double>()), std::bit_cast<std::uint64_t>(value));
  }
}

TEST(EventLine, BytesThatAreNotUtf8AreReplaced) {
  EventLine line;
  const std::vector<std::string> bad = {"\xff",    "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                        "\xe2\x82"};
  for (const std::string& text : bad) {
    const auto json = Json::parse(line.begin("e", 0).field("text", text).end());
    EXPECT_THAT(json["text"].get<std::string>(), testing::HasSubstr("\xef\xbf\xbd"));
  }
  const std::string good = "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80";
  EXPECT_EQ(Json::parse(line.begin("e", 0).field("text", good).end())["text"], good);
}

TEST(EventLog, AppendsLines) {
  const TemporaryDirectory directory;
  EventLog log(posix_env(), directory / "events.jsonl");
  log.write(EventLine().begin("a", 1));
  log.write(EventLine().begin("b", 2));
  ASSERT_TRUE(log.flush().ok());
  EXPECT_EQ(posix_env().read_text(directory / "events.jsonl").value(),
            "{\"event\":\"a\",\"time_us\":1}\n{\"event\":\"b\",\"time_us\":2}\n");
}

TEST(EventLog, ContinuesAfterATornLineOnALineOfItsOwn) {
  const TemporaryDirectory directory;
  const std::string path = directory / "events.jsonl";
  ASSERT_TRUE(posix_env().replace_text(path, "{\"event\":\"a\"}\n{\"eve").ok());
  for (const char* event : {"x", "y"}) {  // the second finds a whole last line and adds nothing
    EventLog log(posix_env(), path);
    log.write(EventLine().begin("b", 1).field("what", event));
  }
  EXPECT_EQ(posix_env().read_text(path).value(),
            "{\"event\":\"a\"}\n{\"event\":\"b\",\"time_us\":1,\"what\":\"x\"}\n"
            "{\"event\":\"b\",\"time_us\":1,\"what\":\"y\"}\n")
      << "the torn one is the beginning of the next";
  ASSERT_TRUE(posix_env().replace_text(path, "{\"event\":\"a\"}\n{\"event\":\"step").ok());
  EventLog log(posix_env(), path);
  log.write(EventLine().begin("b", 2));
  EXPECT_EQ(posix_env().read_text(path).value(),
            "{\"event\":\"a\"}\n{\"event\":\"step\n{\"event\":\"b\",\"time_us\":2}\n");
}

TEST(EventLog, AFullDiskCostsNoEvent) {
  const TemporaryDirectory directory;
  FaultyEnv env(posix_env());
  EventLog log(env, directory / "events.jsonl");
  env.inject({.operation = Operation::append_line, .for_ever = true, .reason = ENOSPC});
  testing::internal::CaptureStderr();
  for (const char* event : {"a", "b", "c"}) log.write(EventLine().begin(event, 1));
  const Result<void> flushed = log.flush();
  ASSERT_FALSE(flushed.ok());
  EXPECT_EQ(flushed.error().code, ExitCode::checkpoint);
  EXPECT_THAT(flushed.error().message, testing::HasSubstr("the disk is full"));
  env.clear_faults();
  log.write(EventLine().begin("d", 2));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("with 3 lines that waited\n"));
  EXPECT_EQ(posix_env().read_text(directory / "events.jsonl").value(),
            "{\"event\":\"a\",\"time_us\":1}\n{\"event\":\"b\",\"time_us\":1}\n"
            "{\"event\":\"c\",\"time_us\":1}\n{\"event\":\"d\",\"time_us\":2}\n");
}

// More than memory is for: the log says itself how many are missing.
TEST(EventLog, SaysWhatIsMissing) {
  const TemporaryDirectory directory;
  const std::string path = directory / "events.jsonl", padding(1'000'000, 'x');
  FaultyEnv env(posix_env());
  EventLog log(env, path);
  env.inject({.operation = Operation::append_line, .for_ever = true, .reason = ENOSPC});
  testing::internal::CaptureStderr();
  constexpr int count = 100;
  for (int i = 0; i < count; ++i)
    log.write(EventLine().begin("step", 1).field("step", i).field("text", padding));
  env.clear_faults();
  for (const bool with_flush : {true, false}) {
    if (with_flush) {
      EXPECT_TRUE(log.flush().ok());
    } else {
      log.write(EventLine().begin("last", 2));
    }
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("but without [0-9]+ lines before them\n"));
  std::istringstream lines(posix_env().read_text(path).value());
  std::vector<int> steps;
  int missing = 0;
  std::string newest;
  for (std::string line; std::getline(lines, line);) {
    const Json event = Json::parse(line);
    newest = event["event"];
    if (newest == "step") steps.push_back(event["step"]);
    if (newest == "gap") missing += event["lines"].get<int>();
  }
  EXPECT_EQ(newest, "last");
  ASSERT_FALSE(steps.empty());
  EXPECT_GE(std::ssize(steps), 40);
  EXPECT_EQ(missing, count - static_cast<int>(steps.size()));
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], missing + static_cast<int>(i));
}

}  // namespace
}  // namespace holdfast::test
