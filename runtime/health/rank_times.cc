#include "runtime/health/rank_times.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "runtime/core/record.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::health {
namespace {

constexpr std::uint64_t file_bytes_max = std::uint64_t{64} << 20;
constexpr double row_seconds = 1.0;
constexpr std::size_t epochs_max = 64;
constexpr std::size_t columns = step_phases + 1;

// The line that names the ranks.
struct RanksLine {
  std::vector<RankPlace> ranks = {};
  static void visit_fields(auto& self, auto&& visit) { visit("ranks", self.ranks); }
};

// Rows of a file, so that it has some megabytes at most.
std::size_t rows_max(std::size_t ranks) {
  return std::clamp<std::size_t>(65'536 / std::max<std::size_t>(ranks, 1), 32, 512);
}

std::string line_of(const RankTimesRow& row) {
  std::string line = fmt::format("{{\"first\":{},\"last\":{},\"times\":[", row.first_step, row.last_step);
  for (std::size_t rank = 0; rank < row.mean.size(); ++rank) {
    line += rank == 0 ? "[" : ",[";
    for (const float each : row.mean[rank].spent_ms)
      fmt::format_to(std::back_inserter(line), "{:.3f},", each);
    fmt::format_to(std::back_inserter(line), "{:.3f}]", row.mean[rank].waited_ms);
  }
  return line + "]}";
}

std::string line_of(const std::vector<RankPlace>& ranks) {
  return record_to_text(RanksLine{.ranks = ranks});
}

std::string text_of(const std::vector<RankTimesEpoch>& epochs) {
  std::string text;
  for (const RankTimesEpoch& epoch : epochs) {
    text += line_of(epoch.ranks) + "\n";
    for (const RankTimesRow& row : epoch.rows) text += line_of(row) + "\n";
  }
  return text;
}

// Returns the row of a line; none where it is not one of so many ranks.
std::optional<RankTimesRow> row_of(const Json& json, std::size_t ranks) {
  for (const std::string_view key : {"first", "last"})
    if (!json.contains(key) || !json.find(key)->is_number_unsigned()) return std::nullopt;
  if (!json.contains("times") || !json.find("times")->is_array()) return std::nullopt;
  const Json& times = *json.find("times");
  if (times.size() != ranks) return std::nullopt;
  RankTimesRow row{.first_step = json.find("first")->get<std::uint64_t>(),
                   .last_step = json.find("last")->get<std::uint64_t>()};
  if (row.last_step < row.first_step) return std::nullopt;
  for (const Json& of_rank : times) {
    if (!of_rank.is_array() || of_rank.size() != columns) return std::nullopt;
    StepTimes& mean = row.mean.emplace_back();
    std::size_t column = 0;
    for (const Json& each : of_rank) {
      if (!each.is_number()) return std::nullopt;
      (column < step_phases ? mean.spent_ms[column] : mean.waited_ms) = each.get<float>();
      ++column;
    }
  }
  return row;
}

void add(StepTimes& sum, const StepTimes& times, double factor) {
  const auto add_to = [factor](float& target, float value) {
    target = static_cast<float>(static_cast<double>(target) + factor * static_cast<double>(value));
  };
  for (std::size_t phase = 0; phase < step_phases; ++phase)
    add_to(sum.spent_ms[phase], times.spent_ms[phase]);
  add_to(sum.waited_ms, times.waited_ms);
}

// Makes one row of each two neighbours.
void thin_out(std::vector<RankTimesRow>& rows) {
  std::vector<RankTimesRow> fewer;
  for (std::size_t i = 0; i < rows.size(); i += 2) {
    if (i + 1 == rows.size()) {
      fewer.push_back(std::move(rows[i]));
      break;
    }
    RankTimesRow both{.first_step = rows[i].first_step,
                      .last_step = std::max(rows[i].last_step, rows[i + 1].last_step),
                      .mean = std::vector<StepTimes>(rows[i].mean.size())};
    const auto first = static_cast<double>(rows[i].steps()),
               second = static_cast<double>(rows[i + 1].steps());
    for (std::size_t rank = 0; rank < both.mean.size(); ++rank) {
      add(both.mean[rank], rows[i].mean[rank], first / (first + second));
      add(both.mean[rank], rows[i + 1].mean[rank], second / (first + second));
    }
    fewer.push_back(std::move(both));
  }
  rows = std::move(fewer);
}

}  // namespace

std::vector<RankTimesEpoch> parse_rank_times(std::string_view text) {
  std::vector<RankTimesEpoch> epochs;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find("\"ranks\"") != std::string_view::npos) {
      Result<RanksLine> ranks = record_from_text<RanksLine>(std::string(line));
      if (ranks.ok()) epochs.push_back({.ranks = std::move(ranks->ranks)});
      continue;
    }
    const Json json = Json::parse_any(line);
    if (epochs.empty() || !json.is_object()) continue;
    if (std::optional<RankTimesRow> row = row_of(json, epochs.back().ranks.size()))
      epochs.back().rows.push_back(*std::move(row));
  }
  return epochs;
}

std::vector<RankTimesEpoch> read_rank_times(Env& env, const std::string& path) {
  return parse_rank_times(text_within_or_empty(env, path, file_bytes_max));
}

std::vector<double> ratios_to_peers(const RankTimesEpoch& epoch, const RankTimesRow& row) {
  std::vector<double> ratios(epoch.ranks.size());
  const auto own = [&](std::size_t rank) {
    return row.mean[rank].own_ms() / std::max(epoch.ranks[rank].weight, 1e-9);
  };
  std::vector<double> of_others;
  for (std::size_t rank = 0; rank < ratios.size(); ++rank) {
    of_others.clear();
    for (std::size_t other = 0; other < ratios.size(); ++other)
      if (other != rank && epoch.ranks[other].group == epoch.ranks[rank].group)
        of_others.push_back(own(other));
    if (of_others.empty()) continue;
    std::ranges::sort(of_others);
    const std::size_t middle = of_others.size() / 2;
    const double median =
        of_others.size() % 2 == 1 ? of_others[middle] : 0.5 * (of_others[middle - 1] + of_others[middle]);
    if (median > 0.0) ratios[rank] = own(rank) / median;
  }
  return ratios;
}

std::optional<RankTimesRow> RowBuilder::add(std::uint64_t step, std::span<const StepTimes> times,
                                            double seconds) {
  if (count_ == 0) first_step_ = step;
  last_step_ = step;
  ++count_;
  seconds_ += seconds;
  for (std::size_t rank = 0; rank < sums_.size(); ++rank) health::add(sums_[rank], times[rank], 1.0);
  return seconds_ < row_seconds ? std::nullopt : finish();
}

std::optional<RankTimesRow> RowBuilder::finish() {
  if (count_ == 0) return std::nullopt;
  RankTimesRow row{.first_step = first_step_, .last_step = last_step_};
  for (const StepTimes& sum : sums_) {
    health::add(row.mean.emplace_back(), sum, 1.0 / static_cast<double>(count_));
  }
  std::ranges::fill(sums_, StepTimes{});
  count_ = 0;
  seconds_ = 0.0;
  return row;
}

// Reads what earlier starts have left, and ends with a line of these ranks.
void RankTimesFile::begin() {
  epochs_ = read_rank_times(*env_, path_);
  if (epochs_.size() >= epochs_max)
    epochs_.erase(epochs_.begin(), epochs_.end() - static_cast<std::ptrdiff_t>(epochs_max) + 1);
  epochs_.push_back({.ranks = ranks_});
  static_cast<void>(env_->replace_text(path_, text_of(epochs_)).ok());
}

void RankTimesFile::add(RankTimesRow row) {
  if (epochs_.empty()) begin();
  epochs_.back().rows.push_back(std::move(row));
  std::size_t rows = 0;
  for (const RankTimesEpoch& epoch : epochs_) rows += epoch.rows.size();
  if (rows <= rows_max(ranks_.size())) {
    static_cast<void>(env_->append_line(path_, line_of(epochs_.back().rows.back())).ok());
    return;
  }
  for (RankTimesEpoch& epoch : epochs_) thin_out(epoch.rows);
  static_cast<void>(env_->replace_text(path_, text_of(epochs_)).ok());
}

}  // namespace holdfast::health
