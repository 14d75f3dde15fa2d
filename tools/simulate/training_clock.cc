#include "tools/simulate/training_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/core/check.h"
#include "runtime/hazard/save_interval.h"

namespace holdfast::launch::fleet {
namespace {

constexpr double clock_second_us = 1e6;
constexpr double never = std::numeric_limits<double>::infinity();
constexpr std::size_t disk_states_kept = 3;  // checkpoint.keep

double waves(int lanes, int copies) {
  return static_cast<double>((lanes + copies - 1) / copies);
}

}  // namespace

TrainingClock::TrainingClock(const Cluster& cluster)
    : step_us_(cluster.step * clock_second_us),
      snapshot_us_(cluster.snapshot * clock_second_us),
      confirmed_us_(cluster.snapshot_confirmed * clock_second_us),
      save_us_(cluster.save * clock_second_us),
      durable_us_(cluster.save_durable * clock_second_us),
      ram_asked_(cluster.ram_every_steps),
      disk_asked_(cluster.every_steps),
      copies_wanted_(static_cast<int>(cluster.data)),
      lanes_(cluster.lanes_or_data()),
      prior_(cautious(
          run_prior({.device_mtbf_hours = cluster.mtbf_hours}, cluster.device, cluster.ranks_wanted()))) {
  choose_intervals();
}

void TrainingClock::spend(std::int64_t to_us, SpanUse use) {
  HF_CHECK(to_us >= now_us_);
  of(use) += to_us - now_us_;
  now_us_ = to_us;
}

void TrainingClock::set_pace(int copies, double slow) {
  narrow_ = waves(lanes_, copies) / waves(lanes_, copies_wanted_);
  slow_ = slow;
}

std::int64_t TrainingClock::step_end_us() const {
  const double left = std::floor(position_) + 1.0 - position_;
  return now_us_ + saving_left_us_ + std::max<std::int64_t>(1, std::llround(left * step_wall_us()));
}

std::int64_t TrainingClock::done_us(double steps) const {
  const double left = std::max(steps - position_, 0.0);
  return now_us_ + saving_left_us_ + static_cast<std::int64_t>(std::ceil(left * step_wall_us()));
}

// Counts so much time of steps: what a healthy run of all copies takes for them is training.
void TrainingClock::train_steps(std::int64_t lasts_us) {
  const auto wall = static_cast<double>(lasts_us);
  const std::int64_t without_slow = slow_ > 1.0 ? std::llround(wall / slow_) : lasts_us;
  const std::int64_t training = narrow_ > 1.0 ? std::llround(wall / slow_ / narrow_) : without_slow;
  of(SpanUse::training) += training;
  narrower_us_ += without_slow - training;
  of(SpanUse::straggling) += lasts_us - without_slow;
  now_us_ += lasts_us;
}

void TrainingClock::train(std::int64_t to_us) {
  while (now_us_ < to_us) {
    if (saving_left_us_ > 0) {
      const std::int64_t lasts_us = std::min(saving_left_us_, to_us - now_us_);
      saving_left_us_ -= lasts_us;
      spend(now_us_ + lasts_us, SpanUse::saving);
      continue;
    }
    const double wall_us = (due_position() - position_) * step_wall_us();
    const bool reaches = wall_us <= static_cast<double>(to_us - now_us_);
    const std::int64_t lasts_us =
        reaches ? std::max<std::int64_t>(std::llround(wall_us), 0) : to_us - now_us_;
    train_steps(std::min(lasts_us, to_us - now_us_));
    position_ = reaches ? due_position() : position_ + static_cast<double>(lasts_us) / step_wall_us();
    if (reaches) begin_due_saves();
  }
}

TrainingClock::Mark TrainingClock::mark(std::int64_t counts_us) const {
  const auto time = [&](SpanUse use) { return times_us_[static_cast<std::size_t>(use)]; };
  return {.position = position_,
          .training_us = time(SpanUse::training),
          .straggling_us = time(SpanUse::straggling),
          .narrower_us = narrower_us_,
          .counts_us = counts_us,
          .epoch = epoch_};
}

// No save is begun before the one before it counts.
void TrainingClock::begin_due_saves() {
  settle();
  if (position_ >= next_ram_) {
    next_ram_ = position_ + 1.0;
    if (!coming_ram_.has_value()) {
      coming_ram_ = mark(now_us_ + std::llround(confirmed_us_));
      saving_left_us_ += std::llround(snapshot_us_);
      next_ram_ = position_ + static_cast<double>(ram_steps_);
    }
  }
  if (position_ >= next_disk_) {
    next_disk_ = position_ + 1.0;
    const bool is_free = disk_.empty() || disk_.back().counts_us <= now_us_;
    if (storage_until_us_ > now_us_) {
      next_disk_ =
          position_ +
          std::max(1.0, std::ceil(static_cast<double>(storage_until_us_ - now_us_) / step_wall_us()));
    } else if (is_free) {
      disk_.push_back(mark(now_us_ + std::llround(durable_us_)));
      if (disk_.size() > disk_states_kept + 1) disk_.pop_front();
      saving_left_us_ += std::llround(save_us_);
      choose_intervals();
      next_disk_ = position_ + static_cast<double>(disk_steps_);
    }
  }
}

void TrainingClock::begin_start() {
  constexpr double trial_steps =
      14.0;  // of SaveCadence: two slow ones, two measured ones, and snapshots before the disk
  if (!(std::abs(disk_asked_) > 0.0)) next_disk_ = std::min(next_disk_, std::floor(position_) + trial_steps);
}

void TrainingClock::settle() {
  if (coming_ram_.has_value() && coming_ram_->counts_us <= now_us_)
    ram_ = std::exchange(coming_ram_, std::nullopt);
}

void TrainingClock::interrupt() {
  settle();
  coming_ram_.reset();
  while (!disk_.empty() && disk_.back().counts_us > now_us_) disk_.pop_back();
}

void TrainingClock::seal() {
  ram_ = mark(now_us_);
  coming_ram_.reset();
}

void TrainingClock::forget_ram() {
  ram_.reset();
  coming_ram_.reset();
}

void TrainingClock::restore(const Mark& state) {
  const std::int64_t lost_us = of(SpanUse::training) - state.training_us + of(SpanUse::straggling) -
                               state.straggling_us + narrower_us_ - state.narrower_us;
  of(SpanUse::lost) += lost_us;
  of(SpanUse::training) = state.training_us;
  of(SpanUse::straggling) = state.straggling_us;
  narrower_us_ = state.narrower_us;
  position_ = state.position;
  saving_left_us_ = 0;
  coming_ram_.reset();
  next_ram_ = ram_asked_ < 0.0 ? never : position_ + static_cast<double>(ram_steps_);
  next_disk_ = disk_asked_ < 0.0 ? never : position_ + static_cast<double>(disk_steps_);
}

void TrainingClock::go_back_to_ram() {
  HF_CHECK(ram_.has_value());
  const Mark state = *ram_;
  restore(state);
}

TrainingClock::Mark TrainingClock::newest_on_disk() const {
  for (auto state = disk_.rbegin(); state != disk_.rend(); ++state) {
    if (state->counts_us <= now_us_) return *state;
  }
  return {};
}

void TrainingClock::go_back_to_disk() {
  go_back_to(newest_on_disk());
}

// A run that has gone back behind the state for another reason does not go forward to it.
void TrainingClock::go_back_to(const Mark& wanted) {
  const Mark state = wanted.position > position_ ? newest_on_disk() : wanted;
  disk_.assign(1, state);
  forget_ram();
  restore(state);
}

void TrainingClock::note_failure() {
  ++failures_;
  choose_intervals();
}

void TrainingClock::choose_intervals() {
  const double running_s = static_cast<double>(now_us_) / clock_second_us;
  const double mtbf_s = expected_mtbf_seconds(prior_, {.failures = failures_, .running_seconds = running_s});
  const SaveTimes ram{.step_seconds = step_us_ / clock_second_us,
                      .cost_seconds = snapshot_us_ / clock_second_us,
                      .durable_seconds = confirmed_us_ / clock_second_us};
  const SaveTimes disk{.step_seconds = step_us_ / clock_second_us,
                       .cost_seconds = save_us_ / clock_second_us,
                       .durable_seconds = durable_us_ / clock_second_us};
  ram_steps_ =
      ram_asked_ > 0.0 ? static_cast<std::int64_t>(ram_asked_) : steps_between_snapshots(ram, mtbf_s);
  disk_steps_ =
      disk_asked_ > 0.0 ? static_cast<std::int64_t>(disk_asked_) : steps_between_saves(disk, mtbf_s);
  if (now_us_ > 0) return;
  next_ram_ = ram_asked_ < 0.0 ? never : static_cast<double>(ram_steps_);
  next_disk_ = disk_asked_ < 0.0 ? never : static_cast<double>(disk_steps_);
}

double TrainingClock::most_lost_ms() const {
  const double steps = static_cast<double>(disk_asked_ < 0.0 ? ram_steps_ : disk_steps_);
  return std::min(steps * step_us_, 1e15) / 1e3;
}

}  // namespace holdfast::launch::fleet
