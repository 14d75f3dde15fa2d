#include "tools/chaos/chaos_report.h"

#include <fmt/core.h>

#include "runtime/core/json.h"
#include "runtime/core/units.h"
#include "runtime/report/report_page.h"

namespace holdfast::chaos {
namespace {

Json json_of(const CheckedLoss& checked) {
  Json loss = {{"time_us", checked.loss.noticed_us},
               {"part", name_of(checked.part)},
               {"steps", checked.loss.steps},
               {"step_ms", checked.loss.step_ms},
               {"lost_ms", checked.loss.lost_ms()}};
  if (checked.no_promise.has_value()) {
    loss["no_promise"] = text_of(*checked.no_promise);
  } else {
    loss["promised_ms"] = checked.promised_ms;
    loss["held"] = checked.held();
  }
  return loss;
}

void add_number(Json& fault, const ChaosInjected& injected, const CheckedNumber& number) {
  fault["step"] = injected.step;
  fault["end"] = name_of(number.end);
  fault["before_first_update"] = injected.before_first_update;
  if (number.named.has_value()) fault["named"] = name_of(*number.named);
  if (number.end != NumberEnd::found) return;
  fault["verdict"] = number.verdict;
  fault["latency_steps"] = number.latency_steps;
}

// Returns seconds by class.
Json json_of(const SpanTimes& times_us) {
  Json seconds = Json::object();
  for (std::size_t i = 0; i < span_uses; ++i)
    seconds[std::string(name_of(static_cast<SpanUse>(i)))] = static_cast<double>(times_us[i]) / 1e6;
  return seconds;
}

Json json_of(const std::vector<ResourceGrowth>& growths) {
  const auto use = [](const ResourceUse& of) {
    return Json({{"resident_bytes", of.resident_bytes}, {"descriptors", of.descriptors}});
  };
  Json list = Json::array();
  for (const ResourceGrowth& growth : growths)
    list.push_back({{"program", growth.program},
                    {"process", growth.process},
                    {"seconds", growth.seconds},
                    {"first", use(growth.first)},
                    {"last", use(growth.last)}});
  return list;
}

Json json_of(const ChaosRun& run) {
  Json faults = Json::array();
  const std::vector<CheckedFault> checked = check(run);
  const NumberCheck numbers = check_numbers(run);
  for (std::size_t i = 0; i < checked.size(); ++i) {
    const ChaosInjected& injected = run.injected[i];
    Json fault = {{"fault", facts_of(injected.fault).name},
                  {"what", injected.what},
                  {"time_us", injected.time_us},
                  {"outcome", name_of(checked[i].outcome)},
                  {"in_recovery", checked[i].in_recovery}};
    if (checked[i].notice_ms >= 0.0) fault["notice_ms"] = checked[i].notice_ms;
    if (injected.rank >= 0) fault["rank"] = injected.rank;
    if (checked[i].named.has_value()) fault["named"] = name_of(*checked[i].named);
    if (checked[i].mend_ms >= 0.0) fault["mend_ms"] = checked[i].mend_ms;
    if (numbers.each[i].has_value()) add_number(fault, injected, *numbers.each[i]);
    faults.push_back(std::move(fault));
  }
  Json verdicts = Json::array();
  for (const ReportedHang& verdict : run.verdicts)
    verdicts.push_back({{"time_us", verdict.time_us}, {"rank", verdict.rank}, {"verdict", verdict.sentence}});
  Json losses = Json::array();
  for (const CheckedLoss& loss : check_losses(run)) losses.push_back(json_of(loss));
  Json starts = Json::array();
  for (const HostRanks& ranks : run.starts) starts.push_back(Json(ranks));
  return {{"seed", run.plan.seed},
          {"plan", to_lines(run.plan)},
          {"ranks", run.plan.layout.ranks},
          {"data", run.plan.layout.data()},
          {"pipeline", run.plan.layout.pipeline},
          {"tensor", run.plan.layout.tensor},
          {"spares", run.plan.layout.spares},
          {"launches", run.launches.size()},
          {"ended_truthfully", run.ended_truthfully},
          {"lost_steps", run.ledger.lost_steps},
          {"goodput", run.ledger.effective_ratio()},
          {"seconds", json_of(run.ledger.times_us)},
          {"wall_s", static_cast<double>(run.ledger.end_us() - run.ledger.begin_us()) / 1e6},
          {"processes", json_of(run.growths)},
          {"log_bytes", run.log_bytes},
          {"duration_ms", run.duration_ms},
          {"right", run.wrong.empty() && run.excuse.empty()},
          {"wrong", run.wrong},
          {"excuse", run.excuse},
          {"baseless_verdicts", Json(numbers.baseless)},
          {"faults", std::move(faults)},
          {"starts", std::move(starts)},
          {"verdicts", std::move(verdicts)},
          {"losses", std::move(losses)}};
}

std::string facts_section(const ChaosHeader& header, const ChaosSummary& summary) {
  std::string text;
  text += fact("Runs", std::to_string(summary.runs), fmt::format("{} with the right bits", summary.right));
  text += fact("Faults", std::to_string(summary.faults), fmt::format("{} of them kills", summary.kills));
  text += fact("During recovery", std::to_string(summary.in_recovery), "of the faults");
  text += fact("Ended truthfully", std::to_string(summary.ended_truthfully),
               fmt::format("of {} launches; {} more were killed", summary.launches, summary.launched_again));
  if (summary.hangs > 0)
    text += fact("Right culprit",
                 fmt::format("{} of {}", summary.count_of(NamedRank::right), summary.checked_hangs()),
                 "hangs and livelocks that had to be noticed");
  text += fact("Steps computed again", std::to_string(summary.lost_steps));
  text += fact("Goodput", percent(goodput_of(summary.times_us)), "of the time of all runs");
  if (summary.excused > 0)
    text +=
        fact("Other bits", std::to_string(summary.excused), "runs with a wrong number that no check sees");
  if (summary.costs.promised > 0)
    text += fact("Cost promise held", fmt::format("{} of {}", summary.costs.held, summary.costs.promised),
                 "deaths after the run had said what one costs at most");
  text += fact("Wall time", format_duration(header.duration_ms / 1000 * 1000));
  return facts(text);
}

std::string faults_table(const ChaosHeader& header, const ChaosSummary& summary) {
  std::string rows = "<tr><th>fault</th>" + number_head("injected") + number_head("during recovery");
  for (std::size_t i = 0; i < chaos_outcomes; ++i) rows += number_head(name_of(static_cast<ChaosOutcome>(i)));
  rows += "</tr>\n";
  for (std::size_t i = 0; i < chaos_fault_kinds; ++i) {
    const auto fault = static_cast<ChaosFault>(i);
    const ChaosTally& tally = summary.tallies[i];
    if (tally.injected == 0) continue;
    rows += fmt::format("<tr><td>{}</td>", facts_of(fault).text) +
            number_cell(std::to_string(tally.injected)) + number_cell(std::to_string(tally.in_recovery));
    for (const std::int64_t count : tally.outcomes) rows += number_cell(std::to_string(count));
    rows += "</tr>\n";
  }
  for (const auto& [fault, reason] : header.skipped) {
    rows += fmt::format("<tr><td>{}</td><td class=\"details\" colspan=\"{}\">left out: {}</td></tr>\n",
                        facts_of(fault).text, 2 + chaos_outcomes, escape_html(reason));
  }
  return card("Faults", "and what came of them", "", table(rows));
}

std::string numbers_table(const NumberTallies& tallies) {
  if (tallies.kinds.empty()) return "";
  std::string rows = "<tr><th>fault</th>";
  for (const char* name : {"injected", "found", "harmless", "missed", "right rank", "another one", "nobody",
                           "median", "max", "same bits"})
    rows += number_head(name);
  rows += "</tr>\n";
  const auto cell_of = [](const std::optional<std::uint64_t>& steps) {
    return number_cell(steps.has_value() ? std::to_string(*steps) : "");
  };
  for (const auto& [fault, tally] : tallies.kinds) {
    rows +=
        fmt::format("<tr><td>{}</td>", facts_of(fault).text) + number_cell(std::to_string(tally.injected));
    for (const std::int64_t count : tally.ends) rows += number_cell(std::to_string(count));
    for (const std::int64_t count : tally.named) rows += number_cell(std::to_string(count));
    rows += cell_of(tally.median()) + cell_of(tally.longest()) +
            number_cell(std::to_string(tally.same_bits)) + "</tr>\n";
  }
  return card("Wrong numbers", "whether a verdict found them, whom it named, and how many steps later", "",
              table(rows));
}

std::string times_table(const ChaosSummary& summary) {
  if (summary.times.empty()) return "";
  std::string rows = "<tr><th></th>";
  for (const char* name : {"count", "median", "p90", "p99", "max"}) rows += number_head(name);
  rows += "</tr>\n";
  for (const ChaosDistribution& times : summary.times) {
    rows += fmt::format("<tr><td>{}</td>", escape_html(times.name)) +
            number_cell(std::to_string(times.values_ms.size()));
    for (const double share : {0.5, 0.9, 0.99, 1.0})
      rows += number_cell(fmt::format("{:.1f}", times.percentile(share)));
    rows += "</tr>\n";
  }
  return card("Times", "milliseconds, as the run's own log has them", "", table(rows));
}

std::string runs_table(std::span<const ChaosRun> runs) {
  std::string rows = "<tr>" + number_head("seed") + "<th>layout</th><th>faults</th>" +
                     number_head("steps again") + number_head("goodput") + "<th>end</th></tr>\n";
  for (const ChaosRun& run : runs) {
    std::string faults;
    const std::vector<CheckedFault> checked = check(run);
    for (std::size_t i = 0; i < checked.size(); ++i)
      faults += fmt::format("{}{} → {}", i == 0 ? "" : "<br>", escape_html(run.injected[i].what),
                            name_of(checked[i].outcome));
    for (const CheckedLoss& loss : check_losses(run)) {
      if (!loss.held()) faults += "<br>more was lost than promised: " + to_text(loss);
    }
    std::string end = "<span class=\"finished\">right bits</span>";
    if (!run.excuse.empty()) end = "other bits: " + escape_html(run.excuse);
    if (!run.wrong.empty())
      end = fmt::format("<span class=\"failed\">{}</span>, in {}", escape_html(run.wrong),
                        escape_html(run.directory));
    rows += fmt::format("<tr>{}<td>{}</td><td class=\"details\">{}</td>{}{}<td>{}</td></tr>\n",
                        number_cell(std::to_string(run.plan.seed)), to_text(run.plan.layout), faults,
                        number_cell(std::to_string(run.ledger.lost_steps)),
                        number_cell(percent(run.ledger.effective_ratio())), end);
  }
  return card("Runs", "one for each seed", "", table(rows));
}

}  // namespace

std::string chaos_json(const ChaosHeader& header, std::span<const ChaosRun> runs,
                       const ChaosSummary& summary) {
  Json json = {{"program", header.program},
               {"command", header.command},
               {"host", header.host},
               {"duration_ms", header.duration_ms},
               {"undisturbed", header.digest}};
  json["runs"] = summary.runs;
  json["right"] = summary.right;
  json["excused"] = summary.excused;
  json["launches"] = {{"all", summary.launches},
                      {"launched_again", summary.launched_again},
                      {"ended_truthfully", summary.ended_truthfully}};
  json["injected"] = summary.faults;
  json["kills"] = summary.kills;
  json["in_recovery"] = summary.in_recovery;
  json["lost_steps"] = summary.lost_steps;
  json["goodput"] = goodput_of(summary.times_us);
  json["seconds"] = json_of(summary.times_us);
  json["processes"] = json_of(summary.growths);
  json["cost_promise"] = {
      {"deaths", summary.costs.losses}, {"promised", summary.costs.promised}, {"held", summary.costs.held}};
  if (summary.costs.worst.has_value()) {
    json["cost_promise"]["worst"] = json_of(*summary.costs.worst);
    json["cost_promise"]["worst"]["seed"] = summary.costs.worst_seed;
  }
  json["hangs"] = {{"injected", summary.hangs}, {"baseless_verdicts", summary.baseless_verdicts}};
  for (const NamedRank named : {NamedRank::right, NamedRank::other, NamedRank::nobody})
    json["hangs"][std::string(name_of(named))] = summary.count_of(named);
  json["numbers"] = to_json(summary.numbers);
  json["faults"] = Json::object();
  for (std::size_t i = 0; i < chaos_fault_kinds; ++i) {
    const ChaosTally& tally = summary.tallies[i];
    if (tally.injected == 0) continue;
    Json fault = {{"injected", tally.injected}, {"in_recovery", tally.in_recovery}};
    for (std::size_t j = 0; j < chaos_outcomes; ++j)
      fault[std::string(name_of(static_cast<ChaosOutcome>(j)))] = tally.outcomes[j];
    json["faults"][std::string(facts_of(static_cast<ChaosFault>(i)).name)] = std::move(fault);
  }
  json["skipped"] = Json::object();
  for (const auto& [fault, reason] : header.skipped)
    json["skipped"][std::string(facts_of(fault).name)] = reason;
  json["times_ms"] = Json::object();
  for (const ChaosDistribution& times : summary.times) {
    json["times_ms"][times.name] = {{"count", times.values_ms.size()},
                                    {"median", times.percentile(0.5)},
                                    {"p90", times.percentile(0.9)},
                                    {"p99", times.percentile(0.99)},
                                    {"max", times.percentile(1.0)}};
  }
  json["each"] = Json::array();
  for (const ChaosRun& run : runs) json["each"].push_back(json_of(run));
  return json.dump_any(1) + "\n";
}

std::string chaos_html(const ChaosHeader& header, std::span<const ChaosRun> runs,
                       const ChaosSummary& summary) {
  const bool right = summary.wrong_runs() == 0;
  std::string text = fmt::format("<header><h1>{}</h1><span class=\"badge {}\">{}</span></header>\n",
                                 escape_html(header.name), right ? "finished" : "failed",
                                 right ? "all right" : fmt::format("{} wrong", summary.wrong_runs()));
  text += fmt::format(
      "<p>{} on {}. Every run is compared byte by byte with the undisturbed one.</p>\n<p>{}</p>\n",
      escape_html(header.program), escape_html(header.host), escape_html(header.command));
  text += facts_section(header, summary) + faults_table(header, summary) + numbers_table(summary.numbers) +
          times_table(summary) + runs_table(runs);
  return html_page(header.name, "", text);
}

}  // namespace holdfast::chaos
