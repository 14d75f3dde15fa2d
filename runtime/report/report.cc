#include "runtime/report/report.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/core/json.h"
#include "runtime/core/units.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/report/report_chart.h"
#include "runtime/report/report_page.h"
#include "runtime/report/report_sections.h"
#include "runtime/report/timeline_operations.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/run_history.h"

namespace holdfast::report {
namespace {

constexpr std::size_t points_per_curve = 2000;
constexpr std::size_t events_shown = 25;
constexpr std::size_t markers_shown = 200;  // of each kind, the last ones
// Bytes of recorded steps that a report reads; of larger recordings `holdfast timeline` tells the same.
constexpr std::uint64_t trace_read = std::uint64_t{32} << 20;

// Everything the page is made of.
struct ReportContent {
  std::string directory = {};
  RunHistory history = {};
  RunStatus status = {};
  std::string config_text = {};  // empty when there is none
  std::string description = {};  // of model and training, one line
  std::string lost_time = {};    // a card of HTML; empty when no steps were recorded
  std::vector<RankTimesEpoch> rank_times = {};
};

std::string describe_run(const Config& config) {
  const ModelConfig& model = config.model;
  std::string text = model.preset.empty() ? model.style : model.preset;
  if (model.layers > 0)
    text += fmt::format(" · {} layers · width {} · {} heads", model.layers, model.width, model.heads);
  if (model.kv_heads > 0 && model.kv_heads != model.heads)
    text += fmt::format(" ({} key/value)", model.kv_heads);
  if (model.vocabulary > 0) text += fmt::format(" · vocabulary {}", model.vocabulary);
  return text + fmt::format(" · sequence length {} · {}", config.training.sequence_length,
                            config.training.precision);
}

// Returns a card with the seconds that recorded steps lost to each rank; empty where none are recorded whole.
std::string lost_time_section(Env& env, const RunPaths& paths) {
  std::uint64_t bytes = 0;
  const Result<std::vector<std::string>> names = env.list(paths.trace());
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const Result<FileStatus> file = env.status(paths.trace() + "/" + name);
    if (file.ok()) bytes += file->bytes;
  }
  if (bytes == 0 || bytes > trace_read) return "";
  const Result<Timeline> timeline = read_timeline(env, paths);
  if (!timeline.ok()) return "";
  const TracedJob job = job_of(*timeline);
  const Result<WhatIf> answer = ask_what_if(job);
  if (!answer.ok()) return "";
  std::string rows =
      fmt::format("<tr>{}{}{}{}{}</tr>\n", number_head("rank"), number_head("stage"), number_head("copy"),
                  number_head("seconds lost to it"), number_head("seconds it costs by itself"));
  for (const LostTime& lost : answer->lost) {
    const JobWorker& worker = job.workers[static_cast<std::size_t>(lost.worker)];
    rows += fmt::format(
        "<tr>{}{}{}{}{}</tr>\n", number_cell(std::to_string(worker.rank)),
        number_cell(std::to_string(worker.stage)), number_cell(std::to_string(worker.replica)),
        number_cell(fmt::format("{:.3f}", lost.lost_s)), number_cell(fmt::format("{:.3f}", lost.alone_s)));
  }
  return card(
      "Seconds lost to ranks",
      fmt::format("recorded steps {} to {}, replayed: {:.3f} s, {:.3f} s with ideal operations",
                  timeline->steps.front(), timeline->steps.back(), answer->original_s, answer->ideal_s),
      "", table(rows));
}

ReportContent read_content(Env& env, const RunPaths& paths, RunHistory history) {
  ReportContent content{.directory = paths.directory, .history = std::move(history)};
  if (!content.history.missing_parts.empty()) print_message("{}", content.history.missing_parts);
  content.status = read_status(env, paths);
  content.lost_time = lost_time_section(env, paths);
  content.rank_times = read_rank_times(env, paths.rank_times());
  const Result<std::string> config = read_text_within(env, paths.config(), text_limits::config);
  if (!config.ok()) return content;
  content.config_text = without_commands(config.value());
  const Result<LoadedConfig> loaded = load_stored_config(env, config.value(), paths.config());
  if (loaded.ok()) content.description = describe_run(loaded.value().config);
  return content;
}

std::string grouped(std::uint64_t count) {  // 1,234,567
  std::string digits = std::to_string(count);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::vector<ChartPoint> curve_of(const RunHistory& history, double StepRecord::*value) {
  std::vector<ChartPoint> points;
  for (const StepRecord& record : history.steps) {
    if (std::isfinite(record.*value))
      points.push_back({.x = static_cast<double>(record.step), .y = record.*value});
  }
  return points;
}

// Returns the steps without such a number, where the curve is interrupted: those that were skipped.
std::vector<double> gaps_of(const RunHistory& history, double StepRecord::*value) {
  std::vector<double> gaps;
  for (const StepRecord& record : history.steps)
    if (!std::isfinite(record.*value)) gaps.push_back(static_cast<double>(record.step));
  return gaps;
}

std::vector<ChartPoint> smooth_curve(const std::vector<ChartPoint>& points) {
  return smooth(points, points.size() / 100);
}

std::vector<ChartPoint> held_out_curve(const RunHistory& history) {
  std::vector<ChartPoint> points;
  for (const HeldOutRecord& record : history.held_out) {
    if (std::isfinite(record.loss))
      points.push_back({.x = static_cast<double>(record.step), .y = record.loss});
  }
  return points;
}

constexpr std::string_view resume_class = "resume";

// Returns the kind of the event, resume_class for a start that continues; empty for what is no marker.
std::string marker_class(const RunEvent& event) {
  if (event.name == StartEvent::kind && event.resumed) return std::string(resume_class);
  for (const std::string_view kind :
       {StartEvent::kind, CheckpointEvent::kind, FaultEvent::kind, RecoveryEvent::kind}) {
    if (event.name == kind) return std::string(kind);
  }
  return "";
}

std::vector<ChartMarker> markers_of(const RunHistory& history) {
  std::vector<ChartMarker> markers;
  std::map<std::string, std::size_t> counts;
  for (auto event = history.events.rbegin(); event != history.events.rend(); ++event) {
    const std::string css_class = marker_class(*event);
    if (css_class.empty() || ++counts[css_class] > markers_shown) continue;
    std::string title = fmt::format("{} at step {}", css_class, event->step);
    if (!event->details.empty()) title += "\n" + event->details;
    markers.push_back({.x = static_cast<double>(event->step),
                       .css_class = css_class,
                       .title = std::move(title),
                       .tick = css_class == CheckpointEvent::kind});
  }
  return markers;
}

std::string facts_section(const RunHistory& history) {
  const std::uint64_t step = history.steps.empty() ? 0 : history.steps.back().step;
  const std::vector<ChartPoint> loss = smooth_curve(curve_of(history, &StepRecord::loss));
  const std::vector<ChartPoint> held_out = held_out_curve(history);
  const double rate = median_tokens_per_sec(history);
  std::string text;
  std::string steps_remark =
      history.planned_steps > 0 ? fmt::format("of {}", grouped(history.planned_steps)) : "";
  if (const std::size_t skipped = history.numbers.steps_with(name_of(VerdictAction::skip)).size();
      skipped > 0)
    steps_remark += fmt::format("{}{} skipped", steps_remark.empty() ? "" : ", ", grouped(skipped));
  text += fact("Steps", grouped(step), steps_remark);
  text += fact("Training loss", loss.empty() ? "–" : fmt::format("{:.4f}", loss.back().y),
               loss.empty() ? "" : "smoothed");
  text += fact("Held-out loss", held_out.empty() ? "–" : fmt::format("{:.4f}", held_out.back().y),
               held_out.empty() ? "" : fmt::format("step {:.0f}", held_out.back().x));
  text +=
      fact("Parameters", short_number(static_cast<double>(history.parameters)), grouped(history.parameters));
  text += fact("Ranks", grouped(history.ranks));
  text += fact("Tokens", short_number(static_cast<double>(history.tokens)));
  text += fact("Throughput", rate > 0.0 ? short_number(rate) : "–", rate > 0.0 ? "tokens/s, median" : "");
  text += fact("Wall time", format_duration(history.running_us / 1'000'000 * 1000), "while running");
  return facts(text);
}

std::string loss_section(const RunHistory& history) {
  const std::vector<ChartPoint> loss = curve_of(history, &StepRecord::loss);
  const std::vector<ChartPoint> held_out = held_out_curve(history);
  if (loss.empty()) return card("Loss", "", "", "<div class=\"empty\">No step has been made yet.</div>\n");
  Chart chart{.label = "Training and held-out loss over steps"};
  const std::vector<double> gaps = gaps_of(history, &StepRecord::loss);
  chart.curves.push_back({.name = "training loss",
                          .css_class = "raw",
                          .points = downsample(loss, points_per_curve),
                          .gaps = gaps});
  chart.curves.push_back({.name = "smoothed",
                          .css_class = "train",
                          .points = downsample(smooth_curve(loss), points_per_curve),
                          .gaps = gaps});
  std::string legend = legend_entry("raw", "training") + legend_entry("train", "smoothed");
  if (!held_out.empty()) {
    chart.curves.push_back({.name = "held-out loss",
                            .css_class = "held",
                            .points = downsample(held_out, points_per_curve),
                            .dots = held_out.size() <= 100});
    legend += legend_entry("held", "held-out");
  }
  chart.markers = markers_of(history);
  for (const std::string_view css_class :
       {StartEvent::kind, resume_class, CheckpointEvent::kind, FaultEvent::kind, RecoveryEvent::kind}) {
    if (std::ranges::find(chart.markers, css_class, &ChartMarker::css_class) != chart.markers.end()) {
      legend += legend_entry(css_class, css_class);
    }
  }
  const std::vector<ChartMarker> verdicts = verdict_markers(history.numbers);
  chart.markers.insert(chart.markers.end(), verdicts.begin(), verdicts.end());
  legend += verdict_legend(verdicts);
  return card("Loss", "nats per token, by step", legend, render_chart(chart));
}

std::string small_section(std::string_view title, std::string_view remark, std::vector<ChartPoint> points,
                          Chart chart, const std::vector<double>& gaps = {}) {
  if (points.empty()) return card(title, remark, "", "<div class=\"empty\">Nothing yet.</div>\n");
  chart.label = fmt::format("{} over steps", title);
  chart.width = 360.0;
  chart.height = 210.0;
  chart.curves = {{.name = std::string(title),
                   .css_class = "other",
                   .points = downsample(points, points_per_curve),
                   .gaps = gaps}};
  return card(title, remark, "", render_chart(chart));
}

// A norm that starts a hundred times larger than it ends would be a flat line on a linear axis.
bool wants_log_axis(std::vector<ChartPoint> points) {
  if (points.empty()) return false;
  std::ranges::sort(points, {}, &ChartPoint::y);
  return points.back().y > 20.0 * points[points.size() / 2].y;
}

std::string small_charts(const RunHistory& history) {
  const std::vector<ChartPoint> norm = curve_of(history, &StepRecord::grad_norm);
  const bool log_norm = wants_log_axis(norm);
  std::string text = "<div class=\"row\">\n";
  text += small_section("Gradient norm", log_norm ? "before clipping, log scale" : "before clipping", norm,
                        {.log_y = log_norm, .from_zero = true, .markers = verdict_markers(history.numbers)},
                        gaps_of(history, &StepRecord::grad_norm));
  text +=
      small_section("Learning rate", "", curve_of(history, &StepRecord::learning_rate), {.from_zero = true});
  text += small_section("Throughput", "tokens/s", curve_of(history, &StepRecord::tokens_per_sec),
                        {.from_zero = true});
  return text + "</div>\n";
}

// Returns a card with what was used of each source of the data; empty where it is not known.
std::string data_section(const RunHistory& history) {
  const std::vector<SourceUse> uses = uses_of(history.sources, history.source_samples, history.tokens);
  if (uses.empty()) return "";
  std::string rows = fmt::format("<tr><th>source</th>{}{}{}{}</tr>\n", number_head("samples"),
                                 number_head("tokens"), number_head("epochs"), number_head("share"));
  const auto tokens = static_cast<double>(std::max<std::uint64_t>(history.tokens, 1));
  for (const SourceUse& use : uses)
    rows += fmt::format("<tr><td>{}</td>{}{}{}{}</tr>\n", escape_html(use.path),
                        number_cell(grouped(use.samples)), number_cell(grouped(use.tokens)),
                        number_cell(fmt::format("{:.2f}", use.epochs)),
                        number_cell(percent(static_cast<double>(use.tokens) / tokens)));
  return card("Data", "used by the steps that count", "", table(rows));
}

std::string events_section(const RunHistory& history) {
  if (history.events.empty()) return "";
  const std::size_t count = std::min(history.events.size(), events_shown);
  std::string rows;
  for (auto event = history.events.rbegin();
       event != history.events.rbegin() + static_cast<std::ptrdiff_t>(count); ++event) {
    const std::time_t seconds = event->time_us / 1'000'000;
    fmt::format_to(std::back_inserter(rows),
                   "<tr><td class=\"time\">{:%Y-%m-%d %H:%M:%S}</td><td class=\"name {}\">{}</td><td "
                   "class=\"number\">{}</td>"
                   "<td class=\"details\">{}</td></tr>\n",
                   fmt::gmtime(seconds), marker_class(*event), escape_html(event->name), grouped(event->step),
                   escape_html(event->details));
  }
  const std::string remark = count < history.events.size() ? fmt::format("the last {} of {}, newest first",
                                                                         count, history.events.size())
                                                           : std::string("newest first");
  return card("Events", remark, "",
              table("<tr><th>time (UTC)</th><th>event</th><th class=\"number\">step</th>"
                    "<th>details</th></tr>\n" +
                    rows));
}

std::string config_section(const std::string& config_text) {
  if (config_text.empty()) return "";
  return fmt::format(
      "<section class=\"card\"><details><summary>Configuration</summary><pre>{}</pre></details></section>\n",
      escape_html(config_text));
}

std::string page(const ReportContent& content) {
  const std::string name = run_name(content.directory);
  const RunHistory& history = content.history;
  std::string text = fmt::format("<header><h1>{}</h1><span class=\"badge {}\">{}</span></header>\n",
                                 escape_html(name), content.status.state, content.status.state);
  if (!content.description.empty()) text += fmt::format("<p>{}</p>\n", escape_html(content.description));
  if (content.status.state == "failed" || content.status.state == "saved") {
    text += fmt::format("<p class=\"{}\">{}</p>\n", content.status.state, escape_html(content.status.reason));
  }
  text += facts_section(history) + loss_section(history) + faults_section(history.ledger);
  text += content.lost_time;
  text += numbers_section(history.numbers);
  StragglerLog stragglers;
  for (const StragglerEvent& each : history.stragglers) stragglers.take(each);
  text += ranks_section(stragglers, content.rank_times);
  text += small_charts(history) + data_section(history) + events_section(history);
  text += config_section(content.config_text);
  if (!history.run_id.empty()) text += fmt::format("<p>Run {}</p>\n", escape_html(history.run_id));
  return html_page(name, fmt::format("{}{}{}", fault_style, numbers_style, ranks_style), text);
}

}  // namespace

Report make_report(Env& env, const RunPaths& paths, RunHistory history) {
  const ReportContent content = read_content(env, paths, std::move(history));
  std::string summary = summary_of(content.history.ledger);
  const auto add = [&](std::string_view name, const std::string& sentence) {
    if (!sentence.empty()) summary += fmt::format("{}{}: {}", summary.empty() ? "" : "\n", name, sentence);
  };
  add("cost", money_sentence(content.history.ledger.rank_times_us, content.history.ledger.price));
  add("numbers", summary_of(content.history.numbers));
  if (content.history.sources.size() > 1) {
    for (const SourceUse& use :
         uses_of(content.history.sources, content.history.source_samples, content.history.tokens))
      add("source", text_of(use));
  }
  return Report{.page = page(content), .summary = std::move(summary)};
}

Result<std::string> write_report(Env& env, const RunPaths& paths) {
  HF_TRY(RunHistory history, read_history(env, paths));
  Report report = make_report(env, paths, std::move(history));
  HF_TRY_VOID(env.replace_text(paths.report(), report.page));
  return std::move(report.summary);
}

}  // namespace holdfast::report
