#include "runtime/report/incident_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <iterator>
#include <optional>
#include <span>

#include "runtime/core/units.h"
#include "runtime/os/span_recorder.h"
#include "runtime/report/report_page.h"
#include "runtime/report/report_sections.h"
#include "runtime/run/trace_file.h"
#include "watchdog/flight_merge.h"

namespace holdfast::report {
namespace {

constexpr double picture_width = 1040.0, label_width = 150.0, picture_right = 8.0, lane_height = 20.0,
                 picture_top = 4.0;
constexpr double narrowest_span = 0.8;          // that can be seen
constexpr std::size_t flight_ranks_shown = 64;  // lanes of the picture
constexpr std::size_t steps_before = 2;         // that the picture shows of what came before
constexpr std::size_t events_around_shown = 200;

const std::string_view incident_style = R"css(
.at-compute { color: var(--train); opacity: 0.75; } .at-wait { color: var(--bad); opacity: 0.45; }
.at-transfer { color: var(--held); opacity: 0.7; } .at-phase { color: var(--grid); } .at-ended { color: var(--faint); opacity: 0.35; }
.legend i[class^="at-"] { border-top-width: 8px; }
ul { margin: 4px 0 0; padding-left: 20px; } li { margin: 3px 0; overflow-wrap: anywhere; }
)css";

std::string clock_text(std::int64_t time_us) {
  const std::time_t whole_s = time_us / 1'000'000;
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03}", fmt::gmtime(whole_s), time_us / 1000 % 1000);
}

// Returns words of a sentence as HTML; what is between backticks is code.
std::string shown_words(std::string_view text) {
  std::string html;
  bool in_code = false;
  for (const char c : escape_html(text)) {
    if (c != '`') {
      html += c;
      continue;
    }
    in_code = !in_code;
    html += in_code ? "<code>" : "</code>";
  }
  return in_code ? html + "</code>" : html;
}

std::string list(const std::vector<std::string>& items) {
  std::string text = "<ul>\n";
  for (const std::string& item : items) text += fmt::format("<li>{}</li>\n", shown_words(item));
  return text + "</ul>\n";
}

SpanGroup group_named(const std::string& kind) {
  const std::optional<SpanKind> known = span_kind_named(kind);
  return known.has_value() ? group_of(*known) : SpanGroup::phase;
}

std::string_view class_of(SpanGroup group) {
  constexpr std::array<std::string_view, 4> classes = {"at-compute", "at-wait", "at-transfer", "at-phase"};
  return classes[static_cast<std::size_t>(group)];
}

bool has_ended(const FlightRecord& flight) {
  return flight.state == 'X' || flight.state == 'Z';
}

// FlightPicture draws what each rank was at before the records were taken, a line for each rank, on the clock of the wall.
class FlightPicture {
 public:
  explicit FlightPicture(const std::vector<FlightRecord>& flights) : flights_(flights) {
    for (const FlightRecord& flight : flights_) end_us_ = std::max(end_us_, flight.wall_time_us);
    begin_us_ = end_us_ - 1000;
    for (const FlightRecord& flight : flights_) begin_us_ = std::min(begin_us_, first_shown_us(flight));
  }

  std::string draw() {
    const std::size_t count = std::min(flights_.size(), flight_ranks_shown);
    const double height = picture_top + lane_height * static_cast<double>(count) + 22.0;
    std::string svg = fmt::format(
        "<svg class=\"chart\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"What each rank was "
        "at\">\n",
        picture_width, height);
    for (std::size_t i = 0; i < count; ++i)
      svg += draw_rank(flights_[i], picture_top + lane_height * static_cast<double>(i));
    for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const double at_s = static_cast<double>(end_us_ - begin_us_) / 1e6 * (share - 1.0);
      svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
                         label_width + share * (picture_width - label_width - picture_right), height - 5.0,
                         share < 1.0 ? "start" : "end",
                         share < 1.0 ? fmt::format("{:.3g} s", at_s) : "recorded");
    }
    return svg + "</svg>\n";
  }

 private:
  static std::int64_t wall_us(const FlightRecord& flight, std::int64_t time_ns) {
    return flight.wall_time_us + (time_ns - flight.now_ns) / 1000;
  }

  // Returns the begin of the last steps of a rank that was still in the run.
  std::int64_t first_shown_us(const FlightRecord& flight) const {
    if (has_ended(flight) && flight.now_ns - flight.slot.heartbeat_ns > 2'000'000'000) return end_us_;
    std::int64_t first_us = wall_us(flight, flight.slot.begun_ns);
    std::size_t steps = 0;
    for (auto span = flight.spans.rbegin(); span != flight.spans.rend() && steps < steps_before; ++span) {
      if (span->kind != name_of(SpanKind::step)) continue;
      ++steps;
      first_us = std::min(first_us, wall_us(flight, span->begin_ns));
    }
    return first_us;
  }

  double x_of(std::int64_t time_us) const {
    const double share = static_cast<double>(time_us - begin_us_) /
                         static_cast<double>(std::max<std::int64_t>(end_us_ - begin_us_, 1));
    return label_width + std::clamp(share, 0.0, 1.0) * (picture_width - label_width - picture_right);
  }

  std::string rectangle(std::string_view css_class, std::int64_t from_us, std::int64_t to_us, double y,
                        double high, const std::string& title) const {
    if (to_us < begin_us_) return "";
    const double x = x_of(from_us);
    return fmt::format(
        "<rect class=\"span {}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
        "height=\"{:.1f}\"><title>{}</title></rect>\n",
        css_class, x, y, std::max(narrowest_span, x_of(to_us) - x), high, escape_html(title));
  }

  std::string draw_rank(const FlightRecord& flight, double y) const {
    std::string text =
        fmt::format("<text class=\"tick\" x=\"0\" y=\"{:.1f}\">rank {} ({}){}</text>\n", y + 14.0,
                    flight.slot.launched_rank, escape_html(flight.host), has_ended(flight) ? " †" : "");
    if (has_ended(flight))
      text += rectangle("at-ended", wall_us(flight, flight.slot.heartbeat_ns), end_us_, y + 7.0, 4.0,
                        "its process has ended");
    // Phases of the host are below, what it waited for and computed above them.
    for (const bool phases : {true, false}) {
      for (const FlightSpan& span : flight.spans) {
        const SpanGroup group = group_named(span.kind);
        if ((group == SpanGroup::phase) != phases) continue;
        const bool goes_on = span.end_ns == 0;
        const std::int64_t end_us = goes_on && has_ended(flight) ? wall_us(flight, flight.slot.heartbeat_ns)
                                    : goes_on                    ? flight.wall_time_us
                                                                 : wall_us(flight, span.end_ns);
        const std::int64_t begin_us = wall_us(flight, span.begin_ns);
        text += rectangle(class_of(group), begin_us, end_us, y + (phases ? 2.0 : 4.0),
                          phases ? lane_height - 5.0 : lane_height - 9.0,
                          fmt::format("rank {}, step {}: {} for {}{}", flight.slot.launched_rank, span.step,
                                      span.kind, format_seconds(static_cast<double>(end_us - begin_us) / 1e6),
                                      goes_on ? ", not ended" : ""));
      }
    }
    return text;
  }

  const std::vector<FlightRecord>& flights_;
  std::int64_t begin_us_ = 0, end_us_ = 0;
};

std::string flight_section(const std::vector<FlightRecord>& flights) {
  if (flights.empty()) return "";
  const std::string legend = legend_entry("at-compute", "computes") + legend_entry("at-wait", "waits") +
                             legend_entry("at-transfer", "transfers") +
                             legend_entry("at-phase", "in a step or a save") +
                             legend_entry("at-ended", "process ended");
  return card("What each rank was at", "until the flight records were taken", legend,
              FlightPicture(flights).draw() +
                  fmt::format("<details><summary>All ranks in words</summary><pre>{}</pre></details>\n",
                              escape_html(flight_text(flights))));
}

std::string evidence_section(const Incident& one, const std::vector<FlightRecord>& flights) {
  std::vector<std::string> evidence;
  for (const FaultEntry& fault : one.faults)
    evidence.push_back(fmt::format("{} after step {}: {}{}{}", clock_text(fault.time_us), fault.step,
                                   fault.who, fault.who.empty() ? "" : ": ", fault.noticed));
  if (!flights.empty()) {
    const FlightMerge merge = merge_flights(flights);
    evidence.push_back("flight records: " + flights.back().reason);
    if (!merge.suspect.empty()) evidence.push_back("likely culprit: " + merge.suspect);
    if (!merge.divergence.empty()) evidence.push_back("first divergence: " + merge.divergence);
  }
  if (one.verdict.has_value()) evidence.push_back("verdict: " + one.verdict->reason);
  for (const std::string& host : one.lost_hosts)
    evidence.push_back(fmt::format("host {} has no rank left", host));
  for (const RunEvent& event : one.events) {
    if (event.name == HealthEvent::kind || event.name == StragglerEvent::kind)
      evidence.push_back(fmt::format("{} {}: {}", clock_text(event.time_us), event.name, event.details));
  }
  return card("Who and why", "", "", list(evidence));
}

std::string cost_section(const Incident& one) {
  const double ranks = one.ranks_before > 0 ? one.ranks_before : 1;
  std::string rows = "<tr><th>part</th>" + number_head("time") + number_head("times ranks") +
                     number_head("price") + "<th></th></tr>\n";
  const auto add = [&](std::string_view name, double cost_s, std::string_view remark) {
    rows += fmt::format("<tr><td class=\"name\">{}</td>{}{}{}<td class=\"details\">{}</td></tr>\n", name,
                        number_cell(shown_seconds(cost_s)), number_cell(shown_seconds(cost_s * ranks)),
                        number_cell(escape_html(one.price_of(cost_s))), remark);
  };
  add("until it was noticed", one.cost.unnoticed_s, "since the end of the last step");
  std::string parts;
  if (one.recovery.has_value()) {
    for (const auto& [name, part_ms] : {std::pair{"coming together", one.recovery->shrink_ms},
                                        {"agreeing", one.recovery->plan_ms},
                                        {"memory and state", one.recovery->load_ms}}) {
      if (part_ms.has_value())
        parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, format_seconds(*part_ms / 1e3));
    }
  }
  add("until the run computed again", one.cost.pause_s, parts);
  add("steps again", one.cost.again_s,
      fmt::format("{} step{}", one.fault().lost_steps, one.fault().lost_steps == 1 ? "" : "s"));
  if (one.cost.slower_s > 0.0)
    add("fewer ranks", one.cost.slower_s,
        fmt::format("a step takes {} instead of {}", format_seconds(one.step_after_s),
                    format_seconds(one.step_s)));
  add("all", one.cost.all_s(), "");
  if (one.cost.absent_s > 0.0)
    rows += fmt::format(
        "<tr><td class=\"name\">not running</td>{}<td></td><td></td><td class=\"details\">until somebody "
        "started it again; it costs nothing here</td></tr>\n",
        number_cell(shown_seconds(one.cost.absent_s)));
  return card("What it cost",
              one.price.is_known() ? "" : "no price: the newest start of the log has no cost.per_rank_hour",
              "", table(rows));
}

std::string playbook_section(const PlaybookEntry& entry) {
  std::string rows = fmt::format(
      "<tr><td class=\"name\">what it means</td><td>{}</td></tr>\n<tr><td class=\"name\">what the run "
      "does</td><td>{}</td></tr>\n"
      "<tr><td class=\"name\">what you do</td><td>{}</td></tr>\n",
      shown_words(entry.what), shown_words(entry.run_does), shown_words(entry.you_do));
  if (!entry.chaos.empty())
    rows += fmt::format(
        "<tr><td class=\"name\">to see it again</td><td><code>holdfast chaos run.toml --faults "
        "{}</code></td></tr>\n",
        entry.chaos);
  return card("What to do", fmt::format("{}, docs/playbook.md", entry.kind), "", table(rows));
}

std::string events_section(const Incident& one) {
  if (one.events.empty()) return "";
  std::string rows =
      "<tr><th>time (UTC)</th><th>event</th>" + number_head("step") + "<th>details</th></tr>\n";
  const std::size_t all = one.events.size(), count = std::min(all, events_around_shown);
  const auto noticed = std::ranges::lower_bound(one.events, one.begin_us, {}, &RunEvent::time_us);
  const auto before = static_cast<std::size_t>(noticed - one.events.begin());
  const std::size_t first = std::min(before - std::min(before, count / 4), all - count);
  for (const RunEvent& event : std::span(one.events).subspan(first, count)) {
    rows += fmt::format(
        "<tr><td class=\"time\">{}</td><td class=\"name\">{}</td>{}<td class=\"details\">{}</td></tr>\n",
        clock_text(event.time_us), escape_html(event.name), number_cell(std::to_string(event.step)),
        escape_html(event.details));
  }
  return card("Events around it", count < all ? fmt::format("{} of {}", count, all) : "", "", table(rows));
}

std::string ranks_remark(const Incident& one) {
  return one.ranks_after > 0 && one.ranks_after != one.ranks_before ? fmt::format("then {}", one.ranks_after)
                                                                    : "";
}

}  // namespace

std::string incident_page(const std::string& run_directory, const Incident& one,
                          const std::vector<FlightRecord>& flights) {
  std::string text =
      fmt::format("<header><h1>{}: incident {} of {}</h1><span class=\"badge failed\">{}</span></header>\n",
                  escape_html(run_name(run_directory)), one.number, one.count, one.playbook().kind);
  text += fmt::format("<p>{}</p>\n", shown_words(one.playbook().what));
  if (!one.missing_parts.empty())
    text += fmt::format("<p class=\"failed\">The log is not whole: {}</p>\n", escape_html(one.missing_parts));
  text += facts(fact("Noticed", clock_text(one.begin_us), "UTC") +
                fact("After step", std::to_string(one.fault().step)) +
                fact("Cost", shown_seconds(one.cost.all_s()), one.price_of(one.cost.all_s())) +
                fact("Ranks", std::to_string(one.ranks_before), ranks_remark(one)));
  IncidentLog around;
  around.faults = one.faults;
  around.spans = one.spans;
  for (const GoodputSpan& span : one.spans)
    around.times_us[static_cast<std::size_t>(span.use)] += span.end_us - span.begin_us;
  around.saves = one.saves;
  text += flight_section(flights) + evidence_section(one, flights);
  text += card("What was decided", "", "", list(one.decisions)) + cost_section(one);
  text += card("What would have been cheaper", "", "", list(cheaper_ways(one))) +
          playbook_section(one.playbook());
  text += time_section(around, "Where the time went around it") + events_section(one);
  return html_page(fmt::format("{} incident {}", run_name(run_directory), one.number),
                   fmt::format("{}{}", fault_style, incident_style), text);
}

}  // namespace holdfast::report
