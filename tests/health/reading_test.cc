#include "runtime/health/reading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

class RecordingTest : public testing::Test {
 protected:
  Result<HealthRecording> read(const std::string& text) {
    const std::string path = folder_.path() + "/recording";
    EXPECT_TRUE(posix_env().replace_text(path, text).ok());
    return read_recording(posix_env(), path);
  }
  std::string error_of(const std::string& text) {
    const Result<HealthRecording> recording = read(text);
    return recording.ok() ? std::string("none") : recording.error().message;
  }

  TemporaryDirectory folder_;
  const std::string header_ = line_of(HealthRecording::Header{.host = "node1", .label = "healthy"}) + "\n";
};

TEST_F(RecordingTest, IsReadAsItWasWritten) {
  const HealthReading number{
      .time_ms = 5, .source = "nvml", .part = "0000:18:00.0", .name = "temperature_C", .value = 61.5};
  const HealthReading silence{
      .time_ms = 6, .source = "nvml", .part = "0000:18:00.0", .name = "temperature_C"};
  const HealthReading line{.time_ms = 7, .source = "kmsg", .name = "line", .text = "NVRM: \"Xid\" \\ \n"};
  const Result<HealthRecording> read_back =
      read(header_ + line_of(number) + "\n" + line_of(silence) + "\n" + line_of(line) + "\n");
  ASSERT_TRUE(read_back.ok()) << read_back.error().message;
  EXPECT_EQ(read_back->header.host, "node1");
  ASSERT_EQ(read_back->readings.size(), 3U);
  EXPECT_EQ(read_back->readings[0].value, 61.5);
  EXPECT_EQ(read_back->readings[1].value, std::nullopt);
  EXPECT_EQ(read_back->readings[2].text, line.text);
}

TEST_F(RecordingTest, BadOnesGetASentence) {
  const std::string reading =
      line_of(HealthReading{.time_ms = 5, .source = "net", .name = "is_up", .value = 1}) + "\n";
  EXPECT_THAT(error_of(""), HasSubstr("recording:1: the file is empty"));
  EXPECT_THAT(error_of("no JSON\n"), HasSubstr("recording:1: this is no header of a recording"));
  EXPECT_THAT(error_of(reading), HasSubstr("this is no header of a recording"));
  EXPECT_THAT(error_of(header_ + reading + reading.substr(0, 20)),
              HasSubstr("recording:3: the recording was cut short"));
  EXPECT_THAT(error_of(header_ + "{\"time_ms\": \"now\"}\n"), HasSubstr("recording:2: "));
  EXPECT_THAT(error_of(header_ + reading + line_of(HealthReading{.time_ms = 4, .source = "net"}) + "\n"),
              HasSubstr("recording:3: time goes back here"));
  EXPECT_THAT(error_of(line_of(HealthRecording::Header{.holdfast_health = 2}) + "\n"),
              HasSubstr("version 2 of the format"));
  EXPECT_EQ(error_of(header_), "none");
}

}  // namespace
}  // namespace holdfast::test
