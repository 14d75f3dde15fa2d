// RunSummary: the present state of a run for a shell (`holdfast status`), from the events of its log, its
// status, and what the ranks of this host say on their board. Pure; the command reads and prints.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/host_rows.h"
#include "runtime/run/numbers_log.h"
#include "runtime/run/run_directory.h"
#include "watchdog/board.h"

namespace holdfast::run {

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
