#include "runtime/health/straggler_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/core/median.h"
#include "runtime/run/event_reading.h"

namespace holdfast::health {
namespace {

constexpr std::size_t rows_known = 16;  // of which the last quarter is compared with all
constexpr double slowdown_told = 1.25;

double median_own_ms(const RankTimesRow& row) {
  std::vector<double> own;
  for (const StepTimes& each : row.mean) own.push_back(each.own_ms());
  return own.empty() ? 0.0 : take_median(own);
}

std::string table_of(const RankTimesEpoch& epoch) {
  std::size_t width = 4;
  for (const RankPlace& place : epoch.ranks) width = std::max(width, place.host.size());
  std::string text = fmt::format("{:>4}  {:<{}}  {:>9}  {:>8}  {:>9}", "rank", "host", width, "own ms",
                                 "to peers", "waited ms");
  for (std::size_t phase = 0; phase < step_phases; ++phase)
    fmt::format_to(std::back_inserter(text), "  {:>9}", name_of(static_cast<StepPhase>(phase)));
  text += "\n";
  for (const RankTotals& each : totals_of(epoch)) {
    fmt::format_to(std::back_inserter(text), "{:>4}  {:<{}}  {:>9.2f}  {:>8}  {:>9.2f}", each.place.rank,
                   each.place.host, width, each.mean.own_ms(),
                   each.ratio > 0.0 ? fmt::format("{:.2f}", each.ratio) : "-", each.mean.waited_ms);
    for (const float spent : each.mean.spent_ms)
      fmt::format_to(std::back_inserter(text), "  {:>9.2f}", spent);
    text += "\n";
  }
  return text;
}

}  // namespace

void StragglerLog::take(const Json& event) {
  if (std::optional<StragglerEvent> straggler = event_as<StragglerEvent>(event)) take(*std::move(straggler));
}

void StragglerLog::take(StragglerEvent straggler) {
  const auto same = std::ranges::find_if(found, [&](const StragglerEvent& each) {
    return each.rank == straggler.rank && each.peer == straggler.peer && each.host == straggler.host &&
           each.since_step == straggler.since_step;
  });
  if (same == found.end()) {
    found.push_back(std::move(straggler));
  } else {
    *same = std::move(straggler);
  }
}

std::vector<RankTotals> totals_of(const RankTimesEpoch& epoch) {
  RankTimesRow mean{.first_step = 0, .last_step = 0, .mean = std::vector<StepTimes>(epoch.ranks.size())};
  std::vector<std::array<double, step_phases + 1>> sums(epoch.ranks.size());
  double steps = 0.0;
  for (const RankTimesRow& row : epoch.rows) {
    const auto count = static_cast<double>(row.steps());
    steps += count;
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      for (std::size_t phase = 0; phase < step_phases; ++phase)
        sums[rank][phase] += count * static_cast<double>(row.mean[rank].spent_ms[phase]);
      sums[rank][step_phases] += count * static_cast<double>(row.mean[rank].waited_ms);
    }
  }
  for (std::size_t rank = 0; rank < sums.size() && steps > 0.0; ++rank) {
    for (std::size_t phase = 0; phase < step_phases; ++phase)
      mean.mean[rank].spent_ms[phase] = static_cast<float>(sums[rank][phase] / steps);
    mean.mean[rank].waited_ms = static_cast<float>(sums[rank][step_phases] / steps);
  }
  const std::vector<double> ratios = ratios_to_peers(epoch, mean);
  std::vector<RankTotals> totals;
  for (std::size_t rank = 0; rank < ratios.size(); ++rank)
    totals.push_back({.place = epoch.ranks[rank], .mean = mean.mean[rank], .ratio = ratios[rank]});
  return totals;
}

std::optional<double> slowdown_of_all(const RankTimesEpoch& epoch) {
  if (epoch.rows.size() < rows_known) return std::nullopt;
  std::vector<double> all;
  for (const RankTimesRow& row : epoch.rows) all.push_back(median_own_ms(row));
  std::vector<double> newest(all.end() - std::ssize(all) / 4, all.end());
  const double last = take_median(newest), usual = take_median(all);
  if (!(usual > 0.0) || last < slowdown_told * usual) return std::nullopt;
  return last / usual;
}

std::string to_text(const StragglerLog& log, const std::vector<RankTimesEpoch>& epochs) {
  std::string text;
  for (const StragglerEvent& each : log.found) text += each.reason + "\n";
  if (log.found.empty()) text += "no rank was found to be slower than the ranks that do the same\n";
  if (epochs.empty() || epochs.back().rows.empty()) return text;
  const RankTimesEpoch& last = epochs.back();
  if (const std::optional<double> all = slowdown_of_all(last)) {
    text += fmt::format(
        "all ranks together take {:.2f} times as long as was usual in this run: no single rank is the "
        "cause\n",
        *all);
  }
  text += fmt::format("\nmean of a step, steps {} to {}:\n", last.rows.front().first_step,
                      last.rows.back().last_step);
  return text + table_of(last);
}

Json to_json(const StragglerLog& log, const std::vector<RankTimesEpoch>& epochs) {
  Json json = Json::object();
  json["stragglers"] = Json::array();
  for (const StragglerEvent& each : log.found) {
    Json straggler = Json::object();
    StragglerEvent::visit_fields(each, [&](std::string_view name, const auto& value, auto&&...) {
      if constexpr (requires { value.has_value(); }) {
        straggler[std::string(name)] = value.has_value() ? Json(*value) : Json();
      } else {
        straggler[std::string(name)] = value;
      }
    });
    json["stragglers"].push_back(std::move(straggler));
  }
  json["ranks"] = Json::array();
  json["all"] = Json();
  if (epochs.empty()) return json;
  for (const RankTotals& each : totals_of(epochs.back())) {
    Json rank = {{"rank", each.place.rank},
                 {"host", each.place.host},
                 {"own_ms", each.mean.own_ms()},
                 {"waited_ms", static_cast<double>(each.mean.waited_ms)},
                 {"factor", each.ratio > 0.0 ? Json(each.ratio) : Json()}};
    for (std::size_t phase = 0; phase < step_phases; ++phase)
      rank[std::string(name_of(static_cast<StepPhase>(phase))) + "_ms"] =
          static_cast<double>(each.mean.spent_ms[phase]);
    json["ranks"].push_back(std::move(rank));
  }
  if (const std::optional<double> all = slowdown_of_all(epochs.back())) json["all"] = *all;
  return json;
}

}  // namespace holdfast::health
