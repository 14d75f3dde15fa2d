#include "runtime/report/numbers_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <map>

#include "runtime/report/report_page.h"

namespace holdfast::report {

const std::string_view numbers_style = R"css(
.verdict-none { color: var(--soft); } .verdict-redo { color: var(--info); } .verdict-clip { color: var(--warn); }
.verdict-skip { color: var(--held); } .verdict-rollback, .verdict-evict, .verdict-stop { color: var(--bad); }
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
constexpr std::array<ActionStyle, 7> styles = {{
    {name_of(VerdictAction::none), "verdict-none", "told"},
    {name_of(VerdictAction::redo), "verdict-redo", "computed again"},
    {name_of(VerdictAction::clip), "verdict-clip", "clipped"},
    {name_of(VerdictAction::skip), "verdict-skip", "skipped"},
    {name_of(VerdictAction::rollback), "verdict-rollback", "went back"},
    {name_of(VerdictAction::evict), "verdict-evict", "rank left out"},
    {name_of(VerdictAction::stop), "verdict-stop", "run ended"},
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

}  // namespace holdfast::report
