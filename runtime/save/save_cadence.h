// SaveCadence: decides after which steps a run saves, to disk and to shared memory: every so many steps or,
// where the config says "auto", as often as pays (save_interval.h), by what saves were measured to cost this
// run.
//
//   cadence.begin_epoch({...});                       // when ranks begin to train together, and again later
//   const SaveDue due = cadence.due(step, now_ns);    // before the step's vote, which tells rank 0's to all
//   cadence.stepped({.duration_ns = ..., ...});       // every step
//   cadence.began({.step = ..., ...});                // what was begun
//   cadence.copied(copy_ns);                          // the copy of what was begun is whole
//   cadence.ended(report);                            // of every save to disk
//   if (const auto choice = cadence.take_choice()) tell(*choice);
//   if (const auto cost = cadence.take_failure_cost()) tell(*cost);
//
// What a save costs is how much longer the steps beside it take than those beside which nothing is saved,
// with the time that the loop waits for it, but never less than the processors took for the copy; medians
// count, because a machine has other things to do at times. The first steps of an epoch do not count: memory
// is touched for the first time in them, which has nothing to do with saves. What was measured stays from one
// epoch to the next, in proportion to the work that a rank then has.
//
// With "auto" the state after the first step of an epoch is saved at once, to shared memory where there is
// some, else to disk, so that a death before an interval is chosen costs a few steps only. Then a few steps
// are measured, and a snapshot and a save are tried. Nothing here allocates after it is built. Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/config/config.h"
#include "runtime/run/save_interval.h"
#include "runtime/save/save_records.h"

namespace holdfast::inline save {

// Median of the newest few values.
class RecentMedian {
 public:
  void add(double value);
  std::int64_t count() const { return count_; }  // of all that were added
  double value() const;                          // 0 of none
  void scale(double factor);                     // as if all that were added had been so much larger

 private:
  static constexpr std::size_t kept = 9;
  std::array<double, kept> values_{};
  std::int64_t count_ = 0;
};

// Interval that was chosen, and why.
struct IntervalChoice {
  bool to_disk = false;
  std::int64_t every_steps = 0;
  SaveTimes times;
  double mtbf_seconds = 0.0;  // of saves to disk
  bool mtbf_stated = false;
};

// Work that is lost at most, in seconds of training, when a process dies, a host with its memory, or all
// hosts of the job; none: all of it, back to where the run began.
struct FailureCost {
  std::optional<double> process_seconds, host_seconds, job_seconds;
};

class SaveCadence {
 public:
  // `now_ns`: Env::monotonic_ns(), here and below. checkpoint.every counts from it until something is saved.
  SaveCadence(const CheckpointConfig& config, std::int64_t now_ns);

  struct MembershipEpoch {
    FailureHistory history = {};
    bool has_ram_tier = true;     // snapshots outlive the process
    bool survives_host = false;   // and are on another host, too
    double work = 1.0;            // of this rank in a step, in any unit
    double snapshot_bytes = 1.0;  // of this rank
  };
  // Gives up what was under way, which then counts for nothing.
  void begin_epoch(const MembershipEpoch& epoch);

  // Returns what is saved after this step, which is yet to be made. `growth_waits`: all would pause for
  // a save to disk, so that only those are due whose steps the config gives.
  SaveDue due(std::uint64_t step, std::int64_t now_ns, bool growth_waits = false) const;

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
  // Takes the time for which the copy of what was begun last had the processors that train.
  void copied(std::int64_t duration_ns);
  void ended(const SaveReport& report);
  void replicated(const ReplicaReport& report);
  // Returns an interval that was chosen for the first time, or is another by a factor of two or more.
  std::optional<IntervalChoice> take_choice();
  // Returns what a failure costs once the intervals are known, and again when a figure grew by a quarter or
  // halved.
  std::optional<FailureCost> take_failure_cost();

 private:
  // One of the two kinds of saves.
  struct Tier {
    std::int64_t every_steps = 0;   // the config's
    std::int64_t chosen_steps = 0;  // 0 = not yet
    std::int64_t told_steps = 0;
    std::uint64_t last_step = 0;  // after which the newest of this epoch was begun; 0 = none so far
    RecentMedian cost_seconds;
    // Saves whose cost is being measured, the steps beside them, the time that these took with the waits, and
    // the part of it that is known to be the saves'.
    std::int64_t saves = 0, steps = 0, time_ns = 0, own_ns = 0;

    bool is_auto() const { return every_steps == CheckpointConfig::interval_auto; }
    std::int64_t steps_between() const { return is_auto() ? chosen_steps : every_steps; }
  };
  bool due(const Tier& tier, std::uint64_t step) const;
  bool protects_first_step(const Tier& tier) const;
  bool disk_due_exactly(std::uint64_t step) const;
  bool disk_due_from_here(std::uint64_t step, std::int64_t now_ns) const;
  void close(Tier& tier);
  void choose(Tier& tier);
  SaveTimes times_of(const Tier& tier) const;
  double mtbf_seconds() const;
  // Returns the durations of usual steps.
  const RecentMedian& usual_step() const;
  std::optional<double> lost_with_memory() const;
  std::optional<double> lost_with_hosts() const;

  Tier disk_, ram_;
  std::int64_t ram_every_steps_;  // the config's, of epochs that have a RAM tier
  double stated_mtbf_seconds_;
  FailureHistory history_;
  std::int64_t every_ns_;             // checkpoint.every
  std::int64_t keep_every_steps_;     // checkpoint.keep_every_steps
  std::int64_t last_save_ns_;         // when the newest save to disk was begun, or the run
  std::int64_t steps_ = 0;            // of this epoch
  std::int64_t saves_under_way_ = 0;  // to disk
  MembershipEpoch epoch_;
  Tier* copying_ = nullptr;  // whose copy is under way, and is measured
  // Durations of steps beside which nothing is saved, and of those beside saves whose interval the config
  // states. Where these saves are so frequent that there are no other steps, the second are the usual ones.
  RecentMedian step_seconds_, step_beside_fixed_seconds_;
  RecentMedian durable_seconds_, replicated_seconds_;
  std::optional<FailureCost> told_cost_;
};

}  // namespace holdfast::inline save
