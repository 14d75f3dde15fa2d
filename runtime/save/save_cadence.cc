#include "runtime/save/save_cadence.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "runtime/core/units.h"

namespace holdfast::save {
namespace {

constexpr std::int64_t slow_first_steps = 2;    // first steps of an epoch
constexpr std::int64_t steps_before_trial = 2;  // number of measured steps
constexpr std::int64_t snapshot_trials = 3;     // before an interval is chosen; a save to disk is tried once
constexpr std::int64_t steps_before_comparison = 4;

double seconds(std::int64_t duration_ns) {
  return static_cast<double>(duration_ns) / 1e9;
}

// Returns whether `now` is so close to the reported value `before` that it need not be reported.
bool alike(double before, double now) {
  return before < 2.0 * now && now < 2.0 * before;
}

// Returns whether the reported seconds of work still hold as the most that a failure costs. More by a
// quarter, or less by half, is reported again. Changes below a second are not: with short steps the intervals
// change all the time.
bool holds(const std::optional<double>& reported, const std::optional<double>& now) {
  if (!reported.has_value() || !now.has_value()) return reported.has_value() == now.has_value();
  return (*now <= 1.25 * *reported && *reported < 2.0 * *now) || std::abs(*reported - *now) < 1.0;
}

}  // namespace

SavePlan save_plan(const Config& config) {
  SavePlan plan{.intervals = config.checkpoint};
  const auto comes_before_end = [&](std::int64_t every_steps) {
    return (every_steps == CheckpointConfig::interval_auto && config.training.steps > 1) ||
           (every_steps > 0 && every_steps < config.training.steps);
  };
  plan.beside_steps = config.checkpoint.every_ms > 0 || comes_before_end(config.checkpoint.every_steps) ||
                      comes_before_end(config.checkpoint.ram_every_steps);
  if (config.verdict.asks_for_rollbacks() &&
      plan.intervals.ram_every_steps == CheckpointConfig::interval_auto)
    plan.intervals.ram_every_steps = config.verdict.rollback_steps;
  return plan;
}

CheckpointNumbers most_checkpoints(const Config& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  CheckpointNumbers most{.newest = checkpoint.keep};
  // TrainingSaves::keep_what_is_needed() keeps the same. Lanes may be on several ranks at any later start.
  const VerdictConfig& verdict = config.verdict;
  const bool compares_replicas =
      verdict.audit_every_steps != 0 && config.parallel.lanes > 1 && verdict.on_wrong_rank == "rollback";
  if (verdict.preset == "guard" &&
      (compares_replicas || verdict.asks_for_rollbacks() || verdict.on_nonfinite == "rollback"))
    most.to_return_to = 2;
  if (checkpoint.keep_every_steps > 0) most.for_good = config.training.steps / checkpoint.keep_every_steps;
  return most;
}

void RecentMedian::add(double value) {
  values_[static_cast<std::size_t>(count_) % kept] = value;
  ++count_;
}

double RecentMedian::quantile(double share) const {
  if (count_ == 0) return 0.0;
  std::array<double, kept> sorted = values_;
  const auto end = sorted.begin() + kept_count();
  const auto place = sorted.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(kept_count()));
  std::nth_element(sorted.begin(), place, end);
  return *place;
}

double RecentMedian::newest_median(std::int64_t values) const {
  RecentMedian newest;
  for (std::int64_t i = std::max<std::int64_t>(count_ - std::min(values, kept_count()), 0); i < count_; ++i)
    newest.add(values_[static_cast<std::size_t>(i) % kept]);
  return newest.value();
}

double RecentMedian::spread() const {
  RecentMedian distances = *this;
  const double middle = value();
  for (double& value : distances.values_) value = std::abs(value - middle);
  constexpr double of_normal = 1.4826;  // standard deviation, in medians of distances
  return of_normal * distances.value();
}

void RecentMedian::scale(double factor) {
  for (double& value : values_) value *= factor;
}

void LongMedian::add(double value) {
  newest_.add(value);
  if (newest_.count() % block != 0) return;
  blocks_ = std::min(blocks_ + 1, blocks_max);
  mean_of_blocks_ += (newest_.newest_median(block) - mean_of_blocks_) / static_cast<double>(blocks_);
}

void LongMedian::scale(double factor) {
  newest_.scale(factor);
  mean_of_blocks_ *= factor;
}

SaveCadence::SaveCadence(const CheckpointConfig& config, std::int64_t now_ns)
    : config_(config), last_save_ns_(now_ns), unsaved_(now_ns) {
  disk_.every_steps = config.every_steps;
  ram_.every_steps = config.ram_every_steps;
}

void SaveCadence::begin_epoch(const MembershipEpoch& epoch) {
  step_seconds_.scale(epoch.work / epoch_.work);
  step_beside_fixed_seconds_.scale(epoch.work / epoch_.work);
  const double bytes = epoch.snapshot_bytes / epoch_.snapshot_bytes;
  for (RecentMedian* each :
       {&disk_.longer_seconds, &disk_.copy_seconds, &disk_.stall_seconds, &ram_.longer_seconds,
        &ram_.copy_seconds, &ram_.stall_seconds, &durable_seconds_, &replicated_seconds_})
    each->scale(bytes);
  for (Tier* tier : {&disk_, &ram_}) {
    tier->longer_running_seconds.scale(bytes);
    tier->cost_seconds *= bytes;
  }
  // The time that was counted here is one of the ranks that there were, too.
  const double before_seconds = history_.running_seconds * epoch_.ranks / std::max(epoch.ranks, 1);
  const double running_seconds = std::max(before_seconds, epoch.history.running_seconds);
  epoch_ = epoch;
  history_ = {.failures = std::max(history_.failures, epoch.history.failures),
              .running_seconds = running_seconds};
  ram_.every_steps = epoch.has_ram_tier ? config_.ram_every_steps : 0;
  for (Tier* tier : {&disk_, &ram_}) {
    tier->last_step = 0;
    tier->forget_saves();
    if (tier->chosen_steps > 0) choose(*tier);
  }
  copying_ = nullptr;
  steps_ = saves_under_way_ = since_ordinary_ = 0;
  unsaved_.forget_failures();  // a rank that could not save may have left
  if (epoch.saved_step > 0) unsaved_.saved(epoch.saved_step, 0);
}

bool SaveCadence::is_due(const Tier& tier, std::uint64_t step) const {
  if (!tier.is_auto())
    return tier.every_steps > 0 && step % static_cast<std::uint64_t>(tier.every_steps) == 0;
  if (protects_first_step(tier)) return true;
  if (wants_comparison(tier)) return false;
  if (tier.chosen_steps > 0) return step >= tier.last_step + static_cast<std::uint64_t>(tier.chosen_steps);
  return tier.saves == 0 && usual_step().count() >= steps_before_trial;
}

// Returns whether the tier saves the state after the first step of a process, which the cheaper of the two
// tiers does. Until intervals are chosen there would be nothing to return to but the state that the process
// began with, and a run that dies once in so many steps would never get further. This save is not measured,
// as the first steps are slow anyway.
bool SaveCadence::protects_first_step(const Tier& tier) const {
  return tier.is_auto() && tier.last_step == 0 && (&tier == &ram_ || ram_.every_steps == 0);
}

// Returns whether a snapshot after every step has left no ordinary step for so long that the next one is left out.
bool SaveCadence::wants_comparison(const Tier& tier) const {
  return &tier == &ram_ && tier.is_auto() && tier.chosen_steps == 1 &&
         since_ordinary_ >= steps_before_comparison;
}

std::int64_t SaveCadence::most_steps_between(const Tier& tier) const {
  const bool leaves_out = &tier == &ram_ && tier.is_auto() && tier.chosen_steps == 1;
  return leaves_out ? 2 : tier.steps_between();
}

// Returns whether the duration of this step says what a step takes without saves whose cost is measured.
bool SaveCadence::is_ordinary(const Step& step) const {
  if (!step.beside_save && !step.beside_snapshot) return true;
  const bool beside_fixed =
      !(step.beside_save && disk_.is_auto()) && !(step.beside_snapshot && ram_.is_auto());
  return beside_fixed && &usual_step() == &step_beside_fixed_seconds_;
}

// Returns whether a save to disk is due after exactly this step, by the config.
bool SaveCadence::disk_due_exactly(std::uint64_t step) const {
  if (!disk_.is_auto()) return is_due(disk_, step);
  return config_.keep_every_steps > 0 && step % static_cast<std::uint64_t>(config_.keep_every_steps) == 0;
}

// Returns whether a save to disk is due after this step that could also be made after a later one. A save is
// tried only after a snapshot was, because it costs more.
bool SaveCadence::disk_due_from_here(std::uint64_t step, std::int64_t now_ns) const {
  if (saves_under_way_ > 0) return false;
  if (every_ns() > 0 && now_ns - last_save_ns_ >= every_ns()) return true;
  const bool too_early = disk_.chosen_steps == 0 && ram_.is_auto() && ram_.chosen_steps == 0;
  return disk_.is_auto() && !too_early && is_due(disk_, step);
}

SaveDue SaveCadence::due(std::uint64_t step, std::int64_t now_ns, bool growth_waits) const {
  SaveDue due;
  due.to_ram = is_due(ram_, step);
  due.to_disk = unsaved_.may_try(now_ns) &&
                (disk_due_exactly(step) || (!growth_waits && disk_due_from_here(step, now_ns)));
  return due;
}

void SaveCadence::stepped(const Step& step) {
  history_.running_seconds += seconds(step.duration_ns);
  if (++steps_ <= slow_first_steps) return;
  const bool ordinary = is_ordinary(step);
  if (!step.beside_save && disk_.saves > 0) close(disk_);
  if (!step.beside_snapshot && ram_.saves > 0) close(ram_);
  since_ordinary_ = ordinary ? 0 : since_ordinary_ + 1;
  if (!step.beside_save && !step.beside_snapshot) return step_seconds_.add(seconds(step.duration_ns));
  const bool beside_fixed =
      !(step.beside_save && disk_.is_auto()) && !(step.beside_snapshot && ram_.is_auto());
  if (beside_fixed) step_beside_fixed_seconds_.add(seconds(step.duration_ns));
  // A save to disk begins with a copy, so a step that overlaps with both counts for the disk.
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
  copying_ = nullptr;
  if (steps_ < slow_first_steps) return;
  Tier& tier = save.to_disk ? disk_ : ram_;
  if (!save.to_disk && tier.saves > 0) close(tier);
  if (tier.saves == 0) tier.follows_ordinary = since_ordinary_ == 0;
  copying_ = &tier;
  ++tier.saves;
  tier.time_ns += save.stall_ns;
  tier.stall_ns += save.stall_ns;
}

void SaveCadence::copied(std::int64_t duration_ns) {
  if (Tier* const tier = std::exchange(copying_, nullptr); tier != nullptr && tier->saves > 0)
    tier->copy_ns += duration_ns;
}

void SaveCadence::ended(const SaveReport& report, std::int64_t now_ns) {
  --saves_under_way_;
  if (!report.outcome.ok()) return unsaved_.failed(now_ns);
  durable_seconds_.add(seconds(report.duration_ns));
  if (disk_.copy_ns > 0)
    disk_.copy_ns += report.processor_ns;  // the writer needs the processors that train, too
  unsaved_.saved(report.step, now_ns - report.duration_ns);
}

void SaveCadence::replicated(const ReplicaReport& report) {
  if (report.outcome.ok()) replicated_seconds_.add(seconds(report.duration_ns));
}

// Ends the measurement of a tier's saves. A snapshot that overlaps with a save all the time cannot be told
// from it, and is not counted. What a step takes changes with what else the machine does, so a save is compared with the
// ordinary steps just before it; at first also where others were in between.
void SaveCadence::close(Tier& tier) {
  constexpr std::int64_t neighbours = 5;
  if (tier.steps > 0 && usual_step().count() > 0) {
    const auto saves = static_cast<double>(tier.saves), steps = static_cast<double>(tier.steps);
    if (tier.follows_ordinary || &tier == &disk_ || tier.longer_seconds.count() < snapshot_trials) {
      const double longer = (seconds(tier.time_ns) - steps * usual_step().newest_median(neighbours)) / saves;
      tier.longer_seconds.add(longer);
      tier.longer_running_seconds.add(longer - seconds(tier.stall_ns) / saves);
    }
    tier.copy_seconds.add(seconds(tier.copy_ns) / saves);
    tier.stall_seconds.add(seconds(tier.stall_ns) / saves);
    tier.steps_beside.add(steps / saves);
    // Snapshots are many and each is small beside what steps vary, so they change their interval slowly.
    constexpr double newest_weight = 0.1;
    const double weight =
        &tier == &disk_ ? 1.0
                        : std::max(newest_weight, 1.0 / static_cast<double>(tier.longer_seconds.count()));
    tier.cost_seconds += weight * (measured_cost(tier) - tier.cost_seconds);
    choose(tier);
  }
  tier.forget_saves();
}

// Returns what a save costs. The median of n values has the standard error 1.25 s / sqrt(n), s: their standard deviation; four
// times that may be chance, because a run looks at it all the time. So the newest saves show a price that is higher than what
// steps vary, and all of them together one that is lower; from these the longer waits are left out, which are rather those of a
// thread that did not run. Steps that overlap with a save may also be the shorter ones; what is known to be the save's own is its
// cost all the same.
double SaveCadence::measured_cost(const Tier& tier) const {
  const double of_steps = usual_step().spread() * std::sqrt(tier.steps_beside.value());
  const double spread = &tier == &ram_ ? std::max(tier.longer_seconds.spread(), of_steps) : of_steps;
  const auto may_be_chance = [&](std::int64_t values) {
    return 4.0 * 1.25 * spread / std::sqrt(static_cast<double>(std::max<std::int64_t>(values, 1)));
  };
  constexpr double first_quarter = 0.25;
  const double waits = tier.stall_seconds.quantile(first_quarter);
  const double by_newest = tier.longer_seconds.value() - may_be_chance(tier.longer_seconds.kept_count());
  const double by_all =
      tier.longer_running_seconds.value() - may_be_chance(tier.longer_running_seconds.counted());
  return std::max(by_newest, std::max(by_all, tier.copy_seconds.value()) + waits);
}

void SaveCadence::choose(Tier& tier) {
  const bool to_disk = &tier == &disk_;
  if (!tier.is_auto() || tier.longer_seconds.count() < (to_disk ? 1 : snapshot_trials)) return;
  const SaveTimes times = times_of(tier);
  const std::int64_t best =
      to_disk ? steps_between_saves(times, mtbf_seconds()) : steps_between_snapshots(times, mtbf_seconds());
  tier.chosen_steps = best;
  tier.unlimited_steps = 0;
  tier.most_lost_seconds = 0.0;
  if (config_.lose_at_most_ms == 0) return;
  const double may_lose = static_cast<double>(config_.lose_at_most_ms) / 1e3;
  if (to_disk) {
    tier.chosen_steps = saves_within(best, may_lose, times);
    const double lost = most_lost_seconds(static_cast<double>(tier.chosen_steps) * times.step_seconds, times);
    constexpr double rounding = 1e-9;
    if (lost > may_lose * (1.0 + rounding)) tier.most_lost_seconds = lost;
  } else {
    // A failure also loses the step that was under way and the time until the snapshot counts.
    const double limit = may_lose - replicated_seconds_.value() - times.step_seconds;
    tier.chosen_steps = steps_within(best, std::max(limit, times.step_seconds), times.step_seconds);
  }
  if (tier.chosen_steps < best) tier.unlimited_steps = best;
}

SaveTimes SaveCadence::times_of(const Tier& tier) const {
  return {.step_seconds = usual_step().value(),
          .cost_seconds = tier.cost_seconds,
          .durable_seconds = &tier == &disk_ ? durable_seconds_.value() : 0.0};
}

const RecentMedian& SaveCadence::usual_step() const {
  const bool alone_at_times = step_seconds_.count() >= steps_before_trial ||
                              step_beside_fixed_seconds_.count() < 2 * steps_before_trial;
  return alone_at_times ? step_seconds_ : step_beside_fixed_seconds_;
}

namespace {

// Returns where the time between failures of a choice is from.
std::string source_of(const IntervalChoice& choice) {
  if (choice.prior.is_fixed) return "checkpoint.mtbf";
  if (choice.failures > 0) return "from the run's history";
  return choice.prior.is_stated ? "hazard.mtbf_hours; the run has had none" : "assumed: the run has had none";
}

}  // namespace

std::string describe(const IntervalChoice& choice) {
  std::string why = fmt::format("one costs {}, a step takes {}", format_seconds(choice.times.cost_seconds),
                                format_seconds(choice.times.step_seconds));
  if (choice.mtbf_seconds > 0.0) {
    const bool is_assumed = !choice.prior.is_fixed && choice.failures == 0;
    // An assumption is no measurement, and not said as exactly.
    const double unit_s = is_assumed && choice.mtbf_seconds >= hour_seconds ? hour_seconds : 1.0;
    const double shown_s = std::round(choice.mtbf_seconds / unit_s) * unit_s;
    why += fmt::format(", a failure is expected every {} ({})", format_duration(std::llround(shown_s) * 1000),
                       source_of(choice));
  }
  if (choice.unlimited_steps > 0) {
    why += fmt::format("; checkpoint.lose_at_most = {} asks for more than every {}",
                       format_duration(choice.lose_at_most_ms), choice.unlimited_steps);
  }
  if (choice.most_lost_seconds > 0.0) {
    why += fmt::format(
        "; checkpoint.lose_at_most = {} cannot be kept: a save counts after {}, so up to {} are lost",
        format_duration(choice.lose_at_most_ms), format_seconds(choice.times.durable_seconds),
        format_seconds(choice.most_lost_seconds));
  }
  return fmt::format("{} every {} steps: {}", choice.to_disk ? "checkpoints" : "RAM snapshots",
                     choice.every_steps, why);
}

std::optional<IntervalChoice> SaveCadence::take_choice() {
  for (Tier* tier : {&ram_, &disk_}) {
    if (tier->chosen_steps == 0) continue;
    const bool loses_too_much = tier->most_lost_seconds > 0.0;
    if (tier->reported_steps > 0 && (!loses_too_much || tier->said_too_much) &&
        alike(static_cast<double>(tier->reported_steps), static_cast<double>(tier->chosen_steps)))
      continue;
    tier->reported_steps = tier->chosen_steps;
    const bool is_first_to_say = loses_too_much && !std::exchange(tier->said_too_much, loses_too_much);
    const bool to_disk = tier == &disk_;
    const bool by_failures = to_disk || snapshots_follow_failures(tier->cost_seconds, mtbf_seconds());
    return IntervalChoice{.to_disk = to_disk,
                          .every_steps = tier->chosen_steps,
                          .times = times_of(*tier),
                          .mtbf_seconds = by_failures ? mtbf_seconds() : 0.0,
                          .prior = epoch_.prior,
                          .failures = history_.failures,
                          .unlimited_steps = tier->unlimited_steps,
                          .lose_at_most_ms = config_.lose_at_most_ms,
                          .most_lost_seconds = is_first_to_say ? tier->most_lost_seconds : 0.0};
  }
  return std::nullopt;
}

// Returns the work that is lost with the memory of a host. A snapshot counts when its copy is complete, a
// step later, and has reached the other host. While one is sent the next one waits.
std::optional<double> SaveCadence::lost_with_memory() const {
  const double step = usual_step().value(), sent = epoch_.survives_host ? replicated_seconds_.value() : 0.0;
  const std::optional<double> with_hosts = lost_with_hosts();
  if (ram_.every_steps == 0) return with_hosts;
  const double own = std::max(static_cast<double>(most_steps_between(ram_)) * step, sent) + step + sent;
  return with_hosts.has_value() ? std::min(own, *with_hosts) : own;
}

std::optional<double> SaveCadence::lost_with_hosts() const {
  const double step = usual_step().value();
  std::optional<double> between;
  if (disk_.every_steps != 0) between = static_cast<double>(disk_.steps_between()) * step;
  if (every_ns() > 0) between = std::min(between.value_or(seconds(every_ns())), seconds(every_ns()));
  if (!between.has_value()) return between;
  return most_lost_seconds(*between, {.step_seconds = step, .durable_seconds = durable_seconds_.value()});
}

bool FailureCost::exceeds_promise() const {
  if (lose_at_most_ms == 0) return false;
  constexpr double rounding = 1.0 + 1e-9;
  const double promised = static_cast<double>(lose_at_most_ms) / 1e3 * rounding;
  return std::ranges::any_of(
      std::array{process_seconds, host_seconds, job_seconds},
      [&](const std::optional<double>& lost) { return !lost.has_value() || *lost > promised; });
}

std::optional<FailureCost> SaveCadence::take_failure_cost() {
  const auto known = [](const Tier& tier) { return !tier.is_auto() || tier.chosen_steps > 0; };
  if (usual_step().count() < steps_before_trial || !known(ram_) || !known(disk_)) return std::nullopt;
  FailureCost cost{.process_seconds = lost_with_memory(),
                   .host_seconds = epoch_.survives_host ? lost_with_memory() : lost_with_hosts(),
                   .job_seconds = lost_with_hosts(),
                   .lose_at_most_ms = config_.lose_at_most_ms};
  if (reported_cost_.has_value() && holds(reported_cost_->process_seconds, cost.process_seconds) &&
      holds(reported_cost_->host_seconds, cost.host_seconds) &&
      holds(reported_cost_->job_seconds, cost.job_seconds))
    return std::nullopt;
  reported_cost_ = cost;
  const auto unchanged = [](const std::optional<double>& told, const std::optional<double>& now) {
    return told.has_value() == now.has_value() && (!now.has_value() || alike(*told, *now));
  };
  cost.is_news = !told_cost_.has_value() || !unchanged(told_cost_->process_seconds, cost.process_seconds) ||
                 !unchanged(told_cost_->host_seconds, cost.host_seconds) ||
                 !unchanged(told_cost_->job_seconds, cost.job_seconds) ||
                 told_cost_->exceeds_promise() != cost.exceeds_promise();
  if (cost.is_news) told_cost_ = cost;
  return cost;
}

}  // namespace holdfast::save
