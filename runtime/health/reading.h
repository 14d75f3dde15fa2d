// HealthReading: what one source of a host said at one moment, a number or a line of text. Rules (health_rules.h) judge
// readings and nothing else, so a recording of readings is judged exactly as the host was while it was made.
//
// A recording is a file of lines, each a JSON object: first the header, then readings in the order of their time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::health {

struct HealthReading {
  std::int64_t time_ms = 0;  // since 1970
  std::string source = {};   // "nvml", "kmsg", "net", ...
  std::string part = {};     // which one of several: a GPU on the PCI bus, an interface; empty: the host
  std::string name = {};     // "temperature_C"; the unit is its end
  std::optional<double> value = {};      // none: the source was asked, and did not answer; or there is a text
  std::optional<std::string> text = {};  // a line of a log

  static void visit_fields(auto& self, auto&& visit) {
    visit("time_ms", self.time_ms);
    visit("source", self.source);
    visit("part", self.part);
    visit("name", self.name);
    visit("value", self.value);
    visit("text", self.text);
  }
};

struct HealthRecording {
  static constexpr std::int64_t newest_version = 1;
  struct Header {
    std::int64_t holdfast_health = newest_version;  // version of the format
    std::string host = {};
    std::string label = {};        // what happens in it, for people; "healthy" where nothing does
    std::int64_t interval_ms = 0;  // between two looks at the sources
    std::optional<std::int64_t> sick_from_ms =
        {};                                  // time of the first sign that a person sees; none: healthy
    std::vector<std::string> expected = {};  // names of rules of which one shall find it

    static void visit_fields(auto& self, auto&& visit) {
      visit("holdfast_health", self.holdfast_health);
      visit("host", self.host);
      visit("label", self.label);
      visit("interval_ms", self.interval_ms);
      visit("sick_from_ms", self.sick_from_ms);
      visit("expected", self.expected);
    }
  };
  Header header = {};
  std::vector<HealthReading> readings = {};
};

// Reads a recording. Errors: ExitCode::data, with file and line, where the file is no recording, is of a newer
// version, goes back in time, or was cut short.
Result<HealthRecording> read_recording(Env& env, const std::string& path);

// Returns the line of a header or a reading, without its newline.
std::string line_of(const HealthRecording::Header& header);
std::string line_of(const HealthReading& reading);

}  // namespace holdfast::health
