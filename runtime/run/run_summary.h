// RunSummary: the present state of a run for a shell (`holdfast status`), from the events of its log, its
// status, and what the ranks of this host say on their board. Pure; the command reads and prints.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/event.h"
#include "runtime/run/incident_log.h"
#include "runtime/run/news.h"
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
    double gradient_norm = no_number, learning_rate = no_number, milliseconds = no_number;
    std::uint64_t tokens = 0;                                         // of the whole run
    std::optional<double> mfu = {}, compute_ms = {}, waited_ms = {};  // StepEvent
  };
  // Milliseconds of work; none: all of it.
  struct FailureCost {
    std::optional<double> process_ms = {}, host_ms = {}, job_ms = {};
  };
  // Says what a rank of this host is at.
  struct Rank {
    int rank = -1;
    std::string does = {};   // in words
    std::string phase = {};  // the same in numbers
    std::uint64_t step = 0;
    double phase_seconds = 0.0;
    std::optional<double> waits_seconds = {}, storage_seconds = {};
    int waits_for = -1;  // a rank; -1: all others
    std::string waits_in = {};
  };
  // RankTime says where a rank spent the time of the newest steps that its file has (runtime/health/rank_times.h), of one step.
  struct RankTime {
    int rank = -1;
    std::string host = {};
    double own_ms = 0.0, waited_ms = 0.0;
  };
  static constexpr std::size_t told_max = 8;      // newest are kept
  static constexpr std::size_t paced_steps = 64;  // that the rate of the steps is measured over

  std::string directory = {};
  std::string own_host = {};  // where this program runs
  std::string run_id = {};
  RunStatus status = {};
  std::optional<std::string> holder = {};  // none: nobody has the run
  std::string holder_unknown = {};         // a sentence, where it cannot be told
  std::string log_unreadable = {};         // a sentence: what the log has said is older than the rest
  std::uint64_t steps = 0;                 // of the whole run; 0: not known
  std::uint64_t generation = 0;
  int ranks = 0;
  std::map<std::string, int> hosts = {};                        // ranks of each
  std::map<std::string, std::string> armed = {}, unarmed = {};  // StartEvent, RecoveryEvent
  std::vector<EventSource> sources = {};                        // StartEvent
  std::vector<std::uint64_t> source_samples = {};               // of the newest step
  std::optional<Step> newest = {};
  std::optional<SavedStep> checkpoint = {}, snapshot = {};
  std::optional<FailureCost> cost = {};
  int starts = 0, recoveries = 0;
  IncidentReader incidents{
      /*keeps_spans=*/false};  // where the time went, and the steps that were computed again
  NumbersLog numbers = {};
  std::deque<News> told = {};    // the oldest first
  std::deque<Step> recent = {};  // steps in a row, without a fault or a start between them
  std::int64_t first_step_us = 0;
  std::vector<double> early_ms = {};  // steps of the first hour
  std::vector<Rank> here = {};
  std::vector<RankTime> times = {};              // of all ranks; empty: not known
  std::optional<std::uint64_t> free_bytes = {};  // of the file system of the run directory
  std::vector<HostRow> left_out = {};            // hosts that the launcher does not use
  KernelFaults kernel_faults = {};               // kernels of plug-ins that have failed (kernel_faults.h)

  // Takes the next event of the log. What it does not know changes nothing.
  void take(const Json& event);
  // Returns the wall time of a step, with what is between steps, as it is now.
  std::optional<double> step_seconds() const;
  // Returns the median time of the steps of the first hour.
  std::optional<double> early_step_seconds() const;
  // Returns how long the steps take that the newest checkpoint does not have; none: there is no checkpoint, or no rate.
  std::optional<double> exposed_seconds() const;
  // Returns the time until the last step is made, if nothing happens; only of a run that is held.
  std::optional<double> seconds_left() const;
};

// "step 12 for 0.3 s, waits for rank 1 in all_reduce", of a slot of a board and the monotonic clock of its
// host.
std::string activity_of(const SlotView& slot, std::int64_t now_ns);
RunSummary::Rank rank_of(const SlotView& slot, std::int64_t now_ns);

// "goodput 93.1 %: training 12m, saving 3 s"
std::string time_sentence(const SpanTimes& times_us);
std::string left_text(double seconds);  // "4.2 s", "1h12m3s"

// Lines for people; times are told as before `now_us`, of the wall clock.
std::string to_text(const RunSummary& run, std::int64_t now_us);
Json to_json(const RunSummary& run);

}  // namespace holdfast::run
