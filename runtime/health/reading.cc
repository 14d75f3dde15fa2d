#include "runtime/health/reading.h"

#include <fmt/core.h>

#include <utility>

#include "runtime/core/record.h"

namespace holdfast::health {
namespace {

constexpr std::uint64_t largest_recording_bytes = std::uint64_t{1} << 30;

Error no_recording(const std::string& path, std::size_t line, const std::string& why) {
  return fail(
      ExitCode::data,
      "{}:{}: {}; expected a recording of holdfast health --record, a header and then readings, each a "
      "JSON object on a line of its own",
      path, line, why);
}

}  // namespace

Result<HealthRecording> read_recording(Env& env, const std::string& path) {
  HF_TRY(const std::string text, env.read_text_within(path, largest_recording_bytes));
  HealthRecording recording;
  std::string_view rest = text;
  std::size_t number = 0;
  while (!rest.empty()) {
    ++number;
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    if (end == std::string_view::npos)
      return fail(
          ExitCode::data,
          "{}:{}: the recording was cut short in the middle of a line, after {} readings; remove that "
          "line to use what is before it",
          path, number, recording.readings.size());
    rest.remove_prefix(end + 1);
    if (number == 1) {
      Result<HealthRecording::Header> header = record_from_text<HealthRecording::Header>(line);
      if (!header.ok() || line.find("holdfast_health") == std::string_view::npos)
        return no_recording(path, number, "this is no header of a recording");
      if (header->holdfast_health > HealthRecording::newest_version)
        return fail(
            ExitCode::data,
            "{}: the recording has version {} of the format, and this program reads {} and older ones; "
            "use the program that made it, or a newer one",
            path, header->holdfast_health, HealthRecording::newest_version);
      recording.header = std::move(header).value();
      continue;
    }
    Result<HealthReading> reading = record_from_text<HealthReading>(line);
    if (!reading.ok()) return no_recording(path, number, reading.error().message);
    if (!recording.readings.empty() && reading->time_ms < recording.readings.back().time_ms)
      return no_recording(path, number, "time goes back here");
    recording.readings.push_back(std::move(reading).value());
  }
  if (number == 0) return no_recording(path, 1, "the file is empty");
  return recording;
}

std::string line_of(const HealthRecording::Header& header) {
  return record_to_text(header);
}

std::string line_of(const HealthReading& reading) {
  return record_to_text(reading);
}

}  // namespace holdfast::health
