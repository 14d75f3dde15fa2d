// Checks that a run lost at most what its failure_cost events had promised. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/chaos/chaos_record.h"
#include "tools/chaos/chaos_run.h"

namespace holdfast::chaos {

// Part of the job that was lost; a failure_cost event has a figure for each.
enum class LostPart : std::uint8_t {
  process,  // its host's memory is left, and RAM snapshots in it: one process, or all of them
  host,
  job,  // with the memory of all its hosts
};
std::string_view name_of(LostPart part);

// Reason why no promised figure applies to a loss.
enum class NoPromise : std::uint8_t {
  said_nothing,  // the start had no failure_cost event yet
  all_work,      // the event says that all of the work is lost
  no_disk,       // the disk was full or stood still before
  damaged,       // the newest checkpoint was damaged
};
std::string_view text_of(NoPromise reason);

struct CheckedLoss {
  WorkLoss loss;
  LostPart part = LostPart::process;
  std::optional<NoPromise> no_promise = {};
  double promised_ms = 0.0;  // where there is a promise
  // Returns the largest loss that keeps the promise. A figure is published again when it grows by a quarter
  // and a second.
  double limit_ms() const { return 1.25 * promised_ms + 1e3; }
  bool held() const { return no_promise.has_value() || loss.lost_ms() <= limit_ms(); }
};
// Returns "a lost process cost 4.1 s of work (3 steps again), and 2.5 s were promised".
std::string to_text(const CheckedLoss& checked);

// Returns one for each of run.losses.
std::vector<CheckedLoss> check_losses(const ChaosRun& run);

// Counts the losses of a campaign's runs, and those that kept the promise.
struct CostTally {
  std::int64_t losses = 0;
  std::int64_t promised = 0;              // with a promise
  std::int64_t held = 0;                  // losses that kept their promise
  std::optional<CheckedLoss> worst = {};  // loss nearest to its limit, or furthest beyond it
  std::uint64_t worst_seed = 0;

  void add(const ChaosRun& run);
};
// Returns "the cost promise held in 9 of 9 deaths; worst: ...".
std::string to_text(const CostTally& tally);

}  // namespace holdfast::chaos
