// HardwareRecord: what verdicts have found about the hardware of a run, by device, so that a second
// finding within verdict.findings_window is known as such. It is RUN/hardware.json; every rank has it in memory.
//
//   {"devices":[{"host":"a","machine":"4c4c4544-...","device":"cpu","findings":[{"step":8,"time_us":1790000000000000,"what":"once"}]}]}
//
// The event log is the source of all that people look at (numbers_log.h); this file has what a decision needs,
// at a bounded size. All but the functions that take an Env are pure. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

// Names what was found. A file may have others.
namespace finding_kinds {
inline constexpr std::string_view once = "once";    // computed wrong numbers, and right ones when asked again
inline constexpr std::string_view lasts = "lasts";  // computed wrong numbers again
inline constexpr std::string_view memory = "memory";  // its memory had changed by itself
}  // namespace finding_kinds

struct HardwareFinding {
  std::uint64_t step = 0;    // that was judged
  std::int64_t time_us = 0;  // wall clock of the rank that is to blame, since 1970
  std::string what = {};     // finding_kinds

  bool operator==(const HardwareFinding&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step);
    visit("time_us", self.time_us);
    visit("what", self.what);
  }
};

// HardwarePlace names a device: a GPU by its uuid alone, wherever it is; the processors and memory of a host by the
// name of the host and the machine, because a host name may be given to another machine, as in Kubernetes.
struct HardwarePlace {
  std::string host = {};     // Env::host_name()
  std::string machine = {};  // machine_identity() (runtime/os/machine_facts.h); empty: not known
  std::string device = {};   // hardware_name() (runtime/rank/device_choice.h)
};

// DeviceFindings holds what was found about one device of one host, oldest first.
struct DeviceFindings {
  std::string host = {}, machine = {}, device = {};  // HardwarePlace
  std::vector<HardwareFinding> findings = {};

  bool operator==(const DeviceFindings&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("machine", self.machine);
    visit("device", self.device);
    visit("findings", self.findings);
  }
};

// RecentFindings counts the findings of a device within a window that ends now.
struct RecentFindings {
  std::size_t count = 0;
  std::int64_t since_us = 0;  // time of the oldest of them; 0: there are none
};

struct HardwareRecord {
  static constexpr std::size_t findings_max = 64;    // of a device, the newest
  static constexpr std::size_t devices_max = 1'024;  // those with the newest findings

  std::vector<DeviceFindings> devices = {};  // by host, machine and device, each with at least one finding

  void add(const HardwarePlace& place, const HardwareFinding& finding);
  // Adds what another rank, or the file, knows. What both know counts once.
  void merge(const HardwareRecord& other);
  // Returns the findings that are less than `window_ms` old (0: none), and those that seem to lie in the future,
  // because the clocks of two hosts differ.
  RecentFindings recent(const HardwarePlace& place, std::int64_t now_us, std::int64_t window_ms) const;

  // Returns whether some device of the host computed wrong numbers again and again, by recent findings.
  bool computes_wrong(std::string_view host, std::string_view machine, std::int64_t now_us,
                      std::int64_t window_ms) const;

  // Formats the record as the file has it. Equal records have equal texts.
  std::string text() const;
  // Parses text that may be anything. Errors: ExitCode::data, a clause.
  static Result<HardwareRecord> from_text(std::string_view text);

  bool operator==(const HardwareRecord&) const = default;
  static void visit_fields(auto& self, auto&& visit) { visit("devices", self.devices); }
};

// Returns "2026-11-27 15:40:16 UTC".
std::string time_text(std::int64_t time_us);
// Returns the hosts with recent findings, each with a sentence, for a launcher that is about to use them.
std::map<std::string, std::string> sentences_of_hosts(const HardwareRecord& record, const RunPaths& paths,
                                                      std::int64_t now_us, std::int64_t window_ms);

// HardwareFile is a record as it was read.
struct HardwareFile {
  HardwareRecord record = {};  // empty where there is no file, or a damaged one
  std::string text = {};       // that counts as written; empty where the file has to be written anew
  std::string damage = {};     // sentence; empty: none
};
// Reads RUN/hardware.json. A damaged file is no error: what it said is lost, and the record begins anew.
HardwareFile read_hardware_record(Env& env, const RunPaths& paths);

}  // namespace holdfast::run
