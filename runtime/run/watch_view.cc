#include "runtime/run/watch_view.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "runtime/core/median.h"
#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/hardware_record.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {
namespace {

enum class Tone : std::uint8_t { plain, title, good, bad, faint };

struct ToneText {
  Tone tone = Tone::plain;
  std::string text = {};
};

std::string_view code_of(Tone tone) {
  switch (tone) {
    case Tone::plain:
      return "";
    case Tone::title:
      return "\x1b[1m";
    case Tone::good:
      return "\x1b[32m";
    case Tone::bad:
      return "\x1b[31m";
    case Tone::faint:
      return "\x1b[2m";
  }
  return "";
}

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U;
}

// Returns the text for a terminal: one line, in which nothing is an instruction to it.
std::string shown(std::string text) {
  std::ranges::replace_if(
      text, [](char letter) { return letter == '\t' || letter == '\n'; }, ' ');
  return printable(text);
}

ToneText head_of(const RunSummary& run) {
  if (run.holder.has_value())
    return {Tone::title, fmt::format("{}  {}, {}", run.directory, run.status.state, *run.holder)};
  if (!run.holder_unknown.empty())
    return {Tone::title, fmt::format("{}  {}", run.directory, run.holder_unknown)};
  const bool is_well = run.status.state == "finished" || run.status.state == "saved";
  const std::string how = run.status.state == "running" ? "nobody has it: its last start was killed"
                          : run.status.reason.empty()   ? run.status.state
                                                        : run.status.state + ": " + run.status.reason;
  return {is_well ? Tone::good : Tone::bad, fmt::format("{}  {}", run.directory, how)};
}

std::string bar_of(double share) {
  constexpr int cells = 24;
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * cells));
  return "[" + std::string(static_cast<std::size_t>(full), '#') +
         std::string(static_cast<std::size_t>(cells - full), '.') + "]";
}

std::string step_text(const RunSummary& run, std::int64_t now_us) {
  if (!run.newest.has_value()) return "step      none has been made";
  const RunSummary::Step& step = *run.newest;
  std::string text = fmt::format("step      {}", step.step);
  if (run.steps > 0) {
    const double share = static_cast<double>(step.step) / static_cast<double>(run.steps);
    text += fmt::format(" of {}  {} {:.1f} %", run.steps, bar_of(share), 100.0 * share);
  }
  text += fmt::format(
      "  {} ago", left_text(static_cast<double>(std::max<std::int64_t>(now_us - step.time_us, 0)) * 1e-6));
  if (const auto left = run.seconds_left(); left.has_value() && *left > 0.0)
    text += fmt::format("  {} left", left_text(*left));
  return text;
}

std::string numbers_text(const RunSummary::Step& step) {
  std::string text =
      std::isfinite(step.loss) ? fmt::format("loss {:.4f}", step.loss) : std::string("no finite loss");
  if (std::isfinite(step.gradient_norm)) text += fmt::format("  gradient norm {:.4g}", step.gradient_norm);
  if (std::isfinite(step.learning_rate)) text += fmt::format("  learning rate {:.3g}", step.learning_rate);
  if (step.mfu.has_value()) text += fmt::format("  MFU {:.1f} %", 100.0 * *step.mfu);
  return fmt::format("numbers   {}  {:.0f} tokens/s", text, step.tokens_per_second);
}

// Compares the newest steps with those of the first hour.
std::optional<ToneText> rate_of(const RunSummary& run) {
  const std::optional<double> usual = run.early_step_seconds();
  if (run.recent.empty() || !usual.has_value()) return std::nullopt;
  std::vector<double> recent_ms;
  for (const RunSummary::Step& step : run.recent) recent_ms.push_back(step.milliseconds);
  std::erase_if(recent_ms, [](double each) { return !std::isfinite(each); });
  if (recent_ms.empty()) return std::nullopt;
  const double now = take_median(recent_ms) * 1e-3, change = now / std::max(*usual, 1e-9) - 1.0;
  constexpr double notable = 0.1;  // HoldfastSlower of configs/prometheus
  const std::string beside =
      std::fabs(change) < 0.01
          ? std::string("as")
          : fmt::format("{:.0f} % {} than", 100.0 * std::fabs(change), change > 0 ? "slower" : "faster");
  return ToneText{change > notable ? Tone::bad : Tone::plain,
                  fmt::format("rate      a step takes {}, {} in the first hour ({})", format_seconds(now),
                              beside, format_seconds(*usual))};
}

std::string work_text(const std::optional<double>& milliseconds) {
  return milliseconds.has_value() ? "up to " + format_seconds(*milliseconds * 1e-3) : std::string("all");
}

// Says what is lost with the job now, by the steps since the newest checkpoint, and what it may be at most by tier.
std::string exposure_text(const RunSummary& run) {
  std::string text = "exposed   ";
  if (const auto seconds = run.exposed_seconds(); seconds.has_value()) {
    text += fmt::format("{} of work in no checkpoint; ", left_text(*seconds));
  } else if (run.newest.has_value() && !run.checkpoint.has_value()) {
    text += "all work is in no checkpoint; ";
  }
  if (!run.cost.has_value()) return text + "what a failure costs is not known yet";
  return text + fmt::format("a failure costs of a process {}, of a host {}, of the job {}",
                            work_text(run.cost->process_ms), work_text(run.cost->host_ms),
                            work_text(run.cost->job_ms));
}

// Breaks a list at its commas into lines of so many columns; 0: no limit.
std::vector<ToneText> broken(std::string_view text, int columns) {
  constexpr std::string_view indent = "          ";
  std::vector<ToneText> lines;
  std::string line;
  while (!text.empty()) {
    const std::size_t comma = text.find(", ");
    const std::string_view part = text.substr(0, comma == std::string_view::npos ? comma : comma + 2);
    const bool is_full = columns > 0 && !line.empty() && std::ssize(line) + std::ssize(part) > columns + 1;
    if (is_full) lines.push_back({Tone::plain, std::exchange(line, std::string(indent))});
    line += part;
    text.remove_prefix(part.size());
  }
  lines.push_back({Tone::plain, std::move(line)});
  return lines;
}

std::string saves_text(const RunSummary& run, std::int64_t now_us) {
  std::string text;
  const auto add = [&](std::string_view where, const std::optional<RunSummary::SavedStep>& saved) {
    if (!saved.has_value()) return;
    const double age = static_cast<double>(std::max<std::int64_t>(now_us - saved->time_us, 0)) * 1e-6;
    text += fmt::format("{}{} step {}, {} ago", text.empty() ? "" : "; ", where, saved->step, left_text(age));
  };
  add("on disk", run.checkpoint);
  add("in RAM, with replicas,", run.snapshot);
  if (run.free_bytes.has_value())
    text += fmt::format("{}{} free", text.empty() ? "" : "; ", format_bytes(*run.free_bytes));
  return "saved     " + (text.empty() ? "nothing" : text);
}

// A rank as the board of this host or the file of the times shows it.
struct RankRow {
  int rank = -1;
  std::string host = {}, does = {};
  double waits_seconds = 0.0;
  std::optional<double> waited_share = {};
};

std::vector<RankRow> rank_rows(const RunSummary& run) {
  std::vector<RankRow> rows;
  const auto row_of = [&](int rank) -> RankRow& {
    const auto found = std::ranges::find(rows, rank, &RankRow::rank);
    if (found != rows.end()) return *found;
    rows.push_back({.rank = rank});
    return rows.back();
  };
  for (const RunSummary::Rank& rank : run.here) {
    RankRow& row = row_of(rank.rank);
    row.host = run.own_host;
    row.does = rank.does;
    row.waits_seconds = rank.waits_seconds.value_or(0.0);
  }
  for (const RunSummary::RankTime& times : run.times) {
    if (run.here.empty() && !run.holder.has_value()) break;  // nobody computes
    RankRow& row = row_of(times.rank);
    row.host = times.host;
    const double whole_ms = times.own_ms + times.waited_ms;
    if (whole_ms > 0.0) row.waited_share = times.waited_ms / whole_ms;
  }
  std::ranges::sort(rows, {}, &RankRow::rank);
  return rows;
}

ToneText line_of(const RankRow& row) {
  const std::string waited =
      row.waited_share.has_value() ? fmt::format("{:.0f} %", 100.0 * *row.waited_share) : "";
  return {Tone::plain, fmt::format("  {:>5}  {:<16} {:>8}  {}", row.rank, cut_to(row.host, 16), waited,
                                   row.does.empty() ? "on another host" : row.does)};
}

void add_ranks(const RunSummary& run, std::size_t room, std::vector<ToneText>& lines) {
  std::vector<RankRow> rows = rank_rows(run);
  if (rows.empty()) return;
  lines.push_back({Tone::faint, fmt::format("  {:>5}  {:<16} {:>8}  {}", "rank", "host", "waits", "now")});
  const std::size_t all = rows.size();
  if (all > room) {
    std::ranges::stable_sort(rows, std::ranges::greater(), &RankRow::waits_seconds);
    rows.resize(room > 0 ? room - 1 : 0);
    std::ranges::sort(rows, {}, &RankRow::rank);
  }
  for (const RankRow& row : rows) lines.push_back(line_of(row));
  if (rows.size() < all)
    lines.push_back(
        {Tone::faint, fmt::format("         and {} more, which wait for less long", all - rows.size())});
}

ToneText line_of(const News& news) {
  const bool is_bad = news.kind == FaultEvent::kind || news.kind == VerdictEvent::kind;
  return {is_bad                             ? Tone::bad
          : news.kind == RecoveryEvent::kind ? Tone::good
                                             : Tone::plain,
          fmt::format("  {}  step {:<7} {}{}", time_text(news.time_us).substr(11, 8), news.step,
                      news.cause.empty() ? "" : news.cause + ": ", news.sentence)};
}

}  // namespace

std::string cut_to(std::string_view text, int columns) {
  int count = 0;
  std::size_t end = 0;  // of what is shown if the text is too long
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!begins_character(text[i])) continue;
    if (count == columns - 1) end = i;
    if (++count > columns) return std::string(text.substr(0, end)) + "~";
  }
  return std::string(text);
}

std::vector<std::string> watch_lines(const RunSummary& run, std::int64_t now_us, const WatchLook& look) {
  std::vector<ToneText> lines = {head_of(run), {Tone::plain, step_text(run, now_us)}};
  if (!run.log_unreadable.empty()) lines.push_back({Tone::bad, "log       " + run.log_unreadable});
  if (run.newest.has_value()) lines.push_back({Tone::plain, numbers_text(*run.newest)});
  if (std::optional<ToneText> rate = rate_of(run); rate.has_value()) lines.push_back(*std::move(rate));
  for (ToneText& line : broken("time      " + time_sentence(run.incidents.times_us()), look.columns))
    lines.push_back(std::move(line));
  if (const std::string money = money_sentence(run.incidents.rank_times_us(), run.incidents.price());
      !money.empty())
    for (ToneText& line : broken("cost      " + money, look.columns)) lines.push_back(std::move(line));
  if (run.holder.has_value()) lines.push_back({Tone::plain, exposure_text(run)});
  lines.push_back({Tone::plain, saves_text(run, now_us)});
  for (const HostRow& row : run.left_out)
    lines.push_back({Tone::bad, fmt::format("left out  {} {}: {}", row.host, row.state, row.reason)});
  const std::size_t told = run.told.empty() ? 0 : run.told.size() + 1;
  const std::size_t used = lines.size() + told + 1;
  const auto rows = static_cast<std::size_t>(std::max(look.rows, 0));
  add_ranks(run, look.rows <= 0 ? std::size_t{1} << 20 : rows > used ? rows - used : 0, lines);
  if (told > 0)
    lines.push_back({Tone::faint, fmt::format("lately (start {}, {} recover{})", run.starts, run.recoveries,
                                              run.recoveries == 1 ? "y" : "ies")});
  for (const News& news : run.told) lines.push_back(line_of(news));
  if (look.rows > 0 && lines.size() > rows) lines.resize(rows);
  std::vector<std::string> text;
  for (ToneText& line : lines) {
    std::string cut = shown(std::move(line.text));
    if (look.columns > 0) cut = cut_to(cut, look.columns);
    const std::string_view code = look.has_colors ? code_of(line.tone) : "";
    text.push_back(code.empty() ? cut : fmt::format("{}{}\x1b[0m", code, cut));
  }
  return text;
}

}  // namespace holdfast::run
