#include "runtime/train/save_cadence.h"

#include <algorithm>

namespace holdfast {
namespace {

constexpr std::int64_t slow_first_steps = 2;    // of a process
constexpr std::int64_t steps_before_trial = 2;  // that were measured

double seconds(std::int64_t duration_ns) {
  return static_cast<double>(duration_ns) / 1e9;
}

}  // namespace

void RecentMedian::add(double value) {
  values_[static_cast<std::size_t>(count_) % kept] = value;
  ++count_;
}

double RecentMedian::value() const {
  if (count_ == 0) return 0.0;
  std::array<double, kept> sorted = values_;
  const auto end = sorted.begin() + std::min(count_, static_cast<std::int64_t>(kept));
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return *middle;
}

SaveCadence::SaveCadence(const CheckpointConfig& config, const FailureHistory& history, std::int64_t now_ns)
    : stated_mtbf_seconds_(static_cast<double>(config.mtbf_ms) / 1e3),
      history_(history),
      every_ns_(config.every_ms * 1'000'000),
      keep_every_steps_(config.keep_every_steps),
      last_save_ns_(now_ns) {
  disk_.every_steps = config.every_steps;
  ram_.every_steps = config.ram_every_steps;
}

bool SaveCadence::due(const Tier& tier, std::uint64_t step) const {
  if (!tier.is_auto())
    return tier.every_steps > 0 && step % static_cast<std::uint64_t>(tier.every_steps) == 0;
  if (protects_first_step(tier)) return true;
  if (tier.chosen_steps > 0) return step >= tier.last_step + static_cast<std::uint64_t>(tier.chosen_steps);
  return tier.saves == 0 && step_seconds_.count() >= steps_before_trial;
}

// The cheaper of the two tiers saves what the first step of a process has made: until intervals are chosen
// there would be nothing to go back to but the state that the process began with, and a run that dies once
// in so many steps would never get further. Nothing is measured by it, as the first steps are slow anyway.
bool SaveCadence::protects_first_step(const Tier& tier) const {
  return tier.is_auto() && tier.last_step == 0 && (&tier == &ram_ || ram_.every_steps == 0);
}

// Whether something else than its interval makes a save to disk due.
bool SaveCadence::disk_due_besides(std::uint64_t step, std::int64_t now_ns) const {
  const bool milestone =
      disk_.is_auto() && keep_every_steps_ > 0 && step % static_cast<std::uint64_t>(keep_every_steps_) == 0;
  const bool by_clock = every_ns_ > 0 && saves_under_way_ == 0 && now_ns - last_save_ns_ >= every_ns_;
  return milestone || by_clock;
}

// A save is tried after a snapshot was: it costs more.
SaveDue SaveCadence::due(std::uint64_t step, std::int64_t now_ns) const {
  SaveDue due;
  due.to_ram = this->due(ram_, step);
  const bool too_early =
      disk_.is_auto() &&
      (saves_under_way_ > 0 || (disk_.chosen_steps == 0 && ram_.is_auto() && ram_.chosen_steps == 0));
  due.to_disk = (!too_early && this->due(disk_, step)) || disk_due_besides(step, now_ns);
  return due;
}

void SaveCadence::stepped(const Step& step) {
  history_.running_seconds += seconds(step.duration_ns);
  if (++steps_ <= slow_first_steps) return;
  if (!step.beside_save && disk_.saves > 0) close(disk_);
  if (!step.beside_snapshot && ram_.saves > 0) close(ram_);
  if (!step.beside_save && !step.beside_snapshot) return step_seconds_.add(seconds(step.duration_ns));
  // A save to disk begins with a copy.
  Tier& tier = step.beside_save ? disk_ : ram_;
  if (tier.saves == 0) return;
  ++tier.steps;
  tier.time_ns += step.duration_ns;
}

void SaveCadence::began(const Begun& save) {
  ram_.last_step = save.step;
  if (save.to_disk) {
    disk_.last_step = save.step;
    last_save_ns_ = save.now_ns;
    ++saves_under_way_;
  }
  if (steps_ < slow_first_steps) return;
  Tier& tier = save.to_disk ? disk_ : ram_;
  if (!save.to_disk && tier.saves > 0) close(tier);
  ++tier.saves;
  tier.time_ns += save.stall_ns;
  tier.stall_ns += save.stall_ns;
}

void SaveCadence::ended(const SaveReport& report) {
  --saves_under_way_;
  if (report.outcome.ok()) durable_seconds_.add(seconds(report.duration_ns));
}

// A snapshot beside which a save was under way all the time cannot be told from it, and is not counted.
void SaveCadence::close(Tier& tier) {
  if (tier.steps > 0 && step_seconds_.count() > 0) {
    const double longer = seconds(tier.time_ns) - static_cast<double>(tier.steps) * step_seconds_.value();
    tier.cost_seconds.add(std::max(longer, seconds(tier.stall_ns)) / static_cast<double>(tier.saves));
    if (tier.is_auto()) {
      const SaveTimes times = times_of(tier);
      tier.chosen_steps =
          &tier == &disk_ ? steps_between_saves(times, mtbf_seconds()) : steps_between_snapshots(times);
    }
  }
  tier.saves = tier.steps = tier.time_ns = tier.stall_ns = 0;
}

SaveTimes SaveCadence::times_of(const Tier& tier) const {
  return {.step_seconds = step_seconds_.value(),
          .cost_seconds = tier.cost_seconds.value(),
          .durable_seconds = &tier == &disk_ ? durable_seconds_.value() : 0.0};
}

double SaveCadence::mtbf_seconds() const {
  return stated_mtbf_seconds_ > 0.0 ? stated_mtbf_seconds_ : measured_mtbf_seconds(history_);
}

std::optional<IntervalChoice> SaveCadence::take_choice() {
  for (Tier* tier : {&ram_, &disk_}) {
    if (tier->chosen_steps == 0) continue;
    const bool alike = tier->told_steps > 0 && tier->chosen_steps < 2 * tier->told_steps &&
                       tier->told_steps < 2 * tier->chosen_steps;
    if (alike) continue;
    tier->told_steps = tier->chosen_steps;
    const bool to_disk = tier == &disk_;
    return IntervalChoice{.to_disk = to_disk,
                          .every_steps = tier->chosen_steps,
                          .times = times_of(*tier),
                          .mtbf_seconds = to_disk ? mtbf_seconds() : 0.0,
                          .mtbf_stated = stated_mtbf_seconds_ > 0.0};
  }
  return std::nullopt;
}

}  // namespace holdfast
