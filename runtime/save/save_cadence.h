// SaveCadence decides after which steps a run saves, to disk and to shared memory: every so many steps or,
// where the config says "auto", as often as is worthwhile (runtime/hazard/save_interval.h), by the costs measured for saves
// of this run.
//
//   cadence.begin_epoch({...});                       // when ranks begin to train together, and again later
//   const SaveDue due = cadence.due(step, now_ns);    // before the vote of the step, which carries rank 0's
//   cadence.stepped({.duration_ns = ..., ...});       // every step
//   cadence.began({.step = ..., ...});                // what was begun
//   cadence.copied(copy_ns);                          // the copy of what was begun is whole
//   cadence.ended(report, now_ns);                    // of every save to disk
//   if (const auto choice = cadence.take_choice()) tell(*choice);
//   if (const auto cost = cadence.take_failure_cost()) tell(*cost);
//
// The cost of a save is how much longer steps that overlap with it take than the ordinary steps just before, plus the
// time that the loop waits for it. Medians count, because a machine has other things to do at times, and only as far as
// the difference exceeds what steps vary by themselves: where ranks share processors, a thread that does not run for a
// while would else be taken for the price of a snapshot. But a save costs at least the processor time that its copy used,
// and what even its shortest waits took. Where a snapshot is made after every step, one is left out at times, for a step
// to compare with. The first steps of an epoch do not count: memory is touched for the first time
// in them, which has nothing to do with saves. Measurements carry over from one epoch to the next, in
// proportion to the work that a rank then has.
//
// With "auto" the state after the first step of an epoch is saved at once, to shared memory where there is a
// RAM tier, else to disk, so that a death before an interval is chosen costs only a few steps. Then a few
// steps are measured, and a snapshot and a save are tried. Where one save after another fails, the next one is left
// out for a while (UnsavedWork). Nothing here allocates after construction.
// Threads: one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/config/config.h"
#include "runtime/hazard/failure_rate.h"
#include "runtime/hazard/save_interval.h"
#include "runtime/save/save_records.h"

namespace holdfast::save {

// SavePlan says what a config plans for the saves of a run.
struct SavePlan {
  // False: the run saves only at its end, or where it is asked to stop; the state itself is then written, without a
  // copy.
  bool beside_steps = false;
  CheckpointConfig intervals = {};  // a run that may go back has snapshots where it goes back to
};
SavePlan save_plan(const Config& config);  // pure

// CheckpointNumbers says how many checkpoints a run has on its disk at once, at most. Pure.
struct CheckpointNumbers {
  std::int64_t newest = 0;         // checkpoint.keep; a run in parts has two at least (disk_tier.h)
  std::int64_t being_written = 1;  // the oldest goes when the new one is whole
  std::int64_t to_return_to =
      0;                      // the state that a verdict may go back to, and the one that will take its place
  std::int64_t for_good = 0;  // checkpoint.keep_every_steps, by the end
  std::int64_t all() const { return newest + being_written + to_return_to + for_good; }
};
CheckpointNumbers most_checkpoints(const Config& config);

// RecentMedian is the median of the newest few values.
class RecentMedian {
 public:
  void add(double value);
  std::int64_t count() const { return count_; }  // number of all values that were added
  std::int64_t kept_count() const { return std::min(count_, static_cast<std::int64_t>(kept)); }
  double value() const { return quantile(0.5); }  // 0 when there are no values
  double quantile(double share) const;
  double newest_median(std::int64_t values) const;  // of so many, at most
  // Returns the standard deviation of values that are normal but for outliers: from the median of what they differ from
  // their median.
  double spread() const;
  void scale(double factor);  // scales all values that were added

 private:
  static constexpr std::size_t kept = 33;
  std::array<double, kept> values_{};
  std::int64_t count_ = 0;
};

// LongMedian is the median of all values that were added, without keeping them: the mean of the medians of one block after the
// other. So its error shrinks with their number, where that of the newest few stays.
class LongMedian {
 public:
  void add(double value);
  double value() const { return is_long() ? mean_of_blocks_ : newest_.value(); }
  // Number of the values that value() is of. The oldest are forgotten in the end, because machines change.
  std::int64_t counted() const { return is_long() ? blocks_ * block : newest_.kept_count(); }
  void scale(double factor);

 private:
  static constexpr std::int64_t block = 11, blocks_before_long = 3, blocks_max = 256;
  bool is_long() const { return blocks_ >= blocks_before_long; }
  RecentMedian newest_;
  double mean_of_blocks_ = 0.0;
  std::int64_t blocks_ = 0;
};

// IntervalChoice is an interval that was chosen, with the values that it was chosen by.
struct IntervalChoice {
  bool to_disk = false;
  std::int64_t every_steps = 0;
  SaveTimes times;
  double mtbf_seconds = 0.0;  // where the interval follows from failures: for saves to disk always
  RatePrior prior = {};       // that it follows from, with the failures of the run so far
  std::int64_t failures = 0;
  std::int64_t unlimited_steps = 0;  // interval without checkpoint.lose_at_most, where that cut it; else 0
  std::int64_t lose_at_most_ms = 0;
  double most_lost_seconds = 0.0;  // where that is more than checkpoint.lose_at_most; else 0
};
std::string describe(const IntervalChoice& choice);  // for the console

// FailureCost is the most work that is lost, in seconds of training, when a process dies, a host with its
// memory, or all hosts of the job. None: all work since the beginning of the run.
struct FailureCost {
  std::optional<double> process_seconds, host_seconds, job_seconds;
  std::int64_t lose_at_most_ms = 0;  // checkpoint.lose_at_most; 0: nothing is promised
  bool is_news = true;  // for people: a figure has changed by a factor of two since they were told
  // Returns whether more than what is promised is lost: a RAM snapshot counts after about three steps, a checkpoint later.
  bool exceeds_promise() const;
};

class SaveCadence {
 public:
  // Builds the cadence of a run. `now_ns`: Env::monotonic_ns(), here and below. checkpoint.every counts from
  // it until the first save.
  SaveCadence(const CheckpointConfig& config, std::int64_t now_ns);

  struct MembershipEpoch {
    FailureHistory history = {};   // as one of the ranks that train
    int ranks = 1;                 // that train
    RatePrior prior = {};          // of the run on them
    bool has_ram_tier = true;      // snapshots outlive the process
    bool survives_host = false;    // snapshots are also on another host
    double work = 1.0;             // work of this rank in a step, in any unit
    double snapshot_bytes = 1.0;   // bytes of a snapshot of this rank
    std::uint64_t saved_step = 0;  // step of the newest checkpoint that is known of
  };
  // Begins an epoch. Saves that were under way are dropped from the measurements.
  void begin_epoch(const MembershipEpoch& epoch);

  // Returns the saves that are due after this step, which is yet to be made. `growth_waits`: all ranks would
  // pause for a save to disk, so that only saves are due whose steps the config states.
  SaveDue due(std::uint64_t step, std::int64_t now_ns, bool growth_waits = false) const;

  struct Step {
    std::int64_t duration_ns = 0;
    bool beside_snapshot = false;  // a snapshot was being copied or sent to another rank when the step began
    bool beside_save = false;      // a save was on its way to the disk when the step began
  };
  void stepped(const Step& step);

  struct Begun {
    std::uint64_t step = 0;
    bool to_disk = false;
    std::int64_t stall_ns = 0;  // time that the loop waited for it
    std::int64_t now_ns = 0;
  };
  void began(const Begun& save);
  // Adds the time for which the copy of the newest save or snapshot used the processors that train.
  void copied(std::int64_t duration_ns);
  void ended(const SaveReport& report, std::int64_t now_ns);
  void replicated(const ReplicaReport& report);
  // Adds a checkpoint that all steps have waited for.
  void saved(std::uint64_t step, std::int64_t begun_ns) { unsaved_.saved(step, begun_ns); }
  // Returns what is in no checkpoint after this step.
  UnsavedWork::Size unsaved(std::uint64_t step, std::int64_t now_ns) const {
    return unsaved_.size(step, now_ns);
  }
  // Returns an interval that was chosen for the first time, has changed by a factor of two or more, or is the first with which
  // more is lost than checkpoint.lose_at_most.
  std::optional<IntervalChoice> take_choice();
  // Returns the cost of a failure once the intervals are known, and again when a figure grew by a quarter or
  // halved.
  std::optional<FailureCost> take_failure_cost();

 private:
  // Tier is one of the two kinds of saves.
  struct Tier {
    std::int64_t every_steps = 0;   // interval of the config
    std::int64_t chosen_steps = 0;  // 0 = not chosen yet
    std::int64_t reported_steps = 0;
    std::uint64_t last_step = 0;  // step after which the newest save of this epoch was begun; 0 = none so far
    // Medians over saves: how much longer their steps took, the processor time of their copies, the time that the
    // loop waited when they began, and how many steps were beside them.
    RecentMedian longer_seconds, copy_seconds, stall_seconds, steps_beside;
    LongMedian longer_running_seconds;  // longer_seconds without the time that the loop waited
    double cost_seconds = 0.0;          // of a save, by all of them; smoothed
    // Number of saves whose cost is being measured, number of steps that overlap with them, duration of these
    // steps with the waits, these waits, and the processor time of the copies.
    std::int64_t saves = 0, steps = 0, time_ns = 0, stall_ns = 0, copy_ns = 0;
    bool follows_ordinary = false;     // the step just before the saves began was an ordinary one
    std::int64_t unlimited_steps = 0;  // as in IntervalChoice
    double most_lost_seconds = 0.0;    // likewise
    bool said_too_much = false;        // it was reported that more than checkpoint.lose_at_most is lost

    bool is_auto() const { return every_steps == CheckpointConfig::interval_auto; }
    std::int64_t steps_between() const { return is_auto() ? chosen_steps : every_steps; }
    void forget_saves() { saves = steps = time_ns = stall_ns = copy_ns = 0; }
  };
  bool is_due(const Tier& tier, std::uint64_t step) const;
  bool protects_first_step(const Tier& tier) const;
  bool disk_due_exactly(std::uint64_t step) const;
  bool disk_due_from_here(std::uint64_t step, std::int64_t now_ns) const;
  bool is_ordinary(const Step& step) const;
  bool wants_comparison(const Tier& tier) const;
  std::int64_t most_steps_between(const Tier& tier) const;
  void close(Tier& tier);
  void choose(Tier& tier);
  double measured_cost(const Tier& tier) const;
  SaveTimes times_of(const Tier& tier) const;
  double mtbf_seconds() const { return expected_mtbf_seconds(epoch_.prior, history_); }
  // Returns the durations of ordinary steps.
  const RecentMedian& usual_step() const;
  std::optional<double> lost_with_memory() const;
  std::optional<double> lost_with_hosts() const;

  std::int64_t every_ns() const { return config_.every_ms * 1'000'000; }  // checkpoint.every

  CheckpointConfig config_;
  Tier disk_, ram_;
  FailureHistory history_;
  std::int64_t last_save_ns_;         // time at which the newest save to disk, or else the run, was begun
  std::int64_t steps_ = 0;            // steps made in this epoch
  std::int64_t saves_under_way_ = 0;  // number of saves to disk that are under way
  UnsavedWork unsaved_;
  MembershipEpoch epoch_;
  std::int64_t since_ordinary_ = 0;  // steps since the newest ordinary one
  Tier* copying_ = nullptr;          // tier whose copy is under way and is measured
  // Durations of steps that overlap with no save, and of those that overlap only with saves whose interval
  // the config states. Where these saves are so frequent that there are no other steps, the second count as
  // ordinary.
  RecentMedian step_seconds_, step_beside_fixed_seconds_;
  RecentMedian durable_seconds_, replicated_seconds_;
  std::optional<FailureCost> reported_cost_, told_cost_;  // to programs, to people
};

}  // namespace holdfast::save
