#include "runtime/run/run_summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "runtime/core/median.h"
#include "runtime/core/record.h"
#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/hardware_record.h"

namespace holdfast::run {
namespace {

std::string path_of(const RunPaths& paths) {
  return paths.launch() + "/hosts.json";
}

std::string ago(std::int64_t time_us, std::int64_t now_us) {
  return format_seconds(static_cast<double>(std::max<std::int64_t>(now_us - time_us, 0)) * 1e-6) + " ago";
}

std::string seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return format_seconds(static_cast<double>(std::max<std::int64_t>(end_ns - begin_ns, 0)) * 1e-9);
}

std::string work_of(const std::optional<double>& milliseconds) {
  return milliseconds.has_value() ? "up to " + format_seconds(*milliseconds * 1e-3) + " of work"
                                  : "all of its work";
}

std::string state_sentence(const RunSummary& run) {
  if (run.holder.has_value()) return "held by " + *run.holder;
  if (!run.holder_unknown.empty()) return run.holder_unknown;
  if (run.status.state == "running") {
    return "not running: its last start was killed" +
           (run.checkpoint.has_value()
                ? fmt::format("; its newest checkpoint is of step {}", run.checkpoint->step)
                : std::string("; it has no checkpoint"));
  }
  if (run.status.state == "failed")
    return fmt::format("not running: failed with exit code {}: {}", run.status.exit_code, run.status.reason);
  if (run.status.state == "unknown") return "not running: it did not get to its first step";
  return "not running: " + run.status.state;
}

std::string rate_line(const RunSummary& run) {
  const RunSummary::Step& step = *run.newest;
  std::string text;
  const auto add = [&](std::string part) { text += (text.empty() ? "" : ", ") + std::move(part); };
  if (step.mfu.has_value()) add(fmt::format("MFU {:.1f} %", 100.0 * *step.mfu));
  if (std::isfinite(step.gradient_norm)) add(fmt::format("gradient norm {:.4g}", step.gradient_norm));
  if (std::isfinite(step.learning_rate)) add(fmt::format("learning rate {:.3g}", step.learning_rate));
  if (const auto left = run.seconds_left(); left.has_value()) add(fmt::format("{} left", left_text(*left)));
  return text.empty() ? text : fmt::format("rates     {}\n", text);
}

}  // namespace

std::string left_text(double seconds) {
  constexpr double most = 1e10;
  if (seconds < 10.0) return format_seconds(seconds);
  return format_duration(static_cast<std::int64_t>(std::min(seconds, most)) * 1000);
}

std::string time_sentence(const SpanTimes& times_us) {
  std::string text = fmt::format("goodput {:.1f} %", 100.0 * goodput_of(times_us));
  std::string_view mark = ": ";
  for (std::size_t use = 0; use < times_us.size(); ++use) {
    if (times_us[use] == 0) continue;
    text += fmt::format("{}{} {}", std::exchange(mark, ", "), name_of(static_cast<SpanUse>(use)),
                        left_text(static_cast<double>(times_us[use]) * 1e-6));
  }
  return text;
}

Result<void> write_host_rows(Env& env, const RunPaths& paths, const HostRows& rows) {
  return env.replace_text(path_of(paths), record_to_text(rows) + "\n");
}

Result<void> remove_host_rows(Env& env, const RunPaths& paths) {
  return env.remove(path_of(paths));
}

HostRows read_host_rows(Env& env, const RunPaths& paths) {
  const Result<std::string> text = read_text_within(env, path_of(paths), text_limits::hardware_record);
  if (!text.ok()) return {};
  Result<HostRows> rows = record_from_text<HostRows>(*text);
  return rows.ok() ? std::move(rows).value() : HostRows();
}

namespace {

void take_step(const StepEvent& event, RunSummary& run) {
  constexpr std::int64_t first_hour_us = 3'600'000'000;
  constexpr std::size_t early_max = 10'000;
  run.newest = RunSummary::Step{.step = event.step,
                                .loss = event.loss,
                                .tokens_per_second = event.tokens_per_sec,
                                .time_us = event.time_us,
                                .gradient_norm = event.grad_norm,
                                .learning_rate = event.learning_rate,
                                .milliseconds = event.step_duration_ms,
                                .tokens = event.tokens,
                                .mfu = event.mfu,
                                .compute_ms = event.compute_ms,
                                .waited_ms = event.waited_ms};
  if (!run.recent.empty() && event.step != run.recent.back().step + 1) run.recent.clear();
  run.recent.push_back(*run.newest);
  if (run.recent.size() > RunSummary::paced_steps) run.recent.pop_front();
  run.source_samples = event.source_samples.value_or(std::vector<std::uint64_t>());
  if (run.first_step_us == 0) run.first_step_us = event.time_us;
  const bool is_early = event.time_us - run.first_step_us < first_hour_us && run.early_ms.size() < early_max;
  if (is_early && std::isfinite(event.step_duration_ms)) run.early_ms.push_back(event.step_duration_ms);
}

// Keeps what people ask after first. Time that follows says nothing about the rate of the steps before.
void take_news(const Json& json, RunSummary& run) {
  const std::string_view kind = event_kind(json);
  const auto fault = event_as<FaultEvent>(json);
  const bool is_break = kind == StartEvent::kind || kind == RecoveryEvent::kind || kind == DrainEvent::kind;
  if (is_break || (fault.has_value() && !fault->is_aside())) run.recent.clear();
  if (kind == FinishEvent::kind || (kind == StartEvent::kind && run.starts == 1)) return;
  std::optional<News> news = news_of(json);
  if (!news.has_value()) return;
  run.told.push_back(std::move(*news));
  if (run.told.size() > RunSummary::told_max) run.told.pop_front();
}

}  // namespace

void RunSummary::take(const Json& json) {
  if (const auto start = event_as<StartEvent>(json)) {
    ++starts;
    ranks = start->ranks;
    generation = start->generation;
    run_id = start->run;
    if (start->hosts.has_value()) hosts = *start->hosts;
    armed = start->armed.value_or(std::map<std::string, std::string>());
    unarmed = start->unarmed.value_or(std::map<std::string, std::string>());
    sources = start->sources.value_or(std::vector<EventSource>());
  }
  if (const auto recovery = event_as(json, RecoveryEvent{.ranks_after = ranks})) {
    ++recoveries;
    ranks = recovery->ranks_after;
    if (recovery->hosts.has_value()) hosts = *recovery->hosts;
    if (recovery->armed.has_value()) armed = *recovery->armed;
    if (recovery->unarmed.has_value()) unarmed = *recovery->unarmed;
  }
  incidents.read(json);
  if (const auto step = event_as(json, StepEvent{.tokens_per_sec = 0.0})) take_step(*step, *this);
  if (const auto saved = event_as<CheckpointEvent>(json)) checkpoint = SavedStep{saved->step, saved->time_us};
  if (const auto saved = event_as<SnapshotEvent>(json)) snapshot = SavedStep{saved->step, saved->time_us};
  if (const auto costs = event_as<FailureCostEvent>(json))
    cost = FailureCost{costs->process_ms, costs->host_ms, costs->job_ms};
  numbers.take(json);
  take_news(json, *this);
}

std::optional<double> RunSummary::step_seconds() const {
  if (recent.size() < 2) return std::nullopt;
  const auto made = static_cast<double>(recent.back().step - recent.front().step);
  return std::max(static_cast<double>(recent.back().time_us - recent.front().time_us) * 1e-6 / made, 1e-6);
}

std::optional<double> RunSummary::early_step_seconds() const {
  if (early_ms.empty()) return std::nullopt;
  std::vector<double> early = early_ms;
  return take_median(early) * 1e-3;
}

std::optional<double> RunSummary::exposed_seconds() const {
  const std::optional<double> each = step_seconds();
  if (!checkpoint.has_value() || !newest.has_value() || !each.has_value()) return std::nullopt;
  return *each * static_cast<double>(newest->step - std::min(newest->step, checkpoint->step));
}

std::optional<double> RunSummary::seconds_left() const {
  const std::optional<double> each = step_seconds();
  if (!holder.has_value() || !newest.has_value() || !each.has_value() || steps < newest->step)
    return std::nullopt;
  return *each * static_cast<double>(steps - newest->step);
}

RunSummary::Rank rank_of(const SlotView& slot, std::int64_t now_ns) {
  const auto seconds = [now_ns](std::int64_t begin_ns) {
    return static_cast<double>(std::max<std::int64_t>(now_ns - begin_ns, 0)) * 1e-9;
  };
  RunSummary::Rank rank{.rank = slot.launched_rank,
                        .does = activity_of(slot, now_ns),
                        .phase = std::string(name_of(slot.phase)),
                        .step = slot.step,
                        .phase_seconds = seconds(slot.begun_ns)};
  if (slot.storage_begun_ns != 0) rank.storage_seconds = seconds(slot.storage_begun_ns);
  if (slot.wait_begun_ns == 0) return rank;
  rank.waits_seconds = seconds(slot.wait_begun_ns);
  rank.waits_for = slot.wait_peer;
  rank.waits_in = slot.wait_operation;
  return rank;
}

std::string activity_of(const SlotView& slot, std::int64_t now_ns) {
  std::string text = name_of(slot.phase);
  if (slot.phase != Phase::start_up && slot.phase != Phase::spare) text += fmt::format(" {}", slot.step);
  text += " for " + seconds_between(slot.begun_ns, now_ns);
  if (slot.storage_begun_ns != 0) {
    text += fmt::format(", waits {} for the file system ({})", seconds_between(slot.storage_begun_ns, now_ns),
                        slot.storage_what);
  } else if (slot.wait_begun_ns != 0) {
    text += fmt::format(", waits {} for {}{}", seconds_between(slot.wait_begun_ns, now_ns),
                        slot.wait_peer < 0 ? "the others" : fmt::format("rank {}", slot.wait_peer),
                        slot.wait_operation.empty() ? "" : " in " + slot.wait_operation);
  }
  if (slot.drain_begun_ns != 0) text += fmt::format(", saves step {} in the background", slot.drain_step);
  return text;
}

std::string to_text(const RunSummary& run, std::int64_t now_us) {
  std::string text = fmt::format("{}  {}\n", run.directory, state_sentence(run));
  if (!run.log_unreadable.empty()) text += fmt::format("log       {}\n", run.log_unreadable);
  if (run.newest.has_value()) {
    const RunSummary::Step& step = *run.newest;
    const std::string loss =
        std::isfinite(step.loss) ? fmt::format("loss {:.4f}", step.loss) : std::string("no finite loss");
    text += fmt::format("step      {}{}, {}, {:.0f} tokens/s, {}\n", step.step,
                        run.steps == 0 ? "" : fmt::format(" of {}", run.steps), loss, step.tokens_per_second,
                        ago(step.time_us, now_us));
    text += rate_line(run);
    for (const SourceUse& use : uses_of(run.sources, run.source_samples, step.tokens))
      text += fmt::format("source    {}\n", text_of(use));
  }
  std::string where;
  for (const auto& [host, count] : run.hosts) where += fmt::format(", {} {}", host, count);
  if (run.ranks > 0)
    text += fmt::format("ranks     {}{}\n", run.ranks, where.empty() ? "" : " (" + where.substr(2) + ")");
  for (const RunSummary::Rank& rank : run.here)
    text += fmt::format("  rank {:<4} {}\n", rank.rank, rank.does);
  for (const HostRow& row : run.left_out) {
    const std::string pause =
        row.until_us > now_us
            ? fmt::format(", for another {:.0f} s", static_cast<double>(row.until_us - now_us) / 1e6)
            : "";
    text += fmt::format("left out  {} {} since {}{}: {}\n", row.host, row.state, time_text(row.since_us),
                        pause, row.reason);
  }
  for (const KernelFault& each : run.kernel_faults)
    text += fmt::format("kernel    {}: left out while kernels.on_failure = \"fall_back\"\n", text_of(each));
  const auto saved = [&](const char* name, const std::optional<RunSummary::SavedStep>& what) {
    if (what.has_value())
      text += fmt::format("{:<9} step {}, {}\n", name, what->step, ago(what->time_us, now_us));
  };
  saved("on disk", run.checkpoint);
  saved("in RAM", run.snapshot);
  if (run.cost.has_value() && run.holder.has_value()) {
    text += fmt::format("a failure now costs, of a process {}, of a host {}, of the job {}\n",
                        work_of(run.cost->process_ms), work_of(run.cost->host_ms), work_of(run.cost->job_ms));
  }
  if (!run.armed.empty() || !run.unarmed.empty()) {
    std::string off;
    for (const auto& [name, why] : run.unarmed)
      off += fmt::format("{}{}", off.empty() ? "; off: " : ", ", name);
    text += fmt::format("armed     {} of {} protections{}\n", run.armed.size(),
                        run.armed.size() + run.unarmed.size(), off);
  }
  const std::uint64_t again = run.incidents.lost_steps();
  text += fmt::format("so far    {} start{}, {} recover{}, {} step{} computed again\n", run.starts,
                      run.starts == 1 ? "" : "s", run.recoveries, run.recoveries == 1 ? "y" : "ies", again,
                      again == 1 ? "" : "s");
  if (run.newest.has_value()) text += fmt::format("time      {}\n", time_sentence(run.incidents.times_us()));
  if (const std::string money = money_sentence(run.incidents.rank_times_us(), run.incidents.price());
      !money.empty())
    text += fmt::format("cost      {}\n", money);
  if (run.free_bytes.has_value())
    text += fmt::format("disk      {} free where the run directory is\n", format_bytes(*run.free_bytes));
  if (const std::string numbers = summary_of(run.numbers); !numbers.empty())
    text += fmt::format("numbers   {}\n", numbers);
  return text;
}

namespace {

Json json_of(const NumbersLog& numbers) {
  Json json = Json::object();
  json["verdicts"] = numbers.verdicts.size();
  json["skipped_steps"] = Json(numbers.steps_with(name_of(VerdictAction::skip)));
  json["compared_steps"] = numbers.compared_steps();
  Json hardware = Json::array();
  for (const SuspectHardware& record : numbers.hardware()) {
    Json each = Json::object();
    if (!record.host.empty()) each["host"] = record.host;
    if (record.rank.has_value()) each["rank"] = *record.rank;
    each["computed_steps"] = Json(record.computed_steps);
    each["memory_steps"] = Json(record.memory_steps);
    each["link_steps"] = Json(record.link_steps);
    each["evicted_steps"] = Json(record.evicted_steps);
    hardware.push_back(std::move(each));
  }
  json["hardware"] = std::move(hardware);
  return json;
}

Json json_of(const RunSummary::Rank& rank) {
  Json json = Json::object();
  json["phase"] = rank.phase;
  json["step"] = rank.step;
  json["phase_seconds"] = rank.phase_seconds;
  if (rank.storage_seconds.has_value()) json["storage_seconds"] = *rank.storage_seconds;
  if (!rank.waits_seconds.has_value()) return json;
  json["waits_seconds"] = *rank.waits_seconds;
  if (rank.waits_for >= 0) json["waits_for"] = rank.waits_for;
  if (!rank.waits_in.empty()) json["waits_in"] = rank.waits_in;
  return json;
}

// Puts the numbers of the newest step, and what follows from all of them.
void put_rates(const RunSummary& run, Json& json) {
  const RunSummary::Step& step = *run.newest;
  const auto put = [&](const char* name, std::optional<double> value) {
    if (value.has_value() && std::isfinite(*value)) json[name] = *value;
  };
  put("grad_norm", step.gradient_norm);
  put("learning_rate", step.learning_rate);
  put("step_duration_ms", step.milliseconds);
  put("mfu", step.mfu);
  put("compute_ms", step.compute_ms);
  put("waited_ms", step.waited_ms);
  put("seconds_left", run.seconds_left());
  put("exposed_seconds", run.exposed_seconds());
  if (step.tokens != 0) json["tokens"] = step.tokens;
  const SpanTimes times_us = run.incidents.times_us();
  json["goodput"] = goodput_of(times_us);
  for (std::size_t use = 0; use < times_us.size(); ++use)
    json["seconds"][std::string(name_of(static_cast<SpanUse>(use)))] =
        static_cast<double>(times_us[use]) / 1e6;
  const RankPrice price = run.incidents.price();
  if (!price.is_known()) return;
  const std::array<double, span_uses> money = money_of(run.incidents.rank_times_us(), price);
  double all = 0.0;
  for (std::size_t use = 0; use < money.size(); ++use) {
    json["money"][std::string(name_of(static_cast<SpanUse>(use)))] = money[use];
    all += money[use];
  }
  json["money_total"] = all;
  json["currency"] = price.currency;
}

}  // namespace

Json to_json(const RunSummary& run) {
  Json json = Json::object();
  json["schema"] = event_schema_version;
  json["directory"] = run.directory;
  json["run"] = run.run_id;
  json["state"] = run.status.state;
  if (run.holder_unknown.empty()) json["running"] = run.holder.has_value();
  if (!run.log_unreadable.empty()) json["log_unreadable"] = run.log_unreadable;
  json["ranks"] = run.ranks;
  json["generation"] = run.generation;
  json["starts"] = run.starts;
  json["recoveries"] = run.recoveries;
  json["lost_steps"] = run.incidents.lost_steps();
  if (run.holder.has_value()) json["holder"] = *run.holder;
  if (run.status.state == "failed") {
    json["exit_code"] = run.status.exit_code;
    json["reason"] = run.status.reason;
  }
  if (run.steps != 0) json["steps"] = run.steps;
  if (run.newest.has_value()) {
    json["step"] = run.newest->step;
    if (std::isfinite(run.newest->loss)) json["loss"] = run.newest->loss;
    json["tokens_per_sec"] = run.newest->tokens_per_second;
    json["step_time_us"] = run.newest->time_us;
    put_rates(run, json);
    for (const SourceUse& use : uses_of(run.sources, run.source_samples, run.newest->tokens))
      json["sources"].push_back(
          {{"path", use.path}, {"samples", use.samples}, {"tokens", use.tokens}, {"epochs", use.epochs}});
  }
  if (run.free_bytes.has_value()) json["free_bytes"] = *run.free_bytes;
  if (!run.hosts.empty()) json["hosts"] = Json(run.hosts);
  if (!run.armed.empty()) json["armed"] = Json(run.armed);
  if (!run.unarmed.empty()) json["unarmed"] = Json(run.unarmed);
  const auto saved = [&](const char* name, const std::optional<RunSummary::SavedStep>& what) {
    if (!what.has_value()) return;
    json[name]["step"] = what->step;
    json[name]["time_us"] = what->time_us;
  };
  saved("checkpoint", run.checkpoint);
  saved("snapshot", run.snapshot);
  if (run.cost.has_value()) {
    Json cost = Json::object();
    if (run.cost->process_ms.has_value()) cost["process_ms"] = *run.cost->process_ms;
    if (run.cost->host_ms.has_value()) cost["host_ms"] = *run.cost->host_ms;
    if (run.cost->job_ms.has_value()) cost["job_ms"] = *run.cost->job_ms;
    json["failure_cost"] = cost;
  }
  if (!run.numbers.verdicts.empty()) json["numbers"] = json_of(run.numbers);
  for (const HostRow& row : run.left_out) {
    Json& json_of_host = json["left_out"][row.host];
    json_of_host["state"] = row.state;
    json_of_host["reason"] = row.reason;
    json_of_host["since_us"] = row.since_us;
    if (row.until_us != 0) json_of_host["until_us"] = row.until_us;
    if (row.failures != 0) json_of_host["failures"] = row.failures;
  }
  for (const KernelFault& each : run.kernel_faults)
    json["kernel_faults"].push_back({{"op", each.kernel.op},
                                     {"kernel", each.kernel.implementation},
                                     {"library", each.kernel.library},
                                     {"digest", each.kernel.digest},
                                     {"how", name_of(each.how)},
                                     {"rank", each.rank},
                                     {"host", each.host},
                                     {"failed_after_step", each.step}});
  for (const RunSummary::Rank& rank : run.here) {
    json["here"][std::to_string(rank.rank)] = rank.does;
    json["ranks_here"][std::to_string(rank.rank)] = json_of(rank);
  }
  for (const RunSummary::RankTime& rank : run.times) {
    Json& times = json["rank_times"][std::to_string(rank.rank)];
    times["host"] = rank.host;
    times["own_ms"] = rank.own_ms;
    times["waited_ms"] = rank.waited_ms;
  }
  return json;
}

}  // namespace holdfast::run
