// TrainingClock counts where the time of a simulated run goes: steps, saves, and what is lost when it goes back to a saved
// state. Every microsecond is in exactly one class, those of a run's own report (runtime/run/span_times.h) and one more: what
// steps took longer because fewer copies computed. Pure.
//
// When the run saves is decided by runtime/hazard/save_interval.h, from the failures that it has had (failure_rate.h).
#pragma once

#include <cstdint>
#include <deque>

#include "runtime/hazard/failure_rate.h"
#include "runtime/run/span_times.h"
#include "tools/simulate/cluster.h"

namespace holdfast::launch::fleet {

class TrainingClock {
 public:
  explicit TrainingClock(const Cluster& cluster);

  std::int64_t now_us() const { return now_us_; }
  // Lets time pass in which nothing is trained.
  void spend(std::int64_t to_us, SpanUse use);
  // Trains until then, with the saves that are due.
  void train(std::int64_t to_us);
  // Says how fast steps are from now on: by how many copies, and how many times as slow as healthy ones.
  void set_pace(int copies, double slow);
  // Returns when the step that is under way ends, if nothing happens.
  std::int64_t step_end_us() const;
  // Returns when so many steps are done, if nothing happens and nothing is saved.
  std::int64_t done_us(double steps) const;
  std::int64_t steps() const { return static_cast<std::int64_t>(position_); }
  double step_seconds() const { return step_us_ * narrow_ * slow_ / 1e6; }

  // Begins a start: a run measures what a save costs soon after.
  void begin_start();
  // RAM snapshots carry the number of the epoch that made them.
  void begin_epoch(int epoch) { epoch_ = epoch; }
  bool has_ram() const { return ram_.has_value(); }
  int ram_epoch() const { return ram_.has_value() ? ram_->epoch : -1; }
  // Returns whether a run goes back to the disk even where its state in RAM is whole: a checkpoint is newer, or there is no
  // state in RAM. A snapshot of the same step is as good, and at hand.
  bool is_disk_newer() const { return !ram_.has_value() || newest_on_disk().position > ram_->position; }
  // Makes the present state one in RAM that counts: what a run does that ends as it was asked to.
  void seal();
  // Takes what was begun as done where it is. A fault ends what is not.
  void settle();
  void interrupt();
  // Go back to the newest state in RAM, or on the disk, at its beginning if there is none; what was computed since is lost.
  void go_back_to_ram();
  void go_back_to_disk();
  // Mark is a saved state: what had been trained by then.
  struct Mark {
    double position = 0.0;
    std::int64_t training_us = 0, straggling_us = 0, narrower_us = 0;
    std::int64_t counts_us = 0;  // since when it counts
    int epoch = -1;
  };
  // Returns the newest state on the disk, and goes back to one that was: a run of several copies keeps what it may have to go
  // back to (verdict.on_wrong_rank).
  Mark newest_on_disk() const;
  void go_back_to(const Mark& wanted);
  void forget_ram();

  // Records a failure, and chooses the intervals of saves anew.
  void note_failure();
  void set_storage_until(std::int64_t until_us) { storage_until_us_ = std::max(storage_until_us_, until_us); }
  std::int64_t storage_until_us() const { return storage_until_us_; }
  std::int64_t steps_between_snapshots_now() const { return ram_steps_; }
  std::int64_t steps_between_saves_now() const { return disk_steps_; }
  double most_lost_ms() const;

  const SpanTimes& times_us() const { return times_us_; }
  std::int64_t narrower_us() const { return narrower_us_; }

 private:
  std::int64_t& of(SpanUse use) { return times_us_[static_cast<std::size_t>(use)]; }
  Mark mark(std::int64_t counts_us) const;
  void restore(const Mark& state);
  void train_steps(std::int64_t lasts_us);
  void begin_due_saves();
  void choose_intervals();
  double step_wall_us() const { return step_us_ * narrow_ * slow_; }
  double due_position() const { return std::min(next_ram_, next_disk_); }

  double step_us_, snapshot_us_, confirmed_us_, save_us_, durable_us_;
  double ram_asked_, disk_asked_;  // steps; 0: auto, -1: off
  int copies_wanted_, lanes_;
  RatePrior prior_;
  std::int64_t failures_ = 0;
  std::int64_t now_us_ = 0, saving_left_us_ = 0, storage_until_us_ = 0;
  double position_ = 0.0, narrow_ = 1.0, slow_ = 1.0;
  std::int64_t ram_steps_ = 0, disk_steps_ = 0;
  double next_ram_ = 0.0, next_disk_ = 0.0;  // positions at which saves are due
  int epoch_ = 0;
  std::optional<Mark> ram_, coming_ram_;
  std::deque<Mark> disk_;  // newest last
  SpanTimes times_us_ = {};
  std::int64_t narrower_us_ = 0;
};

}  // namespace holdfast::launch::fleet
