// SaveCadence: after which steps a run saves, to disk and to shared memory. Every so many steps; or, where
// the config says "auto", as often as pays (save_interval.h), by what saves were measured to cost this run.
//
//   const SaveDue due = cadence.due(step);            // before the step's vote, which tells rank 0's to all
//   cadence.stepped({.duration_ns = ..., ...});       // every step
//   cadence.began(step, to_disk, stall_ns);           // what was begun
//   cadence.ended(report);                            // of every save to disk
//   if (const auto choice = cadence.take_choice()) tell(*choice);
//
// What a save costs is how much longer the steps beside it take than those beside which nothing is saved,
// with the time that the loop waits for it; medians count, because a machine has other things to do at times.
// With "auto" the first few steps are measured first, then a snapshot and a save are tried. Nothing here
// allocates after it is built. Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/config/config.h"
#include "runtime/train/save_interval.h"
#include "runtime/train/save_records.h"

namespace holdfast {

// The median of the newest few values.
class RecentMedian {
 public:
  void add(double value);
  std::int64_t count() const { return count_; }  // of all that were added
  double value() const;                          // 0 of none

 private:
  static constexpr std::size_t kept = 9;
  std::array<double, kept> values_{};
  std::int64_t count_ = 0;
};

// An interval that was chosen, and why.
struct IntervalChoice {
  bool to_disk = false;
  std::int64_t every_steps = 0;
  SaveTimes times;
  double mtbf_seconds = 0.0;  // of saves to disk
  bool mtbf_stated = false;
};

class SaveCadence {
 public:
  SaveCadence(const CheckpointConfig& config, const FailureHistory& history);

  // After this step, which is yet to be made.
  SaveDue due(std::uint64_t step) const;

  struct Step {
    std::int64_t duration_ns = 0;
    bool beside_snapshot = false;  // one was copied or sent to another rank when it began
    bool beside_save = false;      // or a save was on its way to the disk
  };
  void stepped(const Step& step);
  void began(std::uint64_t step, bool to_disk, std::int64_t stall_ns);
  void ended(const SaveReport& report);
  // Of an interval that was chosen for the first time, or is another by a factor of two or more.
  std::optional<IntervalChoice> take_choice();

 private:
  // One of the two kinds of saves.
  struct Tier {
    std::int64_t every_steps = 0;   // the config's
    std::int64_t chosen_steps = 0;  // 0 = not yet
    std::int64_t told_steps = 0;
    std::uint64_t last_step = 0;  // after which the newest was begun
    RecentMedian cost_seconds;
    // Saves whose cost is being measured, the steps beside them, and the time that these took with the waits.
    std::int64_t saves = 0, steps = 0, time_ns = 0, stall_ns = 0;

    bool is_auto() const { return every_steps == CheckpointConfig::interval_auto; }
  };
  bool due(const Tier& tier, std::uint64_t step) const;
  void close(Tier& tier);
  SaveTimes times_of(const Tier& tier) const;
  double mtbf_seconds() const;

  Tier disk_, ram_;
  double stated_mtbf_seconds_;
  FailureHistory history_;
  std::int64_t steps_ = 0;            // of this process
  std::int64_t saves_under_way_ = 0;  // to disk
  RecentMedian step_seconds_, durable_seconds_;
};

}  // namespace holdfast
