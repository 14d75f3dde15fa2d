#include "runtime/health/shared_slowness.h"

#include <algorithm>
#include <cmath>

#include "runtime/core/check.h"
#include "runtime/core/median.h"

namespace holdfast::health {
namespace {

constexpr double whole_variance = 2.0;  // of noise, by that of what is above the usual

}  // namespace

SharedSlowness::SharedSlowness(std::span<const RankPlace> places, const SharedTerms& terms)
    : terms_(terms), sums_(places.size()), first_(places.size() + 1), all_(new_chart()) {
  for (const RankPlace& place : places) {
    index_of_[place.rank] = static_cast<int>(hosts_.size());
    hosts_.push_back(place.host);
  }
}

std::span<const StragglerVerdict> SharedSlowness::take(const Steps& steps) {
  HF_CHECK(steps.times.size() == sums_.size() && steps.waits.size() == sums_.size());
  news_.clear();
  add(steps);
  if (seconds_ < terms_.block_seconds) return news_;
  take_block();
  std::ranges::fill(sums_, StepTimes{});
  for (auto& [ranks, pair] : pairs_) pair.there_ms = pair.back_ms = 0.0;
  steps_ = seconds_ = 0.0;
  return news_;
}

void SharedSlowness::add(const Steps& steps) {
  if (!(steps_ > 0.0)) first_step_ = steps.first_step;
  last_step_ = steps.last_step;
  steps_ += static_cast<double>(steps.last_step - steps.first_step + 1);
  seconds_ += steps.seconds;
  for (std::size_t rank = 0; rank < sums_.size(); ++rank) {
    sums_[rank].add(steps.times[rank]);
    for (const PeerWait& wait : steps.waits[rank]) {
      const auto found = index_of_.find(wait.peer);
      if (found == index_of_.end()) continue;
      const int own = static_cast<int>(rank), peer = found->second;
      if (hosts_[rank] == hosts_[static_cast<std::size_t>(peer)]) continue;
      Pair& pair = pairs_.try_emplace({std::min(own, peer), std::max(own, peer)}, Pair{.chart = new_chart()})
                       .first->second;
      (own < peer ? pair.there_ms : pair.back_ms) += static_cast<double>(wait.waited_ms);
    }
  }
}

void SharedSlowness::take_block() {
  if (++blocks_ <= terms_.warmup_blocks) return;
  if (blocks_ <= terms_.warmup_blocks + terms_.usual_blocks) {
    learn();
  } else {
    compare();
  }
}

// Notes one of the first blocks, and after the last of them what is usual.
void SharedSlowness::learn() {
  const bool is_last = blocks_ == terms_.warmup_blocks + terms_.usual_blocks;
  for (std::size_t rank = 0; rank < sums_.size(); ++rank) first_[rank].push_back(own_ms(rank));
  first_.back().push_back(1e3 * seconds_ / steps_);
  for (auto& [ranks, pair] : pairs_) {
    pair.first.resize(
        static_cast<std::size_t>(blocks_ - terms_.warmup_blocks - 1));  // 0 where it did not wait
    pair.first.push_back(std::min(pair.there_ms, pair.back_ms) / steps_);
    if (is_last) pair.usual_ms = take_median(pair.first);
  }
  if (!is_last) return;
  for (std::vector<double> values : first_) usual_ms_.push_back(take_median(values));
  first_.clear();
}

void SharedSlowness::compare() {
  const double step_ms = 1e3 * seconds_ / steps_;
  slower_.clear();
  for (std::size_t rank = 0; rank < sums_.size(); ++rank)
    slower_.push_back(std::log(std::max(own_ms(rank), 1e-3) / std::max(usual_ms_[rank], 1e-3)));
  std::vector<double> sorted = slower_;
  std::ranges::sort(sorted);
  const double excess = sorted[(sorted.size() - 1) / 4];
  compare_pairs(step_ms);
  const News news = follow(
      all_, terms_.all,
      {.excess = excess, .factor = std::exp(excess), .lost_ms = std::max(step_ms - usual_ms_.back(), 0.0)},
      /*may_name=*/true);
  tell(all_, news, -1, -1);
  if (all_.named || all_.sum > 0.0) return;
  for (std::size_t rank = 0; rank < sums_.size(); ++rank)
    usual_ms_[rank] += (own_ms(rank) - usual_ms_[rank]) / terms_.usual_memory;
}

void SharedSlowness::compare_pairs(double step_ms) {
  // The worst first, so that it is the one that is named.
  std::vector<std::pair<double, std::pair<int, int>>> by_sum;
  for (const auto& [ranks, pair] : pairs_) by_sum.emplace_back(-pair.chart.sum, ranks);
  std::ranges::sort(by_sum);
  for (const auto& [sum, ranks] : by_sum) {
    Pair& pair = pairs_.at(ranks);
    const auto [one, other] = ranks;
    const double mutual_ms = std::min(pair.there_ms, pair.back_ms) / steps_;
    const double slower =
        std::max({slower_[static_cast<std::size_t>(one)], slower_[static_cast<std::size_t>(other)], 0.0});
    const double more_ms = mutual_ms - std::exp(slower) * pair.usual_ms;
    const double excess = more_ms / std::max(usual_ms_.back(), 1e-3);
    const News news =
        follow(pair.chart, terms_.link,
               {.excess = excess, .factor = 1.0 + std::max(excess, 0.0), .lost_ms = std::max(more_ms, 0.0)},
               !shares_host_with_named(one, other));
    tell(pair.chart, news, one, other);
    if (!pair.chart.named && !(pair.chart.sum > 0.0))
      pair.usual_ms += (mutual_ms - pair.usual_ms) / terms_.usual_memory;
  }
  const bool is_slow =
      std::ranges::any_of(pairs_, [](const auto& each) { return each.second.chart.sum > 0.0; });
  if (!is_slow && !all_.named && !(all_.sum > 0.0))
    usual_ms_.back() += (step_ms - usual_ms_.back()) / terms_.usual_memory;
}

bool SharedSlowness::shares_host_with_named(int one, int other) const {
  const auto host = [&](int rank) -> const std::string& { return hosts_[static_cast<std::size_t>(rank)]; };
  return std::ranges::any_of(pairs_, [&](const auto& each) {
    const auto [first, second] = each.first;
    return each.second.chart.named && (host(first) == host(one) || host(first) == host(other) ||
                                       host(second) == host(one) || host(second) == host(other));
  });
}

// Moves a chart on by the block in hand.
SharedSlowness::News SharedSlowness::follow(Chart& chart, const SharedTerms::Chart& terms, const Value& value,
                                            bool may_name) const {
  const double excess = std::clamp(value.excess, -terms.clip, terms.clip);
  // The noise is that of the blocks before: a change does not hide in its own.
  const double variance = whole_variance * chart.noise.value();
  if (!chart.named) {
    if (!(chart.sum > 0.0)) chart.noise.add(std::max(excess, 0.0));
    chart.sum += excess - terms.allowance;
    if (chart.sum <= 0.0) {
      chart = {.noise = std::move(chart.noise), .highest = std::max(chart.highest, chart.peak)};
      return News::none;
    }
    if (chart.blocks++ == 0) chart.since_step = first_step_;
    chart.peak = std::max(chart.peak, chart.sum);
  }
  chart.seconds += seconds_;
  chart.usual_seconds += seconds_ / value.factor;
  chart.lost_seconds += steps_ * value.lost_ms / 1e3;
  if (chart.named) {
    chart.recovered = std::max(0.0, chart.recovered + terms_.over_excess - excess);
    return chart.recovered < terms_.over_sum ? News::none : News::over;
  }
  const double bound = terms_.log_blocks * (variance / (2.0 * terms.allowance) + terms.clip / 3.0);
  chart.named = may_name && chart.sum > std::max(bound, terms_.highest_factor * chart.highest) &&
                chart.blocks >= terms.slow_blocks_min &&
                chart.seconds >= terms.factor_min * chart.usual_seconds;
  return chart.named ? News::named : News::none;
}

void SharedSlowness::tell(Chart& chart, News news, int rank, int peer) {
  if (news == News::none) return;
  news_.push_back(verdict_of(chart, rank, peer));
  news_.back().is_over = news == News::over;
  if (news == News::over) chart = {.noise = std::move(chart.noise), .highest = chart.highest};
}

StragglerVerdict SharedSlowness::verdict_of(const Chart& chart, int rank, int peer) const {
  return {.rank = rank,
          .peer = peer,
          .kind = peer < 0 ? StragglerKind::all_slow : StragglerKind::slow_link,
          .factor = chart.seconds / std::max(chart.usual_seconds, 1e-9),
          .since_step = chart.since_step,
          .last_step = last_step_,
          .lost_seconds = chart.lost_seconds,
          .seconds = chart.seconds};
}

std::vector<StragglerVerdict> SharedSlowness::standing() const {
  std::vector<StragglerVerdict> verdicts;
  if (all_.named) verdicts.push_back(verdict_of(all_, -1, -1));
  for (const auto& [ranks, pair] : pairs_)
    if (pair.chart.named) verdicts.push_back(verdict_of(pair.chart, ranks.first, ranks.second));
  return verdicts;
}

}  // namespace holdfast::health
