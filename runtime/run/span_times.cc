#include "runtime/run/span_times.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "runtime/hazard/run_cost.h"

namespace holdfast::run {

std::string_view name_of(SpanUse use) {
  constexpr std::array<std::string_view, span_uses> names = {"training",
                                                             "lost work, stalls",
                                                             "recovery in place",
                                                             "restart",
                                                             "start-up",
                                                             "between steps",
                                                             "paused",
                                                             "saving",
                                                             "evaluation",
                                                             "waiting for hosts",
                                                             "waiting for a slow rank",
                                                             "waiting for data",
                                                             "audits and checks"};
  return names[static_cast<std::size_t>(use)];
}

double goodput_of(const SpanTimes& times_us) {
  std::int64_t whole_us = 0;
  for (const std::int64_t each : times_us) whole_us += each;
  whole_us -= times_us[static_cast<std::size_t>(SpanUse::paused)];
  const auto training_us = static_cast<double>(times_us[static_cast<std::size_t>(SpanUse::training)]);
  return whole_us > 0 ? training_us / static_cast<double>(whole_us) : 0.0;
}

std::array<double, span_uses> money_of(const SpanTimes& rank_times_us, const RankPrice& price) {
  std::array<double, span_uses> money{};
  for (std::size_t use = 0; use < span_uses; ++use) {
    if (static_cast<SpanUse>(use) == SpanUse::paused) continue;
    const double rank_seconds = static_cast<double>(std::max<std::int64_t>(rank_times_us[use], 0)) / 1e6;
    money[use] = hazard::price_of(rank_seconds, 1.0, price.per_rank_hour);
  }
  return money;
}

std::string money_sentence(const SpanTimes& rank_times_us, const RankPrice& price) {
  if (!price.is_known()) return {};
  const auto text_of = [&](std::int64_t rank_us) {
    return hazard::money_text(static_cast<double>(rank_us) / 1e6, price.per_rank_hour, price.currency);
  };
  std::int64_t all_us = 0;
  std::string classes;
  for (std::size_t use = 0; use < span_uses; ++use) {
    const std::int64_t rank_us = std::max<std::int64_t>(rank_times_us[use], 0);
    if (rank_us == 0 || static_cast<SpanUse>(use) == SpanUse::paused) continue;
    all_us += rank_us;
    classes += fmt::format("{}{} {}", classes.empty() ? ": " : ", ", name_of(static_cast<SpanUse>(use)),
                           text_of(rank_us));
  }
  return text_of(all_us) + classes;
}

}  // namespace holdfast::run
