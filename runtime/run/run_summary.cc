#include "runtime/run/run_summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

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

}  // namespace

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

void RunSummary::take(const Json& json) {
  if (const auto start = event_as<StartEvent>(json)) {
    ++starts;
    ranks = start->ranks;
    generation = start->generation;
    run_id = start->run;
    if (start->hosts.has_value()) hosts = *start->hosts;
  }
  if (const auto recovery = event_as(json, RecoveryEvent{.ranks_after = ranks})) {
    ++recoveries;
    ranks = recovery->ranks_after;
    lost_steps += recovery->lost_steps;
    if (recovery->hosts.has_value()) hosts = *recovery->hosts;
  }
  if (const auto step = event_as(json, StepEvent{.tokens_per_sec = 0.0})) {
    newest = Step{.step = step->step,
                  .loss = step->loss,
                  .tokens_per_second = step->tokens_per_sec,
                  .time_us = step->time_us};
  }
  if (const auto saved = event_as<CheckpointEvent>(json)) checkpoint = SavedStep{saved->step, saved->time_us};
  if (const auto saved = event_as<SnapshotEvent>(json)) snapshot = SavedStep{saved->step, saved->time_us};
  if (const auto told = event_as<FailureCostEvent>(json))
    cost = FailureCost{told->process_ms, told->host_ms, told->job_ms};
  numbers.take(json);
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
  if (run.newest.has_value()) {
    const RunSummary::Step& step = *run.newest;
    const std::string loss =
        std::isfinite(step.loss) ? fmt::format("loss {:.4f}", step.loss) : std::string("no finite loss");
    text += fmt::format("step      {}{}, {}, {:.0f} tokens/s, {}\n", step.step,
                        run.steps == 0 ? "" : fmt::format(" of {}", run.steps), loss, step.tokens_per_second,
                        ago(step.time_us, now_us));
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
  text += fmt::format("so far    {} start{}, {} recover{}, {} step{} computed again\n", run.starts,
                      run.starts == 1 ? "" : "s", run.recoveries, run.recoveries == 1 ? "y" : "ies",
                      run.lost_steps, run.lost_steps == 1 ? "" : "s");
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

}  // namespace

Json to_json(const RunSummary& run) {
  Json json = Json::object();
  json["directory"] = run.directory;
  json["run"] = run.run_id;
  json["state"] = run.status.state;
  if (run.holder_unknown.empty()) json["running"] = run.holder.has_value();
  json["ranks"] = run.ranks;
  json["generation"] = run.generation;
  json["starts"] = run.starts;
  json["recoveries"] = run.recoveries;
  json["lost_steps"] = run.lost_steps;
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
  }
  if (!run.hosts.empty()) json["hosts"] = Json(run.hosts);
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
  for (const RunSummary::Rank& rank : run.here) json["here"][std::to_string(rank.rank)] = rank.does;
  return json;
}

}  // namespace holdfast::run
