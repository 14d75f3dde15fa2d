#include "runtime/report/incident.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "runtime/core/check.h"
#include "runtime/core/median.h"
#include "runtime/core/units.h"
#include "runtime/hazard/run_cost.h"
#include "runtime/report/report_page.h"
#include "runtime/run/event_reading.h"

namespace holdfast::report {
namespace {

constexpr std::size_t steps_compared = 32;  // before and after, for the usual time of a step
constexpr std::int64_t margin_min_us = 10'000'000, margin_max_us = 600'000'000;

double seconds(std::int64_t time_us) {
  return static_cast<double>(time_us) / 1e6;
}

// Collects from the log what an incident needs, whose faults and times are known.
class IncidentCollector {
 public:
  explicit IncidentCollector(Incident& incident) : incident_(&incident) {}

  void take(const Json& json) {
    if (event_kind(json).empty()) return;
    const bool before = event_time(json) <= incident_->begin_us;
    if (const auto start = event_as<StartEvent>(json)) read_start(before, *start);
    if (before && event_kind(json) == EvaluationEvent::kind) computed_until_us_ = event_time(json);
    if (const auto step = event_as<StepEvent>(json)) read_step(before, *step);
    if (const auto recovery = event_as<RecoveryEvent>(json)) read_recovery(before, *recovery);
    if (const auto fault = event_as<FaultEvent>(json)) read_fault(before, *fault);
    if (const auto interval = event_as<IntervalEvent>(json);
        interval.has_value() && before && interval->tier == "ram" && std::isfinite(interval->cost_ms))
      incident_->snapshot_s = interval->cost_ms / 1e3;
    if (auto verdict = event_as<VerdictEvent>(json);
        verdict.has_value() && verdict->action == name_of(VerdictAction::evict))
      sent_away_ = std::move(verdict);
  }

  void finish() {
    Incident& one = *incident_;
    one.step_s = median({before_s_.begin(), before_s_.end()});
    one.step_after_s = median(after_s_);
    if (one.fault().level == FaultLevel::none) return;
    if (computed_until_us_ > 0)
      one.cost.unnoticed_s = std::max(0.0, seconds(one.begin_us - computed_until_us_));
    one.cost.pause_s = std::max(0.0, seconds(one.end_us - one.begin_us) - first_step_s_ - one.cost.absent_s);
    const bool is_smaller = has_fewer_ranks();
    if (is_smaller && !after_s_.empty())
      one.cost.slower_s = std::max(0.0, one.step_after_s - one.step_s) * static_cast<double>(smaller_steps_);
    one.usual_pause_s = median(other_pauses_s_);
    for (const auto& [host, ranks] : hosts_before_) {
      if (!hosts_after_.empty() && !hosts_after_.contains(host)) one.lost_hosts.push_back(host);
    }
  }

 private:
  using Hosts = std::map<std::string, int>;

  // Spares do not compute, and one that takes the place of a lost rank makes no step slower.
  bool has_fewer_ranks() const {
    const std::optional<RecoveryEvent>& recovery = incident_->recovery;
    if (recovery.has_value() && recovery->seats_before.has_value() && recovery->seats_after.has_value())
      return *recovery->seats_after < *recovery->seats_before;
    return incident_->ranks_after > 0 && incident_->ranks_after < incident_->ranks_before;
  }

  // The verdict for which a rank was sent away is the last one before the fault.
  void read_fault(bool before, const FaultEvent& fault) {
    const FaultEntry& first = incident_->faults.front();
    if (!before && !fault.is_aside()) is_over_ = is_over_ || fault.begin_us() > incident_->end_us;
    if (first.cause == FaultCause::rank_evicted && fault.begin_us() == first.time_us)
      incident_->verdict = sent_away_;
  }

  void read_start(bool before, const StartEvent& start) {
    const bool is_next = !before && incident_->ranks_after == 0;
    if (before) computed_until_us_ = start.time_us;
    if (is_next && incident_->fault().level == FaultLevel::launch) {
      double begun_ms = 0.0;
      for (const double part_ms : {start.join_ms, start.worker_ms, start.state_ms, start.gemm_peak_ms})
        begun_ms += std::isfinite(part_ms) ? part_ms : 0.0;
      incident_->cost.absent_s = std::max(0.0, seconds(start.time_us - incident_->begin_us) - begun_ms / 1e3);
    }
    read_ranks(before, start.ranks, start.hosts.value_or(Hosts()));
  }

  void read_ranks(bool before, int ranks, const Hosts& hosts) {
    if (before) {
      incident_->ranks_before = ranks;
      hosts_before_ = hosts;
    } else if (incident_->ranks_after == 0) {
      incident_->ranks_after = ranks;
      hosts_after_ = hosts;
    } else {
      is_over_ = true;  // a later start, growth or recovery
    }
  }

  void read_step(bool before, const StepEvent& step) {
    const double step_s = std::isfinite(step.step_duration_ms) ? step.step_duration_ms / 1e3 : 0.0;
    if (before) {
      computed_until_us_ = step.time_us;
      before_s_.push_back(step_s);
      if (before_s_.size() > steps_compared) before_s_.erase(before_s_.begin());
      return;
    }
    if (step.time_us == incident_->end_us) first_step_s_ = step_s;
    if (is_over_) return;
    if (step.step <= incident_->fault().step) {
      incident_->cost.again_s += step_s;
      return;
    }
    ++smaller_steps_;
    if (after_s_.size() < steps_compared) after_s_.push_back(step_s);
  }

  void read_recovery(bool before, const RecoveryEvent& recovery) {
    const bool in_place = recovery.level == RecoveryEvent::in_place;
    const bool is_loss = recovery.reason.value_or("") == RecoveryEvent::loss;
    const bool is_this = !before && in_place && is_loss && !incident_->recovery.has_value() && !is_over_ &&
                         incident_->fault().level == FaultLevel::in_place;
    if (before) computed_until_us_ = recovery.time_us;
    if (in_place) read_ranks(before, recovery.ranks_after, recovery.hosts.value_or(Hosts()));
    if (is_this) {
      incident_->recovery = recovery;
      if (incident_->ranks_before == 0) incident_->ranks_before = recovery.ranks_before;
    } else if (in_place && is_loss) {
      const auto* const duration_ms = std::get_if<double>(&recovery.duration_ms);
      if (duration_ms != nullptr && std::isfinite(*duration_ms))
        other_pauses_s_.push_back(*duration_ms / 1e3);
    }
  }

  Incident* incident_;
  std::vector<double> before_s_, after_s_, other_pauses_s_;
  Hosts hosts_before_, hosts_after_;
  std::int64_t computed_until_us_ = 0;  // end of what was done before the incident
  double first_step_s_ = 0.0;
  std::int64_t smaller_steps_ = 0;
  std::optional<VerdictEvent> sent_away_;  // the newest
  bool is_over_ = false;                   // what comes is another incident's, or nobody's
};

// Takes the faults that were mended with this one, and the times of all.
void take_faults(const IncidentLog& log, std::size_t at, Incident& incident) {
  const FaultEntry& chosen = log.faults[at];
  for (const FaultEntry& each : log.faults) {
    const bool is_same = &each == &chosen;
    const bool together =
        chosen.first_us > 0 && each.first_us == chosen.first_us && each.resumed_us == chosen.resumed_us;
    if (is_same || together) incident.faults.push_back(each);
  }
  incident.begin_us = incident.faults.front().time_us;
  incident.end_us = chosen.resumed_us > 0 ? chosen.resumed_us : std::max(log.end_us(), chosen.time_us);
}

// Keeps what is around the incident of the spans, saves and events of the run.
void take_surroundings(const RunHistory& history, Incident& incident) {
  const std::int64_t margin_us =
      std::clamp(4 * (incident.end_us - incident.begin_us), margin_min_us, margin_max_us);
  const std::int64_t from_us = incident.begin_us - margin_us;
  std::int64_t until_us = incident.end_us + margin_us;
  for (GoodputSpan span : history.ledger.spans) {
    span.begin_us = std::max(span.begin_us, from_us);
    span.end_us = std::min(span.end_us, until_us);
    if (span.begin_us < span.end_us) incident.spans.push_back(span);
  }
  for (const FaultEntry& fault : history.ledger.faults) {  // what comes after the next one is about that
    if (fault.level != FaultLevel::none && fault.time_us > incident.end_us)
      until_us = std::min(until_us, fault.time_us - 1);
  }
  const auto is_near = [&](std::int64_t time_us) { return from_us <= time_us && time_us <= until_us; };
  for (const IncidentSave& save : history.ledger.saves) {
    if (is_near(save.time_us)) incident.saves.push_back(save);
  }
  for (const RunEvent& event : history.events) {
    const bool is_routine = event.name == SnapshotEvent::kind || event.name == IntervalEvent::kind ||
                            event.name == FailureCostEvent::kind;
    if (is_near(event.time_us) && !is_routine) incident.events.push_back(event);
  }
}

std::string place_of(const std::string& resumed_from) {
  if (resumed_from == "ram") return "in RAM, the newest step that those who are left hold together";
  if (resumed_from == "disk") return "on disk, the newest whole checkpoint";
  return "the beginning: nothing was saved yet";
}

std::vector<std::string> decisions_of(const Incident& one) {
  std::vector<std::string> decisions;
  if (one.verdict.has_value())
    decisions.push_back(fmt::format("verdict of step {}: {}, so {}", one.verdict->step, one.verdict->what,
                                    one.verdict->action));
  if (one.recovery.has_value()) {
    decisions.push_back(
        fmt::format("in place (elastic.in_place): {} of {} ranks are left and hold the whole model",
                    one.recovery->ranks_after, one.recovery->ranks_before));
    decisions.push_back(fmt::format("go on from step {}, {}", one.recovery->resumed_from_step.value_or(0),
                                    place_of(one.recovery->resumed_from.value_or(""))));
  } else if (!one.fault().action.empty()) {
    decisions.push_back(one.fault().action);
  }
  for (const RunEvent& event : one.events) {
    const bool is_after = event.time_us >= one.begin_us;
    if (is_after && (event.name == ExcludeEvent::kind || event.name == DrainEvent::kind))
      decisions.push_back(fmt::format("{}: {}", event.name, event.details));
  }
  if (decisions.empty()) decisions.emplace_back("nothing so far");
  return decisions;
}

}  // namespace

std::string Incident::price_of(double duration_s) const {
  if (!price.is_known()) return "";
  return money_text(duration_s * std::max(ranks_before, 1), price.per_rank_hour, price.currency);
}

Result<Incident> read_incident(Env& env, const RunPaths& paths, std::size_t number) {
  HF_TRY(const LogReader log, LogReader::open(env, paths));
  HF_TRY(const RunHistory history, read_history(log));
  const std::size_t count = history.ledger.faults.size();
  if (count == 0)
    return fail(ExitCode::config, "{} has no incident {}: nothing failed in it", paths.directory, number);
  if (number < 1 || number > count)
    return fail(ExitCode::config, "{} has no incident {}: it has {} ({}); `holdfast report {}` lists them",
                paths.directory, number, count, count == 1 ? "number 1" : fmt::format("1 to {}", count),
                paths.directory);
  HF_TRY(std::vector<Incident> incidents, read_incidents(log, history, number, number));
  return std::move(incidents.front());
}

Result<std::vector<Incident>> read_incidents(const LogReader& log, const RunHistory& history,
                                             std::size_t first, std::size_t last) {
  HF_CHECK(1 <= first && last <= history.ledger.faults.size());
  std::vector<Incident> incidents(last + 1 - std::min(first, last + 1));
  std::vector<IncidentCollector> collectors;
  for (std::size_t number = first; number <= last; ++number) {
    Incident& incident = incidents[number - first];
    incident.number = number;
    incident.count = history.ledger.faults.size();
    take_faults(history.ledger, number - 1, incident);
    take_surroundings(history, incident);
    incident.missing_parts = history.missing_parts;
    incident.price = history.ledger.price;
    collectors.emplace_back(incident);
  }
  HF_TRY_VOID(log.for_each([&](const Json& event) {
    for (IncidentCollector& collector : collectors) collector.take(event);
  }));
  for (IncidentCollector& collector : collectors) collector.finish();
  for (Incident& incident : incidents) incident.decisions = decisions_of(incident);
  return incidents;
}

std::vector<std::string> cheaper_ways(const Incident& one) {
  constexpr double snapshots_share = 0.01;  // of all time, that RAM snapshots may cost
  constexpr double worth_s = 0.5;           // a smaller loss is no reason to change a config
  std::vector<std::string> ways;
  const IncidentCost& cost = one.cost;
  const double mostly_s = std::max(worth_s, cost.all_s() / 2);
  if (cost.unnoticed_s > mostly_s && one.playbook().kind == "rank-hangs")
    ways.push_back(fmt::format(
        "{} passed before it was sure that the rank hangs: a lower `watchdog.floor` is sooner, and "
        "ends ranks that are merely slow",
        shown_seconds(cost.unnoticed_s)));
  const bool on_disk = one.recovery.has_value() && one.recovery->resumed_from.value_or("") == "disk";
  if (cost.again_s > worth_s && on_disk) {
    ways.emplace_back(
        "no RAM snapshot was left: `checkpoint.replicas = \"on\"` keeps a copy of each on another host");
  } else if (cost.again_s > mostly_s && one.step_s > 0.0 && one.snapshot_s.has_value()) {
    const double steps = std::max(1.0, std::ceil(*one.snapshot_s / (snapshots_share * one.step_s)));
    if (steps < static_cast<double>(one.fault().lost_steps))
      ways.push_back(fmt::format(
          "most of it are steps that were computed again: with `checkpoint.ram_every_steps = "
          "{:.0f}` it would have "
          "been at most {}, for {:.1f} % of the time of all steps",
          steps, shown_seconds(steps * one.step_s), 100.0 * *one.snapshot_s / (steps * one.step_s)));
  }
  const bool by_start = one.fault().level == FaultLevel::restart || one.fault().level == FaultLevel::launch;
  if (by_start && one.usual_pause_s > 0.0)
    ways.push_back(
        fmt::format("another start took {}, where recoveries in place of this run took {}: they need a whole "
                    "copy of the model in the ranks that are left (`parallel.data`, `elastic.spares`)",
                    shown_seconds(cost.pause_s), shown_seconds(one.usual_pause_s)));
  if (cost.slower_s > mostly_s)
    ways.push_back(
        fmt::format("most of it are steps with {} instead of {} ranks: a rank in reserve takes the place at "
                    "once (`elastic.spares`), new ranks after `elastic.grow_after`",
                    one.ranks_after, one.ranks_before));
  if (ways.empty()) ways.emplace_back("nothing that a key of the config changes");
  return ways;
}

std::string incident_text(const Incident& one) {
  const std::string price = one.price_of(one.cost.all_s());
  std::string text = fmt::format("incident {} of {}: {}\n", one.number, one.count, one.playbook().kind);
  for (const FaultEntry& fault : one.faults)
    text += fmt::format("  {}{}{}\n", fault.who, fault.who.empty() ? "" : ": ", fault.noticed);
  for (const std::string& decision : one.decisions) text += fmt::format("decided: {}\n", decision);
  text += fmt::format(
      "cost: {}{}: {} until it was noticed, {} until the run computed again, {} for steps again",
      shown_seconds(one.cost.all_s()), price.empty() ? "" : " (" + price + ")",
      shown_seconds(one.cost.unnoticed_s), shown_seconds(one.cost.pause_s), shown_seconds(one.cost.again_s));
  if (one.cost.slower_s > 0.0) text += fmt::format(", {} with fewer ranks", shown_seconds(one.cost.slower_s));
  text += "\n";
  if (one.cost.absent_s > 0.0)
    text += fmt::format("nothing ran for {}, until the run was started again\n",
                        shown_seconds(one.cost.absent_s));
  for (const std::string& way : cheaper_ways(one)) text += fmt::format("cheaper: {}\n", way);
  if (!one.missing_parts.empty()) text += fmt::format("the log is not whole: {}\n", one.missing_parts);
  return text + fmt::format("you: {}\n", one.playbook().you_do);
}

}  // namespace holdfast::report
