#include "runtime/health/straggler_rule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/core/check.h"

namespace holdfast::health {
namespace {

// Returns the median of sorted values without the one at `left_out`, which may be none of them.
double median_without(std::span<const double> sorted, std::size_t left_out) {
  const std::size_t count = left_out < sorted.size() ? sorted.size() - 1 : sorted.size();
  const auto at = [&](std::size_t index) { return sorted[index < left_out ? index : index + 1]; };
  return count % 2 == 1 ? at(count / 2) : 0.5 * (at(count / 2 - 1) + at(count / 2));
}

// The largest of some values, without one of them.
class LargestOfOthers {
 public:
  void take(double value) {
    second_ = std::max(second_, std::min(largest_, value));
    largest_ = std::max(largest_, value);
  }
  double than(double own) const { return largest_ > own ? largest_ : second_; }

 private:
  double largest_ = 0.0, second_ = 0.0;
};

// Steps of a batch, and how many batches say something: few of the longer ones do not.
constexpr std::array<int, 3> batch_steps = {8, 32, 128};
constexpr std::array<double, 3> batches_min = {0.0, 6.0, 8.0};

constexpr double offset_clip = 0.3;
constexpr double offset_memory = 1024.0, usual_memory = 256.0,
                 usual_long_memory = 8192.0;  // steps

double middle_of(const std::vector<double>& sorted) {
  return median_without(sorted, sorted.size());
}

bool scales_with_work(std::size_t phase) {
  return phase == static_cast<std::size_t>(StepPhase::forward) ||
         phase == static_cast<std::size_t>(StepPhase::backward) ||
         phase == static_cast<std::size_t>(StepPhase::input);
}

// Calls use(index, median of the values of the others) for each value.
template <typename Use>
void for_each_median_of_others(std::vector<double>& sorted, std::size_t count, const auto& value,
                               const Use& use) {
  sorted.clear();
  for (std::size_t i = 0; i < count; ++i) sorted.push_back(value(i));
  std::ranges::sort(sorted);
  for (std::size_t i = 0; i < count; ++i) {
    const auto place = std::ranges::lower_bound(sorted, value(i)) - sorted.begin();
    use(i, median_without(sorted, static_cast<std::size_t>(place)));
  }
}

}  // namespace

LongRunVariance::LongRunVariance(double prior) {
  batches_[0].estimate = prior;
  batches_[0].weight = 4.0;
}

void LongRunVariance::add(double value) {
  constexpr double memory = 64.0;
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    Batches& batches = batches_[i];
    batches.sum += value;
    if (++batches.count < batch_steps[i]) continue;
    const double mean = batches.sum / batches.count;
    const double difference = mean - std::exchange(batches.last_mean, mean);
    if (std::exchange(batches.has_last, true)) {
      batches.weight = std::min(batches.weight + 1.0, memory);
      batches.estimate += (0.5 * difference * difference * batches.count - batches.estimate) / batches.weight;
    }
    batches.sum = 0.0;
    batches.count = 0;
  }
}

double LongRunVariance::value() const {
  double largest = 0.0;
  for (std::size_t i = 0; i < batches_.size(); ++i)
    if (batches_[i].weight >= batches_min[i]) largest = std::max(largest, batches_[i].estimate);
  return largest;
}

StragglerRule::StragglerRule(std::vector<RankWork> work, const StragglerTerms& terms)
    : terms_(terms), work_(std::move(work)), scale_(work_.size(), 1.0), seen_(work_.size()) {
  std::map<int, Group> groups;
  for (std::size_t rank = 0; rank < work_.size(); ++rank)
    groups[work_[rank].group].push_back(static_cast<int>(rank));
  has_peers_ = std::ranges::any_of(groups, [](const auto& each) { return each.second.size() > 1; });
  if (!has_peers_) {
    groups_.emplace_back();
    for (std::size_t rank = 0; rank < work_.size(); ++rank) groups_[0].push_back(static_cast<int>(rank));
    baseline_.resize(work_.size());
  }
  for (auto& [number, group] : groups) {
    double sum = 0.0;
    for (const int rank : group) sum += work_[static_cast<std::size_t>(rank)].weight;
    for (const int rank : group) {
      const double own = work_[static_cast<std::size_t>(rank)].weight;
      if (own > 0.0) scale_[static_cast<std::size_t>(rank)] = sum / static_cast<double>(group.size()) / own;
    }
    if (has_peers_ && group.size() > 1) groups_.push_back(std::move(group));
  }
  for (std::size_t rank = 0; rank < work_.size(); ++rank) {
    Rank& each = ranks_.emplace_back();
    for (std::size_t i = 0; i < terms_.charts.size(); ++i)
      each.charts.push_back({.noise = LongRunVariance(terms_.prior_variance)});
  }
}

StragglerRule::Seen StragglerRule::seen_of(int rank, const StepTimes& times) const {
  const auto index = static_cast<std::size_t>(rank);
  Seen seen{.waited_ms = static_cast<double>(times.waited_ms) / block_.steps};
  for (std::size_t phase = 0; phase < step_phases; ++phase) {
    seen.phases_ms[phase] = static_cast<double>(times.spent_ms[phase]) / block_.steps *
                            (scales_with_work(phase) ? scale_[index] : 1.0);
    seen.own_ms += seen.phases_ms[phase];
  }
  seen.log_own = std::log(std::max(seen.own_ms, 0.0) + terms_.jitter_ms) - ranks_[index].offset;
  return seen;
}

std::span<const StragglerVerdict> StragglerRule::take(std::uint64_t step, std::span<const StepTimes> times,
                                                      double step_seconds) {
  HF_CHECK(times.size() == work_.size(), "times of {} ranks, not {}", times.size(), work_.size());
  news_.clear();
  if (!(block_.steps > 0.0)) {
    block_.first_step = step;
    block_.seconds = 0.0;
    block_.sums.assign(work_.size(), StepTimes{});
  }
  block_.last_step = step;
  block_.steps += 1.0;
  block_.seconds += step_seconds;
  for (std::size_t rank = 0; rank < work_.size(); ++rank) block_.sums[rank].add(times[rank]);
  if (block_.seconds >= terms_.block_seconds) {
    take_block();
    block_.steps = 0.0;
  }
  return news_;
}

void StragglerRule::take_block() {
  if (++steps_ <= static_cast<std::uint64_t>(terms_.warmup_steps)) return;
  for (const Group& group : groups_) {
    for (const int rank : group)
      seen_[static_cast<std::size_t>(rank)] = seen_of(rank, block_.sums[static_cast<std::size_t>(rank)]);
    if (group.size() > 1 && !learns_offsets(group)) compare(group);
  }
}

// Notes how ranks without peers usually compare. Returns whether it still does.
bool StragglerRule::learns_offsets(const Group& group) {
  if (has_peers_ || baseline_.empty()) return false;
  double mean = 0.0;
  for (const int rank : group) mean += seen_[static_cast<std::size_t>(rank)].log_own;
  mean /= static_cast<double>(group.size());
  for (const int rank : group)
    baseline_[static_cast<std::size_t>(rank)].push_back(seen_[static_cast<std::size_t>(rank)].log_own - mean);
  if (baseline_[0].size() < static_cast<std::size_t>(terms_.baseline_steps)) return true;
  for (const int rank : group) {
    std::vector<double>& values = baseline_[static_cast<std::size_t>(rank)];
    std::ranges::sort(values);
    double sum = 0.0;
    for (const double each : values) sum += std::clamp(each - middle_of(values), -offset_clip, offset_clip);
    Rank& learned = ranks_[static_cast<std::size_t>(rank)];
    learned.offset_steps = static_cast<double>(values.size());
    learned.offset = middle_of(values) + sum / learned.offset_steps;
  }
  baseline_.clear();
  return true;
}

// Notes the times of a rank without peers that is as fast as usual.
void StragglerRule::note_usual(Rank& rank, const Seen& seen) const {
  const auto is_zero = [](const Chart& chart) { return !(chart.sum > 0.0); };
  if (has_peers_ || rank.named || !std::ranges::all_of(rank.charts, is_zero)) return;
  constexpr double memory = 1.0 - 1.0 / 256.0;
  rank.usual_steps = memory * rank.usual_steps + 1.0;
  for (std::size_t phase = 0; phase < step_phases; ++phase)
    rank.usual_ms[phase] = memory * rank.usual_ms[phase] + seen.phases_ms[phase];
}

void StragglerRule::compare(const Group& group) {
  fill_excess(group);
  for (const int rank : group)
    note_usual(ranks_[static_cast<std::size_t>(rank)], seen_[static_cast<std::size_t>(rank)]);
  for (std::size_t chart = 0; chart < terms_.charts.size(); ++chart) follow(group, chart);
}

// Fills in by how much each rank of the group is above the median of the others, in all and by phase; without
// peers, by phase above what was usual.
void StragglerRule::fill_excess(const Group& group) {
  const auto seen = [&](std::size_t i) -> Seen& { return seen_[static_cast<std::size_t>(group[i])]; };
  for_each_median_of_others(
      sorted_, group.size(), [&](std::size_t i) { return seen(i).log_own; },
      [&](std::size_t i, double median) {
        const double offset = ranks_[static_cast<std::size_t>(group[i])].offset;
        seen(i).expected_ms = std::max(std::exp(median + offset) - terms_.jitter_ms, 0.0);
      });
  for_each_median_of_others(
      sorted_, group.size(), [&](std::size_t i) { return seen(i).waited_ms; },
      [&](std::size_t i, double median) {
        seen(i).lost_ms = std::clamp(seen(i).own_ms - seen(i).expected_ms, 0.0, std::max(median, 0.0));
      });
  for (std::size_t phase = 0; phase < step_phases; ++phase) {
    if (!has_peers_) {
      for (std::size_t i = 0; i < group.size(); ++i) {
        const Rank& rank = ranks_[static_cast<std::size_t>(group[i])];
        const double usual = rank.usual_steps > 0.0 ? rank.usual_ms[phase] / rank.usual_steps : 0.0;
        seen(i).excess_ms[phase] = seen(i).phases_ms[phase] - usual;
      }
      continue;
    }
    for_each_median_of_others(
        sorted_, group.size(), [&](std::size_t i) { return seen(i).phases_ms[phase]; },
        [&](std::size_t i, double median) { seen(i).excess_ms[phase] = seen(i).phases_ms[phase] - median; });
  }
}

double StragglerRule::threshold(const StragglerTerms::Chart& chart, double variance,
                                double peers_highest) const {
  const bool is_early = steps_ <= static_cast<std::uint64_t>(terms_.warmup_steps + terms_.early_steps);
  const double bound = terms_.log_steps * (variance / (2.0 * chart.allowance) + chart.clip / 3.0);
  return std::max(is_early ? 2.0 * bound : bound, terms_.peers_factor * peers_highest);
}

double StragglerRule::seconds_needed(const Excursion& excursion, double variance) const {
  const double noise = variance / terms_.quiet_variance;
  const double excess = std::log(std::max(excursion.own_ms, 1e-9) / std::max(excursion.expected_ms, 1e-9)) /
                        terms_.usual_excess;
  const double seconds = std::min(terms_.seconds_min * (1.0 + noise * noise), terms_.seconds_max);
  return std::max(seconds / std::max(1.0, excess * excess), terms_.seconds_min);
}

void StragglerRule::note(Excursion& excursion, const Seen& seen, bool slow) const {
  ++excursion.steps;
  excursion.slow_steps += slow ? 1 : 0;
  excursion.seconds += block_.seconds;
  excursion.own_ms += block_.steps * seen.own_ms;
  excursion.expected_ms += block_.steps * seen.expected_ms;
  excursion.lost_ms += block_.steps * seen.lost_ms;
  for (std::size_t phase = 0; phase < step_phases; ++phase)
    excursion.excess_ms[phase] += block_.steps * seen.excess_ms[phase];
}

double StragglerRule::variance_of(const Chart& chart) {
  return std::max(chart.noise.value(), chart.variance);
}

// Moves one chart of all ranks of a group on by a step.
void StragglerRule::follow(const Group& group, std::size_t number) {
  const StragglerTerms::Chart& terms = terms_.charts[number];
  const auto count = static_cast<double>(group.size());
  sorted_.clear();
  for (const int rank : group) sorted_.push_back(seen_[static_cast<std::size_t>(rank)].log_own);
  std::ranges::sort(sorted_);
  const double median = median_without(sorted_, sorted_.size());
  excess_.clear();
  double sum = 0.0, noise = 0.0;
  LargestOfOthers highest, recent, usual, usual_long;
  std::size_t named = 0;
  for (const int rank : group) {
    const Rank& each = ranks_[static_cast<std::size_t>(rank)];
    excess_.push_back(
        std::clamp(seen_[static_cast<std::size_t>(rank)].log_own - median, -terms.clip, terms.clip));
    sum += excess_.back();
    noise += variance_of(each.charts[number]) * variance_of(each.charts[number]);
    highest.take(each.charts[number].highest);
    usual.take(each.charts[number].usual);
    usual_long.take(each.charts[number].usual_long);
    recent.take(each.charts[number].recent);
    named += each.named ? 1 : 0;
  }
  const double ahead = terms_.ahead_of_peers * (static_cast<double>(steps_) < usual_memory ? 2.0 : 1.0);
  const double forgotten = std::exp2(-1.0 / terms_.memory_steps);
  for (std::size_t i = 0; i < group.size(); ++i) {
    const int rank = group[i];
    Rank& each = ranks_[static_cast<std::size_t>(rank)];
    Chart& chart = each.charts[number];
    const Seen& seen = seen_[static_cast<std::size_t>(rank)];
    const double of_others = (sum - excess_[i]) / (count - 1.0);
    const double excess = std::clamp(excess_[i] - of_others, -terms.clip, terms.clip);
    chart.highest *= forgotten;
    if (each.named) {
      if (number + 1 == terms_.charts.size()) follow_named(rank, excess);
      continue;
    }
    // Their root mean square, so that a noisy one counts among few, and not among many.
    const double own_noise = variance_of(chart) * variance_of(chart);
    const double of_peers = std::sqrt(std::max(noise - own_noise, 0.0) / (count - 1.0));
    const double limit = threshold(terms, terms_.whole_variance * of_peers, highest.than(chart.highest)) +
                         terms_.recent_factor * recent.than(chart.recent);
    chart.noise.add(std::max(excess, 0.0));
    chart.variance = std::max(chart.variance * forgotten, 0.5 * chart.noise.value());
    const bool is_ahead = chart.excursion.steps > 2 * static_cast<int>(usual_memory)
                              ? chart.usual_long > ahead * usual_long.than(chart.usual_long)
                              : chart.usual > ahead * usual.than(chart.usual);
    const double above = std::max(excess - terms.allowance, 0.0);
    chart.usual_long += (above - chart.usual_long) / std::min(static_cast<double>(steps_), usual_long_memory);
    chart.usual += (above - chart.usual) / std::min(static_cast<double>(steps_), usual_memory);
    chart.recent += above - chart.recent / terms_.recent_steps;
    // Without peers the mean of the noise is known as well as the steps tell from which it was learned.
    const double unknown = has_peers_ ? 0.0 : std::sqrt(terms_.whole_variance * of_peers / each.offset_steps);
    chart.sum += excess - terms.allowance - unknown;
    if (!has_peers_ && number + 1 == terms_.charts.size() && chart.sum < limit / 4.0) {
      each.offset_steps = std::min(each.offset_steps + 1.0, offset_memory);
      each.offset += excess / each.offset_steps;
    }
    if (chart.sum <= 0.0) {
      chart.highest = std::max(chart.highest, std::exchange(chart.peak, 0.0));
      chart.sum = 0.0;
      chart.excursion = {};
      continue;
    }
    if (chart.excursion.seconds <= 0.0) chart.excursion.since_step = block_.first_step;
    chart.peak = std::max(chart.peak, chart.sum);
    note(chart.excursion, seen, excess > terms.allowance);
    const Excursion& slow = chart.excursion;
    if (chart.sum > limit && slow.slow_steps >= terms_.slow_steps_min &&
        slow.seconds >= seconds_needed(slow, terms_.whole_variance * of_peers) &&
        slow.own_ms >= terms_.factor_min * slow.expected_ms && 2 * (named + 1) <= group.size() &&
        (slow.slow_steps >= terms_.steady_share * slow.steps || is_ahead)) {
      ++named;
      name(rank, Excursion(slow));
    }
  }
}

void StragglerRule::name(int rank, const Excursion& excursion) {
  Rank& each = ranks_[static_cast<std::size_t>(rank)];
  each.named = true;
  each.named_step = block_.last_step;
  each.recovered = 0.0;
  each.since_named = excursion;
  for (Chart& chart : each.charts) {
    chart.sum = chart.peak = 0.0;
    chart.excursion = {};
  }
  news_.push_back(verdict_of(rank, block_.last_step));
}

void StragglerRule::follow_named(int rank, double excess) {
  Rank& each = ranks_[static_cast<std::size_t>(rank)];
  if (each.named_step == block_.last_step) return;  // which is in the numbers
  note(each.since_named, seen_[static_cast<std::size_t>(rank)], false);
  each.recovered = std::max(0.0, each.recovered + terms_.over_excess - excess);
  if (each.recovered < terms_.over_sum) return;
  StragglerVerdict over = verdict_of(rank, block_.last_step);
  over.is_over = true;
  news_.push_back(over);
  each.named = false;
}

StragglerVerdict StragglerRule::verdict_of(int rank, std::uint64_t last_step) const {
  const Excursion& slow = ranks_[static_cast<std::size_t>(rank)].since_named;
  const auto most = std::ranges::max_element(slow.excess_ms) - slow.excess_ms.begin();
  const auto phase = static_cast<StepPhase>(most);
  return {.rank = rank,
          .kind = phase == StepPhase::input ? StragglerKind::slow_input : StragglerKind::slow_rank,
          .phase = phase,
          .factor = slow.expected_ms > 0.0 ? slow.own_ms / slow.expected_ms : 1.0,
          .since_step = slow.since_step,
          .last_step = last_step,
          .lost_seconds = slow.lost_ms / 1e3,
          .seconds = slow.seconds};
}

std::vector<StragglerVerdict> StragglerRule::standing() const {
  std::vector<StragglerVerdict> verdicts;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].named) verdicts.push_back(verdict_of(static_cast<int>(rank), block_.last_step));
  return verdicts;
}

}  // namespace holdfast::health
