// Health rules: what readings of a host mean, as a table. A rule looks at one kind of reading and says from which value on,
// or from how many in which time, something is wrong, and what a run should do about it. The thresholds are those of the
// tools that fleets of GPUs are run with; each rule names its source.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::health {

// HealthAction is what a finding asks for, from the mildest on.
enum class HealthAction : std::uint8_t {
  ignore,     // nothing: it is recorded
  watch,      // tell people; a run stays
  drain,      // a run leaves the host at its next step, with its state
  leave_out,  // a run leaves it now, and does not come back before somebody has looked at it
  reboot,     // as leave_out; a reboot is expected to mend it
};
std::string_view name_of(HealthAction action);

// HealthTest is how a rule judges the readings of one part of a host.
enum class HealthTest : std::uint8_t {
  at_least,  // a reading is `threshold` or more, and all are for `window_s`
  at_most,   // likewise, or less
  is,        // a reading is `threshold`
  rises,     // a counter grows by `threshold` or more within `window_s`
  accelerates,  // a counter grows `threshold` times as much in `window_s` as in as long a time before, and by 16 at least
  often,  // so many readings within `window_s` are not 0
  flaps,  // a link (1: up) was down for 25 s or longer, and up again, so many times within `window_s`
  falls,  // readings are below `threshold` times what they were at first, for `window_s`
  runs_out,  // readings fall in each quarter of `window_s`, and would come to 0 within `threshold` seconds at that speed
  grows,   // readings rise in each quarter of `window_s`, by `threshold` or more in all
  silent,  // a source that has answered before gives no answer for `window_s`
  line,  // a line of a log has one of the texts of `reading`, separated by |, so many times within `window_s`
  xid,   // a line of the kernel's log is an Xid; the table of Xids has the action
};
std::string_view name_of(HealthTest test);

struct HealthRule {
  std::string_view name;     // "gpu-hot"
  std::string_view source;   // of the readings; "nvml" also means "dcgm", but for its silence
  std::string_view reading;  // their name; for HealthTest::line texts
  HealthTest test;
  double threshold;
  std::string_view unit;    // of the threshold
  std::int64_t window_s;    // 0: one reading is enough
  HealthAction action;      // of HealthTest::xid the worst one: the table of Xids has others
  std::string_view says;    // what is wrong, as a clause
  std::string_view origin;  // where the numbers are from
};

// Returns the table. Names differ.
std::span<const HealthRule> health_rules();

// Returns the table with changes, each "NAME=ACTION" or "NAME=ACTION:THRESHOLD". ExitCode::config with a sentence: there is no such rule or
// action, the rule compares with no threshold or cannot have this one, or two changes are of one rule.
Result<std::vector<HealthRule>> changed_rules(std::span<const std::string> changes);

// An Xid is a report of NVIDIA's driver on an error, by number.
struct Xid {
  int code;
  std::string_view mnemonic;
  std::string_view immediate, investigatory;  // what NVIDIA's catalog says is to be done, at once and later
};
// Returns NVIDIA's catalog (XID-Catalog of 2025-10-29), ascending.
std::span<const Xid> xid_catalog();

// Returns what a run does about an Xid with this line of the kernel's log. `code` may be one that the catalog lacks.
HealthAction action_of_xid(int code, std::string_view line);

// XidLine is what is known from a line of the kernel's log: "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the
// bus."
struct XidLine {
  std::string gpu;  // on the PCI bus: "0000:18:00"
  int code = 0;
};
std::optional<XidLine> parse_xid(std::string_view line);

// Returns docs/health.md.
std::string health_page();

}  // namespace holdfast::health
