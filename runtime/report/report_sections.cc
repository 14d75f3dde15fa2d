#include "runtime/report/report_sections.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <iterator>
#include <map>

#include "runtime/core/units.h"
#include "runtime/report/report_page.h"

namespace holdfast::report {

const std::string_view fault_style = R"css(
.span { fill: currentColor; }
.use-training { color: var(--train); opacity: 0.55; } .use-lost { color: var(--bad); opacity: 0.75; }
.use-recovery { color: var(--good); } .use-restart { color: var(--warn); }
.use-start-up { color: var(--faint); } .use-other { color: var(--axis); } .use-paused { color: var(--grid); }
.use-saving, .use-evaluation { color: var(--axis); } .use-waiting { color: var(--warn); opacity: 0.6; }
.use-straggling, .use-data, .use-checking { color: var(--bad); opacity: 0.4; }
.legend i[class^="use-"] { border-top-width: 8px; }
.save-tick { stroke: var(--faint); stroke-width: 1; } .fault-tick { stroke: var(--bad); stroke-width: 1.5; }
.fault-dot { fill: var(--bad); stroke: var(--card); stroke-width: 1; }
)css";

namespace {

constexpr double width = 1040.0, left = 8.0, right = 8.0;
constexpr double bar_top = 22.0, bar_height = 40.0, axis_top = 74.0, height = 96.0;
constexpr double narrowest = 1.0;          // that can be seen
constexpr std::size_t drawn_max = 4'000;   // of each kind of mark
constexpr std::size_t faults_shown = 500;  // rows of the table

constexpr std::array<std::string_view, span_uses> classes = {
    "use-training",   "use-lost",   "use-recovery", "use-restart",    "use-start-up",
    "use-other",      "use-paused", "use-saving",   "use-evaluation", "use-waiting",
    "use-straggling", "use-data",   "use-checking"};
std::string_view class_of(SpanUse use) {
  return classes[static_cast<std::size_t>(use)];
}

std::string shown_microseconds(std::int64_t time_us) {
  return shown_seconds(static_cast<double>(time_us) / 1e6);
}

class Picture {
 public:
  explicit Picture(const IncidentLog& ledger) : ledger_(&ledger) {}

  std::string draw() {
    text_ = fmt::format(
        "<svg class=\"chart\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"Where the time of the "
        "run went\">\n",
        width, height);
    draw_spans();
    draw_saves();
    draw_faults();
    draw_axis();
    return text_ + "</svg>\n";
  }

 private:
  double x_of(std::int64_t time_us) const {
    const auto wall_us =
        static_cast<double>(std::max<std::int64_t>(ledger_->end_us() - ledger_->begin_us(), 1));
    const double share = static_cast<double>(time_us - ledger_->begin_us()) / wall_us;
    return left + std::clamp(share, 0.0, 1.0) * (width - left - right);
  }

  // Training below, all else above it, so that what is short can be seen.
  void draw_spans() {
    rectangle({.use = SpanUse::training, .begin_us = ledger_->begin_us(), .end_us = ledger_->end_us()}, "");
    std::size_t drawn = 0;
    for (const GoodputSpan& span : ledger_->spans) {
      if (span.use == SpanUse::training) continue;
      const bool visible = x_of(span.end_us) - x_of(span.begin_us) >= narrowest / 4;
      const bool reported = span.use == SpanUse::recovery || span.use == SpanUse::restart;
      if ((visible || reported) && ++drawn <= drawn_max) {
        rectangle(span,
                  fmt::format("{}: {}", name_of(span.use), shown_microseconds(span.end_us - span.begin_us)));
      }
    }
  }

  void rectangle(const GoodputSpan& span, const std::string& title) {
    const double begin = x_of(span.begin_us);
    const double wide = std::max(x_of(span.end_us) - begin, narrowest);
    if (span.use != SpanUse::training) {  // not through what is below
      text_ +=
          fmt::format("<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"var(--card)\"/>",
                      begin, bar_top, wide, bar_height);
    }
    text_ += fmt::format("<rect class=\"span {}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\">",
                         class_of(span.use), begin, bar_top, wide, bar_height);
    if (!title.empty()) text_ += fmt::format("<title>{}</title>", escape_html(title));
    text_ += "</rect>\n";
  }

  void draw_saves() {
    const std::size_t skip = ledger_->saves.size() / drawn_max + 1;
    for (std::size_t i = 0; i < ledger_->saves.size(); i += skip) {
      const IncidentSave& save = ledger_->saves[i];
      const double x = x_of(save.time_us);
      text_ += fmt::format(
          "<line class=\"save-tick\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" y2=\"{2}\"><title>checkpoint "
          "of step "
          "{3}</title></line>\n",
          x, bar_top + bar_height + 2, bar_top + bar_height + 8, save.step);
    }
  }

  void draw_faults() {
    std::size_t drawn = 0;
    for (const FaultEntry& fault : ledger_->faults) {
      if (++drawn > drawn_max) break;
      const double x = x_of(fault.time_us);
      const std::string title = fmt::format("{}{}{}", fault.who.empty() ? fault.noticed : fault.who,
                                            fault.action.empty() ? "" : ": ", fault.action);
      text_ += fmt::format(
          "<g><title>{0}</title><line class=\"fault-tick\" x1=\"{1:.2f}\" x2=\"{1:.2f}\" y1=\"10\" "
          "y2=\"{2}\"/><circle "
          "class=\"fault-dot\" cx=\"{1:.2f}\" cy=\"10\" r=\"4\"/></g>\n",
          escape_html(title), x, bar_top + bar_height);
    }
  }

  void draw_axis() {
    const std::int64_t wall_ms = (ledger_->end_us() - ledger_->begin_us()) / 1000;
    for (const std::int64_t at_ms : time_ticks_ms(wall_ms)) {
      const double x = x_of(ledger_->begin_us() + at_ms * 1000);
      text_ += fmt::format(
          "<line class=\"axis\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" y2=\"{2}\"/><text class=\"tick\" "
          "x=\"{0:.2f}\" "
          "y=\"{3}\" text-anchor=\"{4}\">{5}</text>\n",
          x, axis_top, axis_top + 4, axis_top + 17, at_ms == 0 ? "start" : "middle", format_duration(at_ms));
    }
  }

  const IncidentLog* ledger_;
  std::string text_;
};

std::string level_words(FaultLevel level) {
  constexpr std::array<std::string_view, 5> words = {"beside training", "in place", "another start",
                                                     "another launch", "not mended"};
  return std::string(words[static_cast<std::size_t>(level)]);
}

std::string parts_of(const FaultEntry& fault) {
  std::string text;
  const auto add = [&](std::string_view name, double part_ms) {
    if (part_ms > 0.0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, shown_seconds(part_ms / 1e3));
  };
  add("shrink", fault.shrink_ms);
  add("plan", fault.plan_ms);
  add("load", fault.load_ms);
  add("first step", fault.replay_ms);
  return text;
}

std::string fault_rows(const IncidentLog& ledger, std::size_t count) {
  std::string rows;
  std::size_t number = ledger.faults.size();
  for (auto fault = ledger.faults.rbegin();
       fault != ledger.faults.rbegin() + static_cast<std::ptrdiff_t>(count); ++fault, --number) {
    const std::time_t seconds = fault->time_us / 1'000'000;
    const std::string parts = parts_of(*fault);
    fmt::format_to(std::back_inserter(rows),
                   "<tr><td class=\"number\">{}</td><td class=\"time\">{:%Y-%m-%d %H:%M:%S}</td><td "
                   "class=\"number\">{}</td><td>{}</td><td class=\"details\">{}</td><td "
                   "class=\"name\">{}</td><td class=\"details\">{}</td><td "
                   "class=\"number\" "
                   "title=\"{}\">{}</td></tr>\n",
                   number, fmt::gmtime(seconds), fault->step, escape_html(fault->who),
                   escape_html(fault->noticed), level_words(fault->level), escape_html(fault->action), parts,
                   fault->pause_s() > 0.0 ? shown_seconds(fault->pause_s()) : "–");
  }
  return rows;
}

}  // namespace

std::string time_section(const IncidentLog& ledger, std::string_view title, std::string_view remark) {
  std::string legend;
  for (std::size_t i = 0; i < span_uses; ++i) {
    const auto use = static_cast<SpanUse>(i);
    if (const std::int64_t time_us = ledger.time_us(use); time_us > 0) {
      legend += legend_entry(classes[i], fmt::format("{} {}", name_of(use), shown_microseconds(time_us)));
    }
  }
  return card(title, "", legend,
              fmt::format("{}<p>{}Dots are faults, ticks below are checkpoints.</p>\n",
                          Picture(ledger).draw(), remark));
}

std::string faults_section(const IncidentLog& ledger) {
  if (ledger.spans.empty()) return "";
  const std::string money = money_sentence(ledger.rank_times_us, ledger.price);
  const std::string cost = money.empty() ? "" : fmt::format("Cost: {}. ", escape_html(money));
  const std::size_t count = std::min(ledger.faults.size(), faults_shown);
  const std::string remark =
      count < ledger.faults.size()
          ? fmt::format("the last {} of {}, newest first", count, ledger.faults.size())
          : fmt::format("{}newest first", ledger.disturbed() ? summary_of(ledger) + "; " : "");
  const std::string definition = fmt::format(
      "Effective training time {}: the time of the steps that count (of one that was computed again, the "
      "last "
      "time) "
      "over the wall time since the first start without pauses, {}. {}",
      percent(ledger.effective_ratio()),
      shown_microseconds(ledger.end_us() - ledger.begin_us() - ledger.time_us(SpanUse::paused)), cost);
  const std::string times = time_section(ledger, "Where the time went", definition);
  if (ledger.faults.empty()) return times;
  return times +
         card(
             "Faults", escape_html(remark), "",
             table("<tr><th class=\"number\">#</th><th>noticed (UTC)</th><th class=\"number\">after step</th>"
                   "<th>who</th><th>how it was noticed</th><th>mended</th><th>what was done</th><th "
                   "class=\"number\">until the next step</th></tr>\n" +
                   fault_rows(ledger, count)));
}

const std::string_view numbers_style = R"css(
.verdict-none { color: var(--soft); } .verdict-redo { color: var(--info); } .verdict-clip { color: var(--warn); }
.verdict-skip { color: var(--held); } .verdict-rollback, .verdict-evict, .verdict-stop, .verdict-save_and_stop { color: var(--bad); }
.legend i[class^="verdict-"] { width: 8px; height: 8px; border: 0; border-radius: 50%; background: currentColor; }
.marker[class*="verdict-"] line { stroke-width: 1; opacity: 0.6; }
.hardware { margin-top: 14px; }
)css";

namespace {

constexpr std::size_t verdicts_shown = 500;         // rows of the table
constexpr std::size_t verdict_markers_shown = 200;  // of each action, the last ones

// ActionStyle says how an action is shown. The first is also for one that this version does not know.
struct ActionStyle {
  std::string_view action, css_class, words;
};
constexpr std::array<ActionStyle, 8> styles = {{
    {name_of(VerdictAction::none), "verdict-none", "told"},
    {name_of(VerdictAction::redo), "verdict-redo", "computed again"},
    {name_of(VerdictAction::clip), "verdict-clip", "clipped"},
    {name_of(VerdictAction::skip), "verdict-skip", "skipped"},
    {name_of(VerdictAction::rollback), "verdict-rollback", "went back"},
    {name_of(VerdictAction::evict), "verdict-evict", "rank left out"},
    {name_of(VerdictAction::stop), "verdict-stop", "run ended"},
    {name_of(VerdictAction::save_and_stop), "verdict-save_and_stop", "saved, run ended"},
}};

const ActionStyle* style_of(std::string_view action) {
  const auto* const found = std::ranges::find(styles, action, &ActionStyle::action);
  return found == styles.end() ? nullptr : found;
}
std::string_view class_of(const VerdictEvent& verdict) {
  const ActionStyle* const style = style_of(verdict.action);
  return style == nullptr ? styles[0].css_class : style->css_class;
}
std::string action_of(const VerdictEvent& verdict) {
  const ActionStyle* const style = style_of(verdict.action);
  return style == nullptr ? verdict.action : std::string(style->words);
}

std::string who_of(const VerdictEvent& verdict) {
  if (verdict.rank.has_value()) return rank_of(verdict);
  if (!verdict.lane.has_value()) return "–";
  return fmt::format(
      "lane {}{}", *verdict.lane,
      verdict.microbatch.has_value() ? fmt::format(", microbatch {}", *verdict.microbatch) : std::string());
}

std::string verdict_rows(const NumbersLog& numbers, std::size_t count) {
  std::string rows;
  for (auto verdict = numbers.verdicts.rbegin();
       verdict != numbers.verdicts.rbegin() + static_cast<std::ptrdiff_t>(count); ++verdict) {
    fmt::format_to(std::back_inserter(rows),
                   "<tr>{}<td class=\"name\">{}</td><td class=\"name {}\">{}</td><td>{}</td><td "
                   "class=\"details\">{}</td></tr>\n",
                   number_cell(std::to_string(verdict->step)), escape_html(verdict->what), class_of(*verdict),
                   escape_html(action_of(*verdict)), escape_html(who_of(*verdict)),
                   escape_html(verdict->reason));
  }
  return rows;
}

std::string hardware_table(const std::vector<SuspectHardware>& records) {
  if (records.empty()) return "";
  std::string rows;
  for (const SuspectHardware& record : records) {
    fmt::format_to(std::back_inserter(rows),
                   "<tr><td class=\"name\">{}</td>{}{}<td>{}</td><td>{}</td><td>{}</td></tr>\n",
                   record.host.empty() ? "not known" : escape_html(record.host),
                   number_cell(record.rank.has_value() ? std::to_string(*record.rank) : "–"),
                   number_cell(std::to_string(record.findings())),
                   record.computed_steps.empty() ? "–" : list_of(record.computed_steps),
                   record.memory_steps.empty() ? "–" : list_of(record.memory_steps),
                   record.link_steps.empty() ? "–" : list_of(record.link_steps));
  }
  return "<div class=\"hardware\">" +
         table("<tr><th>host</th>" + number_head("rank") + number_head("findings of hardware") +
               "<th>computed wrong numbers at step</th><th>memory changed at step</th><th>links changed "
               "gradients at "
               "step</th></tr>\n" +
               rows) +
         "</div>\n";
}

}  // namespace

std::string numbers_section(const NumbersLog& numbers) {
  if (numbers.verdicts.empty()) return "";
  const std::size_t all = numbers.verdicts.size(), count = std::min(all, verdicts_shown);
  std::string remark = summary_of(numbers);
  if (const std::size_t compared = numbers.compared_steps(); compared > 0) {
    remark += fmt::format("{}{} step{} computed again to compare the bits", remark.empty() ? "" : "; ",
                          compared, compared == 1 ? "" : "s");
  }
  remark += remark.empty() ? "" : "; ";
  remark += count < all ? fmt::format("the last {} of {}, newest first", count, all) : "newest first";
  return card(
      "Numbers", escape_html(remark), "",
      table("<tr>" + number_head("step") + "<th>kind</th><th>action</th><th>who</th><th>why</th></tr>\n" +
            verdict_rows(numbers, count)) +
          hardware_table(numbers.hardware()));
}

std::vector<ChartMarker> verdict_markers(const NumbersLog& numbers) {
  std::vector<ChartMarker> markers;
  std::map<std::string_view, std::size_t> counts;
  for (auto verdict = numbers.verdicts.rbegin(); verdict != numbers.verdicts.rend(); ++verdict) {
    const std::string_view css_class = class_of(*verdict);
    if (++counts[css_class] > verdict_markers_shown) continue;
    markers.push_back({.x = static_cast<double>(verdict->step),
                       .css_class = std::string(css_class),
                       .title = fmt::format("{} at step {}: {}\n{}", verdict->what, verdict->step,
                                            action_of(*verdict), verdict->reason),
                       .dot = true});
  }
  return markers;
}

std::string verdict_legend(const std::vector<ChartMarker>& markers) {
  std::string legend;
  for (const ActionStyle& style : styles) {
    if (std::ranges::find(markers, style.css_class, &ChartMarker::css_class) != markers.end())
      legend += legend_entry(style.css_class, style.words);
  }
  return legend;
}

const std::string_view ranks_style = R"css(
.heat-0 { color: var(--grid); } .heat-1 { color: var(--warn); opacity: 0.45; } .heat-2 { color: var(--held); opacity: 0.7; }
.heat-3 { color: var(--bad); opacity: 0.75; } .heat-4 { color: var(--bad); }
.legend i[class^="heat-"] { border-top-width: 8px; }
)css";

namespace {

constexpr std::array heat_from = {0.0, 1.1, 1.25, 1.5, 2.0};  // own time by that of the peers
constexpr std::size_t heat_cells_max = 20'000, heat_ranks_max = 512;

// Returns by how much each rank of the epoch is slower than its peers in each row; of a rank without peers, than it
// usually is.
std::vector<std::vector<double>> heat_of(const RankTimesEpoch& epoch) {
  std::vector<std::vector<double>> heat;
  for (const RankTimesRow& row : epoch.rows) heat.push_back(ratios_to_peers(epoch, row));
  for (std::size_t rank = 0; rank < epoch.ranks.size(); ++rank) {
    if (heat.empty() || heat[0][rank] > 0.0) continue;
    std::vector<double> own;
    for (const RankTimesRow& row : epoch.rows) own.push_back(row.mean[rank].own_ms());
    std::ranges::sort(own);
    const double usual = own[own.size() / 2];
    for (std::size_t row = 0; row < heat.size() && usual > 0.0; ++row)
      heat[row][rank] = epoch.rows[row].mean[rank].own_ms() / usual;
  }
  return heat;
}

std::size_t heat_class(double ratio) {
  const auto above = std::ranges::upper_bound(heat_from, ratio);
  return above == heat_from.begin() ? 0 : static_cast<std::size_t>(above - heat_from.begin()) - 1;
}

// Draws the ranks of one epoch, a line each, over its steps. Of many rows or ranks some are left out.
std::string heat_map(const RankTimesEpoch& epoch) {
  constexpr double label = 60.0, top = 4.0;
  const std::size_t ranks = std::min(epoch.ranks.size(), heat_ranks_max);
  const std::size_t every = std::max<std::size_t>(1, epoch.rows.size() * ranks / heat_cells_max + 1);
  const double line = ranks <= 32 ? 16.0 : 6.0;
  const std::uint64_t first = epoch.rows.front().first_step;
  const double scale = (width - label - right) / static_cast<double>(epoch.rows.back().last_step - first + 1);
  const std::vector<std::vector<double>> heat = heat_of(epoch);
  std::string svg = fmt::format(
      "<svg class=\"chart\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"Ranks over steps\">\n",
      width, top + line * static_cast<double>(ranks) + 20.0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const double y = top + line * static_cast<double>(rank);
    if (line > 10.0)
      fmt::format_to(std::back_inserter(svg), "<text class=\"tick\" x=\"0\" y=\"{:.1f}\">rank {}</text>\n",
                     y + 12.0, epoch.ranks[rank].rank);
    for (std::size_t row = 0; row < epoch.rows.size(); row += every) {
      const RankTimesRow& each = epoch.rows[row];
      const std::uint64_t last = epoch.rows[std::min(row + every, epoch.rows.size()) - 1].last_step;
      fmt::format_to(std::back_inserter(svg),
                     "<rect class=\"span heat-{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
                     "height=\"{:.1f}\"><title>rank {} "
                     "({}), steps {} to {}: {:.2f}</title></rect>\n",
                     heat_class(heat[row][rank]),
                     label + scale * static_cast<double>(each.first_step - first), y,
                     std::max(narrowest, scale * static_cast<double>(last - each.first_step + 1)), line - 1.0,
                     epoch.ranks[rank].rank, escape_html(epoch.ranks[rank].host), each.first_step, last,
                     heat[row][rank]);
    }
  }
  return svg + fmt::format("<text class=\"tick\" x=\"{}\" y=\"{:.1f}\">steps {} to {}</text>\n</svg>\n",
                           label, top + line * static_cast<double>(ranks) + 14.0, first,
                           epoch.rows.back().last_step);
}

}  // namespace

std::string ranks_section(const StragglerLog& log, const std::vector<RankTimesEpoch>& epochs) {
  std::string body;
  for (const StragglerEvent& each : log.found)
    body += fmt::format("<p class=\"fault\">{}</p>\n", escape_html(each.reason));
  for (const RankTimesEpoch& epoch : epochs)
    if (!epoch.rows.empty() && epoch.rows.back().last_step >= epoch.rows.front().first_step)
      body += heat_map(epoch);
  if (body.empty()) return "";
  std::string legend;
  for (std::size_t i = 0; i < heat_from.size(); ++i)
    legend += legend_entry(fmt::format("heat-{}", i),
                           i == 0 ? "as its peers" : fmt::format("from {} times", heat_from[i]));
  return card("Ranks", "own time of a step by that of the ranks that do the same", legend, body);
}

}  // namespace holdfast::report
