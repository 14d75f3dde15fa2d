// RunSummary: the present state of a run for a shell (`holdfast status`), from the events of its log, its
// status, and what the ranks of this host say on their board. Pure; the command reads and prints.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/numbers_log.h"
#include "runtime/run/run_directory.h"
#include "watchdog/board.h"

namespace holdfast::run {

// HostRows: the hosts of a run that `holdfast launch` does not use, and why, for `holdfast status`. It is
// RUN/launch/hosts.json, written by the launcher whenever it changes; no decision depends on it.
//
//   {"hosts":[{"host":"n2","state":"unfit","reason":"the data file ... is empty","since_us":...,"until_us":...,"failures":1}]}
struct HostRow {
  std::string host = {};
  std::string state = {};  // unfit, suspected, unreachable, drained, condemned
  std::string reason = {};
  std::int64_t since_us = 0;  // wall clock of the launcher's host
  std::int64_t until_us = 0;  // when it may be used again; 0: when it answers, or is asked for
  int failures = 0;           // in a row

  bool operator==(const HostRow&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("state", self.state);
    visit("reason", self.reason);
    visit("since_us", self.since_us);
    visit("until_us", self.until_us);
    visit("failures", self.failures);
  }
};

struct HostRows {
  std::vector<HostRow> hosts = {};
  static void visit_fields(auto& self, auto&& visit) { visit("hosts", self.hosts); }
};

Result<void> write_host_rows(Env& env, const RunPaths& paths, const HostRows& rows);
Result<void> remove_host_rows(Env& env, const RunPaths& paths);
// Returns no rows where there is no file, or one that cannot be read.
HostRows read_host_rows(Env& env, const RunPaths& paths);

struct RunSummary {
  struct SavedStep {
    std::uint64_t step = 0;
    std::int64_t time_us = 0;  // wall clock of rank 0
  };
  struct Step {
    std::uint64_t step = 0;
    double loss = 0;  // not finite: the step has none, as one that was skipped
    double tokens_per_second = 0;
    std::int64_t time_us = 0;
  };
  // Milliseconds of work; none: all of it.
  struct FailureCost {
    std::optional<double> process_ms = {}, host_ms = {}, job_ms = {};
  };
  // Says in words what a rank of this host is at.
  struct Rank {
    int rank = -1;
    std::string does = {};
  };

  std::string directory = {};
  std::string run_id = {};
  RunStatus status = {};
  std::optional<std::string> holder = {};  // none: nobody has the run
  std::string holder_unknown = {};         // a sentence, where it cannot be told
  std::uint64_t steps = 0;                 // of the whole run; 0: not known
  std::uint64_t generation = 0;
  int ranks = 0;
  std::map<std::string, int> hosts = {};  // ranks of each
  std::optional<Step> newest = {};
  std::optional<SavedStep> checkpoint = {}, snapshot = {};
  std::optional<FailureCost> cost = {};
  int starts = 0, recoveries = 0;
  std::uint64_t lost_steps = 0;  // computed again, of all recoveries
  NumbersLog numbers = {};
  std::vector<Rank> here = {};
  std::vector<HostRow> left_out = {};  // hosts that the launcher does not use

  // Takes the next event of the log. What it does not know changes nothing.
  void take(const Json& event);
};

// "step 12 for 0.3 s, waits for rank 1 in all_reduce", of a slot of a board and the monotonic clock of its
// host.
std::string activity_of(const SlotView& slot, std::int64_t now_ns);

// Lines for people; times are told as before `now_us`, of the wall clock.
std::string to_text(const RunSummary& run, std::int64_t now_us);
Json to_json(const RunSummary& run);

}  // namespace holdfast::run
