#include "tools/simulate/simulate_report.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/core/json.h"
#include "runtime/core/text.h"
#include "runtime/hazard/run_cost.h"
#include "runtime/report/report_chart.h"
#include "runtime/report/report_page.h"

namespace holdfast::launch::fleet {
namespace {

constexpr std::string_view narrower_name = "fewer copies";

std::string share_text(double share) {
  return fmt::format("{:.2f} %", 100.0 * share);
}

// TimePart is a class of time with its share.
struct TimePart {
  std::string name;
  double seconds = 0.0;
};

std::vector<TimePart> parts_of(const MeanOutcome& mean) {
  std::vector<TimePart> parts;
  for (std::size_t use = 0; use < mean.seconds.size(); ++use) {
    if (mean.seconds[use] > 0.0)
      parts.push_back({std::string(name_of(static_cast<SpanUse>(use))), mean.seconds[use]});
  }
  if (mean.narrower_seconds > 0.0) parts.push_back({std::string(narrower_name), mean.narrower_seconds});
  return parts;
}

std::string part_share(const MeanOutcome& mean, double seconds) {
  return share_text(mean.wall_seconds > 0.0 ? seconds / mean.wall_seconds : 0.0);
}

double rank_seconds(const Cluster& cluster, double seconds) {
  return seconds * cluster.hosts * cluster.ranks_per_host;
}

std::string money(const Study& study, double seconds) {
  return money_text(rank_seconds(study.cluster, seconds), study.cluster.per_rank_hour,
                    study.cluster.currency);
}

std::string run_sentence(const Study& study) {
  const Cluster& c = study.cluster;
  return fmt::format(
      "{:.0f} copies x {:.0f} stages x {:.0f} ranks{} = {} ranks on {:.0f} hosts of {:.0f}, {:g} days, seeds "
      "{}..{}",
      c.data, c.pipeline, c.tensor, c.spares > 0.0 ? fmt::format(" + {:.0f} spares", c.spares) : "",
      c.ranks_wanted(), c.hosts, c.ranks_per_host, study.options.days, study.options.first_seed,
      study.options.last_seed);
}

std::vector<std::pair<std::string, double>> counts_of(const MeanOutcome& mean) {
  return {{"recoveries in place", mean.in_place},
          {"of them onto spares", mean.spares_used},
          {"restarts after a fault", mean.restarts},
          {"states from the disk", mean.from_disk},
          {"starts to use more hosts", mean.growths},
          {"hosts left", mean.left},
          {"hosts left out by the launcher", mean.excluded},
          {"launches that a person made again", mean.launches_ended}};
}

Json json_of(const Spread& spread) {
  return {{"mean", spread.mean},
          {"error", spread.error},
          {"p5", spread.low},
          {"p50", spread.median},
          {"p95", spread.high}};
}

Json json_of(const MeanOutcome& mean, const Cluster& cluster) {
  Json seconds = Json::object();
  for (const TimePart& part : parts_of(mean)) seconds[part.name] = part.seconds;
  Json faults = Json::object();
  for (std::size_t kind = 0; kind < mean.faults.size(); ++kind)
    faults[cluster.faults[kind].name] = mean.faults[kind];
  Json counts = Json::object();
  for (const auto& [name, count] : counts_of(mean)) counts[name] = count;
  Json all = {{"ettr", json_of(mean.ettr)},    {"wall_seconds", mean.wall_seconds},
              {"seconds", std::move(seconds)}, {"faults", std::move(faults)},
              {"counts", std::move(counts)},   {"steps", mean.steps}};
  if (cluster.per_rank_hour > 0.0) {
    const double lost = mean.wall_seconds * (1.0 - mean.ettr.mean);
    all["cost"] = price_of(rank_seconds(cluster, mean.wall_seconds), 1.0, cluster.per_rank_hour);
    all["cost_lost"] = price_of(rank_seconds(cluster, lost), 1.0, cluster.per_rank_hour);
  }
  return all;
}

std::string variants_text(const Study& study) {
  TextTable table({"with the same faults", "ETTR", "5 %", "95 %", "lost to the file's", "how"}, 1);
  const auto row = [&](const std::string& name, const MeanOutcome& mean, const std::string& how) {
    table.add({name, share_text(mean.ettr.mean), share_text(mean.ettr.low), share_text(mean.ettr.high),
               fmt::format("{:+.2f}", 100.0 * (mean.ettr.mean - study.mean.ettr.mean)), how});
  };
  row("as the file says", study.mean, "");
  for (const Variant& variant : study.variants) row(variant.name, variant.mean, variant.how);
  return table.text();
}

std::string doubts_text(const Study& study) {
  TextTable table({"number", "value", "ETTR with half of it", "with twice", "source"}, 1);
  for (const Doubt& doubt : study.doubts)
    table.add({doubt.key, fmt::format("{:g}", doubt.value), share_text(doubt.half_ettr),
               share_text(doubt.double_ettr), doubt.source.empty() ? "assumed" : doubt.source});
  return table.text();
}

std::string sweep_text(const Sweep& sweep) {
  std::string text = fmt::format("{} (ETTR)\n", sweep.unit);
  for (const Sweep::Curve& curve : sweep.curves) {
    text += fmt::format("  {:<34}", curve.name);
    for (std::size_t i = 0; i < curve.xs.size(); ++i)
      text += fmt::format("  {:g}: {}", curve.xs[i], share_text(curve.ettrs[i]));
    text += "\n";
  }
  return text;
}

// The chart's axis is linear, and most of what is swept doubles: x is the logarithm, named below the picture.
std::string sweep_card(const Sweep& sweep) {
  constexpr std::array<const char*, 3> styles = {"train", "held", "other"};
  Chart chart{.label = "ETTR against " + sweep.unit, .height = 260.0};
  std::string legend;
  std::string rows = "<tr><th>" + report::escape_html(sweep.unit) + "</th>";
  for (const double x : sweep.curves.front().xs) rows += report::number_head(report::short_number(x));
  rows += "</tr>\n";
  for (std::size_t i = 0; i < sweep.curves.size(); ++i) {
    const Sweep::Curve& curve = sweep.curves[i];
    const std::string style = styles[i % styles.size()];
    ChartCurve line{.name = curve.name, .css_class = style, .points = {}, .dots = true};
    rows += "<tr><td>" + report::escape_html(curve.name) + "</td>";
    for (std::size_t point = 0; point < curve.xs.size(); ++point) {
      line.points.push_back({.x = static_cast<double>(point), .y = 100.0 * curve.ettrs[point]});
      rows += report::number_cell(share_text(curve.ettrs[point]));
    }
    rows += "</tr>\n";
    chart.curves.push_back(std::move(line));
    legend += report::legend_entry(style, curve.name);
  }
  return report::card("ETTR against " + sweep.unit, "in percent; the points are the columns of the table",
                      legend, report::render_chart(chart) + report::table(rows));
}

std::string time_card(const Study& study) {
  std::string rows = "<tr><th>time</th>" + report::number_head("as the file says");
  for (const Variant& variant : study.variants)
    rows += report::number_head(report::escape_html(variant.name));
  rows += "</tr>\n<tr><td>ETTR</td>" + report::number_cell(share_text(study.mean.ettr.mean));
  for (const Variant& variant : study.variants)
    rows += report::number_cell(share_text(variant.mean.ettr.mean));
  rows += "</tr>\n";
  for (std::size_t use = 0; use <= span_uses; ++use) {
    const auto seconds_of = [&](const MeanOutcome& mean) {
      return use < span_uses ? mean.seconds[use] : mean.narrower_seconds;
    };
    const auto has_any = [&](const Variant& variant) { return seconds_of(variant.mean) > 0.0; };
    if (!(seconds_of(study.mean) > 0.0) && std::ranges::none_of(study.variants, has_any)) continue;
    rows +=
        fmt::format("<tr><td>{}</td>", use < span_uses ? name_of(static_cast<SpanUse>(use)) : narrower_name) +
        report::number_cell(part_share(study.mean, seconds_of(study.mean)));
    for (const Variant& variant : study.variants)
      rows += report::number_cell(part_share(variant.mean, seconds_of(variant.mean)));
    rows += "</tr>\n";
  }
  return report::card("Where the time goes", "share of the days, on the same faults", "",
                      report::table(rows));
}

std::string doubts_card(const Study& study) {
  std::string rows = "<tr><th>number</th>" + report::number_head("value") +
                     report::number_head("ETTR, half of it") + report::number_head("twice") +
                     "<th>source</th></tr>\n";
  for (const Doubt& doubt : study.doubts)
    rows += fmt::format("<tr><td>{}</td>{}{}{}<td class=\"details\">{}</td></tr>\n",
                        report::escape_html(doubt.key), report::number_cell(fmt::format("{:g}", doubt.value)),
                        report::number_cell(share_text(doubt.half_ettr)),
                        report::number_cell(share_text(doubt.double_ettr)),
                        doubt.source.empty() ? "assumed" : report::escape_html(doubt.source));
  return report::card("What each number is worth",
                      "one at a time, halved and doubled; the largest effect first", "", report::table(rows));
}

std::string faults_card(const Study& study) {
  std::string rows = "<tr><th>fault</th>" + report::number_head("that hit the run") +
                     "<th>what it does</th><th>source</th></tr>\n";
  for (std::size_t kind = 0; kind < study.mean.faults.size(); ++kind) {
    const FaultKind& fault = study.cluster.faults[kind];
    rows += fmt::format(
        "<tr><td>{}</td>{}<td>{}</td><td class=\"details\">{}</td></tr>\n", report::escape_html(fault.name),
        report::number_cell(fmt::format("{:.1f}", study.mean.faults[kind])), name_of(fault.effect),
        fault.source.empty() ? "assumed" : report::escape_html(fault.source));
  }
  return report::card("Faults", "means over the seeds", "", report::table(rows));
}

}  // namespace

std::string study_text(const Study& study) {
  const MeanOutcome& mean = study.mean;
  std::string text = fmt::format("{}: {}\n\n", study.cluster.name, run_sentence(study));
  text += fmt::format(
      "ETTR {} (standard error {:.2f}; 5 % of the seeds below {}, half below {}, 5 % above {})\n\n",
      share_text(mean.ettr.mean), 100.0 * mean.ettr.error, share_text(mean.ettr.low),
      share_text(mean.ettr.median), share_text(mean.ettr.high));
  TextTable times({"time", "share", "hours"}, 1);
  for (const TimePart& part : parts_of(mean))
    times.add({part.name, part_share(mean, part.seconds), fmt::format("{:.2f}", part.seconds / 3600.0)});
  text += times.text() + "\n";
  TextTable counts({"means over the seeds", "number"}, 1);
  for (std::size_t kind = 0; kind < mean.faults.size(); ++kind)
    counts.add(
        {fmt::format("{} ({})", study.cluster.faults[kind].name, name_of(study.cluster.faults[kind].effect)),
         fmt::format("{:.1f}", mean.faults[kind])});
  if (!mean.faults.empty()) counts.add_rule();
  for (const auto& [name, count] : counts_of(mean)) counts.add({name, fmt::format("{:.1f}", count)});
  text += counts.text();
  if (study.cluster.per_rank_hour > 0.0)
    text += fmt::format("\nmoney: {} in all, {} of it not for training\n", money(study, mean.wall_seconds),
                        money(study, mean.wall_seconds * (1.0 - mean.ettr.mean)));
  if (!study.variants.empty()) text += "\n" + variants_text(study);
  for (const Sweep& sweep : study.sweeps) text += "\n" + sweep_text(sweep);
  if (!study.doubts.empty()) text += "\n" + doubts_text(study);
  if (!study.cluster.assumed.empty())
    text += fmt::format("\nassumed, without a source: {}\n", fmt::join(study.cluster.assumed, ", "));
  return text;
}

std::string study_json(const Study& study) {
  Json json = {{"cluster", study.cluster.name},          {"days", study.options.days},
               {"first_seed", study.options.first_seed}, {"last_seed", study.options.last_seed},
               {"ranks", study.cluster.ranks_wanted()},  {"ettr", study.mean.ettr.mean}};
  json["result"] = json_of(study.mean, study.cluster);
  Json seeds = Json::array();
  for (const FleetOutcome& one : study.outcomes) {
    Json seconds = Json::object();
    for (std::size_t use = 0; use < span_uses; ++use) {
      if (one.times_us[use] > 0)
        seconds[std::string(name_of(static_cast<SpanUse>(use)))] =
            static_cast<double>(one.times_us[use]) / 1e6;
    }
    seconds[std::string(narrower_name)] = static_cast<double>(one.narrower_us) / 1e6;
    seeds.push_back(
        {{"seed", one.seed}, {"ettr", one.ettr()}, {"steps", one.steps}, {"seconds", std::move(seconds)}});
  }
  json["seeds"] = std::move(seeds);
  Json variants = Json::array();
  for (const Variant& variant : study.variants)
    variants.push_back(
        {{"name", variant.name}, {"how", variant.how}, {"result", json_of(variant.mean, variant.cluster)}});
  json["variants"] = std::move(variants);
  Json sweeps = Json::array();
  for (const Sweep& sweep : study.sweeps) {
    Json curves = Json::array();
    for (const Sweep::Curve& curve : sweep.curves)
      curves.push_back({{"name", curve.name}, {"x", Json(curve.xs)}, {"ettr", Json(curve.ettrs)}});
    sweeps.push_back({{"name", sweep.name}, {"unit", sweep.unit}, {"curves", std::move(curves)}});
  }
  json["sweeps"] = std::move(sweeps);
  Json doubts = Json::array();
  for (const Doubt& doubt : study.doubts)
    doubts.push_back({{"key", doubt.key},
                      {"value", doubt.value},
                      {"half_ettr", doubt.half_ettr},
                      {"double_ettr", doubt.double_ettr},
                      {"source", doubt.source}});
  json["sensitivity"] = std::move(doubts);
  json["assumed"] = Json(study.cluster.assumed);
  return json.dump_any(2) + "\n";
}

std::string study_html(const Study& study) {
  const MeanOutcome& mean = study.mean;
  std::string facts =
      report::fact("ETTR", share_text(mean.ettr.mean),
                   fmt::format("{} to {}", share_text(mean.ettr.low), share_text(mean.ettr.high)));
  double faults = 0.0;
  for (const double count : mean.faults) faults += count;
  facts += report::fact("Faults", fmt::format("{:.0f}", faults), "that hit the run");
  facts += report::fact("In place", fmt::format("{:.0f}", mean.in_place), "recoveries");
  facts += report::fact("Restarts", fmt::format("{:.0f}", mean.restarts), "after a fault");
  if (study.cluster.per_rank_hour > 0.0)
    facts += report::fact("Not for training", money(study, mean.wall_seconds * (1.0 - mean.ettr.mean)),
                          "of " + money(study, mean.wall_seconds));
  std::string body = fmt::format(
      "<header><h1>{}</h1></header>\n<p>{}. A simulation: what the program decides is decided by its own "
      "code, what hosts do is a model.</p>\n",
      report::escape_html(study.cluster.name), report::escape_html(run_sentence(study)));
  body += report::facts(facts) + time_card(study);
  for (const Sweep& sweep : study.sweeps) body += sweep_card(sweep);
  body += faults_card(study);
  if (!study.doubts.empty()) body += doubts_card(study);
  if (!study.cluster.assumed.empty())
    body += report::card("Assumed", "numbers of the file without a source", "",
                         fmt::format("<p>{}</p>", report::escape_html(fmt::format(
                                                      "{}", fmt::join(study.cluster.assumed, ", ")))));
  return report::html_page(study.cluster.name, "", body);
}

}  // namespace holdfast::launch::fleet
