// SaveCadence: after which steps a run saves, to disk and to shared memory. Every so many steps; or, where
// the config says "auto", as often as pays (save_interval.h), by what saves were measured to cost this run.
//
//   const SaveDue due = cadence.due(step, now_ns);    // before the step's vote, which tells rank 0's to all
//   cadence.stepped({.duration_ns = ..., ...});       // every step
//   cadence.began({.step = ..., ...});                // what was begun
//   cadence.ended(report);                            // of every save to disk
//   if (const auto choice = cadence.take_choice()) tell(*choice);
//
// What a save costs is how much longer the steps beside it take than those beside which nothing is saved,
// with the time that the loop waits for it; medians count, because a machine has other things to do at times.
// With "auto" the state after the first step is saved at once, to shared memory where there is some, else to
// disk, so that a death before an interval is chosen costs a few steps only. Then a few steps are measured,
// and a snapshot and a save are tried. Nothing here allocates after it is built. Threads: one.
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
  // `now_ns`: Env::monotonic_ns(), here and below. checkpoint.every counts from it until something is saved.
  SaveCadence(const CheckpointConfig& config, const FailureHistory& history, std::int64_t now_ns);

  // What is saved after this step, which is yet to be made.
  SaveDue due(std::uint64_t step, std::int64_t now_ns) const;

  struct Step {
    std::int64_t duration_ns = 0;
    bool beside_snapshot = false;  // one was copied or sent to another rank when it began
    bool beside_save = false;      // or a save was on its way to the disk
  };
  void stepped(const Step& step);

  struct Begun {
    std::uint64_t step = 0;
    bool to_disk = false;
    std::int64_t stall_ns = 0;  // that the loop waited for it
    std::int64_t now_ns = 0;
  };
  void began(const Begun& save);
  void ended(const SaveReport& report);
  // Of an interval that was chosen for the first time, or is another by a factor of two or more.
  std::optional<IntervalChoice> take_choice();

 private:
  // One of the two kinds of saves.
  struct Tier {
    std::int64_t every_steps = 0;   // the config's
    std::int64_t chosen_steps = 0;  // 0 = not yet
    std::int64_t told_steps = 0;
    std::uint64_t last_step = 0;  // after which the newest was begun; 0 = none so far
    RecentMedian cost_seconds;
    // Saves whose cost is being measured, the steps beside them, and the time that these took with the waits.
    std::int64_t saves = 0, steps = 0, time_ns = 0, stall_ns = 0;

    bool is_auto() const { return every_steps == CheckpointConfig::interval_auto; }
  };
  bool due(const Tier& tier, std::uint64_t step) const;
  bool protects_first_step(const Tier& tier) const;
  bool disk_due_besides(std::uint64_t step, std::int64_t now_ns) const;
  void close(Tier& tier);
  SaveTimes times_of(const Tier& tier) const;
  double mtbf_seconds() const;

  Tier disk_, ram_;
  double stated_mtbf_seconds_;
  FailureHistory history_;
  std::int64_t every_ns_;             // checkpoint.every
  std::int64_t keep_every_steps_;     // checkpoint.keep_every_steps
  std::int64_t last_save_ns_;         // when the newest save to disk was begun, or the run
  std::int64_t steps_ = 0;            // of this process
  std::int64_t saves_under_way_ = 0;  // to disk
  RecentMedian step_seconds_, durable_seconds_;
};

}  // namespace holdfast
