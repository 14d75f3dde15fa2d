#include "runtime/plan/reliability.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/plan/plan_report.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/failure_record.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_history.h"

namespace holdfast::plan {
namespace {

constexpr double gigabyte = 1e9;
// Share of the faults that a new process cures (DLRover: about 75 %); the others take a host away.
constexpr double process_share = 0.75;
// Time to notice and to go on, where no recovery of this run was measured: a hang or a death within 5 s, a process in
// 1 s, a start with the host left out in 60 s (docs/scaling.md).
constexpr double process_recovery_seconds = 6.0, host_recovery_seconds = 65.0;
// Waiting for a save on an H200, in seconds for each GB of a rank; a processor copies and writes at 1 GB/s. A host's disk or its
// share of one takes 1 GB/s.
constexpr double gpu_save_seconds_per_gb = 0.022, cpu_save_seconds_per_gb = 1.0, disk_seconds_per_gb = 1.0;
// A job without fault tolerance stands still for a checkpoint each hour, and somebody starts it again.
constexpr double by_hand_interval_seconds = hour_seconds, by_hand_restart_seconds = 900.0;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string percent(double share) {
  const double value = 100.0 * share;
  constexpr double least = 0.001;
  if (value > 0.0 && value < least) return "under 0.001 %";
  if (value >= 99.995 || value < 0.005) return fmt::format("{:.3g} %", value);
  return fmt::format("{:.{}f} %", value, value < 0.1 || value > 99.9 ? 3 : 2);
}

// Returns "3h50m", "24d3h", "12.4 s": two units are enough for an estimate.
std::string span_text(double seconds) {
  constexpr double two_minutes = 120.0, two_days = 2 * day_seconds, most = 1e15;
  if (!(seconds < most)) return "for ever";
  if (seconds < two_minutes) return format_seconds(seconds);
  const double unit = seconds < hour_seconds ? 1.0 : seconds < two_days ? 60.0 : hour_seconds;
  if (seconds > 1000 * day_seconds) return fmt::format("{:.3g} years", seconds / (365.25 * day_seconds));
  return format_duration(std::llround(seconds / unit) * static_cast<std::int64_t>(unit) * 1000);
}

double bytes_of_rank(const LayoutPlan& plan) {
  return static_cast<double>(state_bytes(make_model_spec(plan.config), plan.config.optimizer)) /
         plan.shape.ranks();
}

bool hosts_have_replicas(const LayoutPlan& plan, int hosts) {
  return hosts > 1 && plan.shape.data > 1 && plan.config.checkpoint.replicas != "off" &&
         plan.config.checkpoint.ram_every_steps != 0;
}

// Returns the cost of a save, as measured or by its bytes.
Figure save_cost(const LayoutPlan& plan, const PlannedMachine& machine, const RunFigures& figures,
                 const std::optional<SaveTimes>& measured) {
  if (measured.has_value()) return {measured->cost_seconds, fmt::format("measured in {}", figures.directory)};
  const double gigabytes = bytes_of_rank(plan) / gigabyte;
  const bool on_gpu = !machine.host_sees_memory;
  const double rate = on_gpu ? gpu_save_seconds_per_gb : cpu_save_seconds_per_gb;
  return {gigabytes * rate, fmt::format("assumed: {} s for each of a rank's {:.3g} GB", rate, gigabytes)};
}

TierPlan disk_plan(const LayoutPlan& plan, const PlannedMachine& machine, const RunFigures& figures,
                   double step_seconds, double mtbf_seconds) {
  const CheckpointConfig& checkpoint = plan.config.checkpoint;
  TierPlan tier{.cost_seconds = save_cost(plan, machine, figures, figures.save),
                .under_way_seconds = step_seconds};
  const double host_gigabytes = bytes_of_rank(plan) / gigabyte * machine.ranks_on_host(plan.shape.ranks());
  tier.counts_after_seconds = figures.save.has_value() && figures.save->durable_seconds > 0.0
                                  ? figures.save->durable_seconds
                                  : host_gigabytes * disk_seconds_per_gb;
  std::int64_t steps = checkpoint.every_steps;
  tier.exists = steps != 0 || checkpoint.every_ms > 0;
  if (!tier.exists) return tier;
  double interval = std::numeric_limits<double>::infinity();
  if (steps > 0) {
    interval = static_cast<double>(steps) * step_seconds;
    tier.chosen_by = "checkpoint.every_steps";
  } else if (steps == CheckpointConfig::interval_auto) {
    const SaveTimes times{.step_seconds = step_seconds,
                          .cost_seconds = tier.cost_seconds.value,
                          .durable_seconds = tier.counts_after_seconds};
    steps = steps_between_saves(times, mtbf_seconds);
    const double limit = static_cast<double>(checkpoint.lose_at_most_ms) / 1e3;
    const std::int64_t cut = limit > 0.0 ? saves_within(steps, limit, times) : steps;
    interval = static_cast<double>(cut) * step_seconds;
    constexpr double rounding = 1.0 + 1e-9;
    const bool is_kept = limit <= 0.0 || most_lost_seconds(interval, times) <= limit * rounding;
    tier.chosen_by = !is_kept      ? "checkpoint.lose_at_most asks for more, the disk takes no more"
                     : cut < steps ? "checkpoint.lose_at_most"
                     : interval <= tier.counts_after_seconds + step_seconds
                         ? "as often as the disk takes them"
                         : "Young, Daly";
  }
  if (const double clock = static_cast<double>(checkpoint.every_ms) / 1e3; clock > 0.0 && clock < interval) {
    interval = clock;
    tier.chosen_by = "checkpoint.every";
  }
  tier.interval_seconds = std::max(interval, tier.counts_after_seconds);
  return tier;
}

TierPlan ram_plan(const LayoutPlan& plan, const PlannedMachine& machine, const RunFigures& figures,
                  double step_seconds) {
  const CheckpointConfig& checkpoint = plan.config.checkpoint;
  TierPlan tier{.exists = checkpoint.ram_every_steps != 0,
                .cost_seconds = save_cost(plan, machine, figures, figures.snapshot),
                .counts_after_seconds = step_seconds};
  if (!tier.exists) return tier;
  std::int64_t steps = checkpoint.ram_every_steps;
  tier.chosen_by = "checkpoint.ram_every_steps";
  if (steps == CheckpointConfig::interval_auto) {
    steps = steps_between_snapshots({.step_seconds = step_seconds, .cost_seconds = tier.cost_seconds.value});
    tier.chosen_by = "as often as costs 0.5 %";
    const double limit = static_cast<double>(checkpoint.lose_at_most_ms) / 1e3;
    const std::int64_t cut =
        limit > 0.0 ? steps_within(steps, std::max(limit - step_seconds, step_seconds), step_seconds) : steps;
    if (cut < steps) tier.chosen_by = "checkpoint.lose_at_most";
    steps = cut;
  }
  tier.interval_seconds = static_cast<double>(steps) * step_seconds;
  return tier;
}

// Returns what a failure after which only `tier` is left costs in work; `sent`: until the save is elsewhere.
ReachPlan reach_of(std::string_view name, double share, const TierPlan& tier, double sent,
                   double training_seconds, std::string from) {
  ReachPlan plan{.reach = {.name = name, .share = share}, .recovered_from = std::move(from)};
  if (!tier.exists) {
    plan.reach.lost_seconds = training_seconds / 2.0;
    plan.recovered_from = "the start";
    return plan;
  }
  const double interval = std::max(tier.interval_seconds, sent), after = tier.counts_after_seconds + sent;
  plan.reach.lost_seconds = interval / 2.0 + after;
  plan.most_lost_seconds = interval + after + tier.under_way_seconds;
  return plan;
}

// Returns how long the run waits for a host that failed, in time that is lost, with so many spare ranks. It goes on without
// the host where it has a replica to spare, at the pace of fewer replicas: then their lanes are additional work for the others.
double waiting_seconds(const ReliabilityPlan& result, const LayoutPlan& plan, const PlannedMachine& machine,
                       const ReliabilityOptions& options, std::int64_t spares) {
  const int ranks = plan.shape.ranks(), replica = plan.shape.pipeline * plan.shape.tensor;
  const int on_host = machine.ranks_on_host(ranks), lost_ranks = std::max(on_host, replica);
  const bool goes_on =
      ranks - lost_ranks >= replica * static_cast<int>(plan.config.elastic.min_data_parallel);
  const double fewer = options.smaller_step_seconds.has_value() && plan.time.has_value()
                           ? 1.0 - plan.time->seconds() / *options.smaller_step_seconds
                           : static_cast<double>(lost_ranks) / ranks;
  const Pool hosts{.needed = result.hosts,
                   .unit_mtbf_seconds = result.mtbf_seconds * result.hosts,
                   .replacement_seconds = result.replacement_seconds};
  // With one host away already: are there enough for it?
  const std::int64_t spare_hosts = spares / on_host;
  const double shortage = spare_hosts == 0 ? 1.0 : 1.0 - p_enough(hosts, spare_hosts - 1);
  return result.replacement_seconds * (goes_on ? std::max(fewer, 0.0) : 1.0) * shortage;
}

void plan_reaches(ReliabilityPlan& result, const LayoutPlan& plan, const PlannedMachine& machine,
                  const RunFigures& figures, const ReliabilityOptions& options) {
  const bool replicas = hosts_have_replicas(plan, result.hosts);
  const double sent = replicas && machine.link_bytes_per_second.has_value()
                          ? bytes_of_rank(plan) / *machine.link_bytes_per_second
                          : 0.0;
  const TierPlan& of_process = result.ram.exists ? result.ram : result.disk;
  const std::string of_disk = "disk";
  const double whole = result.training_seconds;
  ReachPlan process =
      reach_of("process", process_share, of_process, 0.0, whole, result.ram.exists ? "RAM" : of_disk);
  ReachPlan host = reach_of("host", 1.0 - process_share, replicas ? result.ram : result.disk, sent, whole,
                            replicas ? "RAM of another host" : of_disk);
  ReachPlan job = reach_of("job", 0.0, result.disk, 0.0, whole, of_disk);
  process.reach.recovery_seconds = figures.recovery_seconds.value_or(process_recovery_seconds);
  process.recovery_source =
      figures.recovery_seconds.has_value() ? fmt::format("measured in {}", figures.directory) : "assumed";
  host.reach.recovery_seconds = job.reach.recovery_seconds = host_recovery_seconds;
  host.recovery_source = job.recovery_source = "assumed";
  host.reach.waiting_seconds = waiting_seconds(result, plan, machine, options, plan.config.elastic.spares);
  result.reaches = {std::move(process), std::move(host), std::move(job)};
}

RunTime time_of(const ReliabilityPlan& plan) {
  std::vector<FailureReach> reaches;
  for (const ReachPlan& each : plan.reaches) reaches.push_back(each.reach);
  if (!plan.disk.exists && !plan.ram.exists)
    return unprotected_run(plan.training_seconds, plan.mtbf_seconds, reaches);
  return expected_run(plan.training_seconds, plan.disk.overhead() + plan.ram.overhead(), plan.mtbf_seconds,
                      reaches);
}

// Returns the same run with the spares that are recommended, which are paid, too.
Alternative with_spares(const ReliabilityPlan& plan, double host_waiting_seconds) {
  ReliabilityPlan other = plan;
  other.reaches[1].reach.waiting_seconds = host_waiting_seconds;
  const RunTime time = time_of(other);
  return {fmt::format("with elastic.spares = {}", plan.spares_95), time.elapsed(), time.ettr(),
          static_cast<double>(plan.ranks + plan.spares_95)};
}

std::vector<Alternative> without_fault_tolerance(const ReliabilityPlan& plan) {
  const FailureReach all{.name = "job",
                         .share = 1.0,
                         .lost_seconds = by_hand_interval_seconds / 2.0,
                         .recovery_seconds = by_hand_restart_seconds};
  const RunTime by_hand =
      expected_run(plan.training_seconds, plan.disk.counts_after_seconds / by_hand_interval_seconds,
                   plan.mtbf_seconds, std::span(&all, 1));
  const RunTime unprotected = unprotected_run(plan.training_seconds, plan.mtbf_seconds, std::span(&all, 1));
  const auto ranks = static_cast<double>(plan.ranks);
  return {
      {"without fault tolerance, but with a spare host at hand: training stands for a checkpoint each hour, "
       "and all is started again by hand after 15m",
       by_hand.elapsed(), by_hand.ettr(), ranks},
      {"without any saves, too", unprotected.elapsed(), unprotected.ettr(), ranks}};
}

// Returns the history as one of so many ranks: what fails are devices, so a run of 4 ranks for 256 hours has told as much as one
// of 1,024 for an hour.
FailureHistory counted_history(const RunFigures& figures, int ranks) {
  if (figures.ranks == 0) return {};
  return {.failures = figures.history.failures,
          .running_seconds = figures.history.running_seconds * figures.ranks / ranks};
}

std::string note_on(const RunFigures& figures, int ranks) {
  if (figures.directory.empty() || figures.ranks == ranks) return {};
  if (figures.ranks == 0) {
    return fmt::format(
        "the event log of {} does not say how many ranks it had: its failures, steps and saves "
        "are not counted",
        figures.directory);
  }
  return fmt::format(
      "the steps and saves of {} were those of {} rank{}, and are not counted; its running time "
      "is, as that of {} rank{}",
      figures.directory, figures.ranks, figures.ranks == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s");
}

// Returns the ranks that train after this event, if it says so. `spares`: ranks of a start that wait.
std::optional<int> training_ranks(const Json& event, int spares) {
  if (const auto start = event_as<StartEvent>(event); start.has_value() && start->ranks > 0)
    return std::max(start->ranks - spares, 1);
  const auto recovery = event_as<RecoveryEvent>(event);
  if (!recovery.has_value() || recovery->level != RecoveryEvent::in_place || recovery->ranks_after <= 0)
    return std::nullopt;
  return recovery->seats_after.value_or(std::max(recovery->ranks_after - recovery->spares.value_or(0), 1));
}

// Returns the ranks by the newest event that says so and that lies before the last FailureTally::tail_bytes of the log; 0: none
// does. Long runs have few such events, so lines are searched and not read.
int ranks_before_tail(Env& env, const RunPaths& paths, int spares) {
  const Result<LogReader> log = LogReader::open(env, paths);
  if (!log.ok()) return 0;
  constexpr std::uint64_t piece = FailureTally::tail_bytes, longest_line = 65'536;
  for (std::uint64_t end = log->bytes() - std::min(log->bytes(), piece); end > 0;) {
    const std::uint64_t begin = end - std::min(end, piece);
    const Result<std::string> text = log->read(begin, std::min(end + longest_line, log->bytes()) - begin);
    if (!text.ok()) return 0;
    int ranks = 0;
    const std::string_view all = *text;
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t newline = std::min(all.find('\n', at), all.size());
      const std::string_view line = all.substr(at, newline - at);
      at = newline + 1;
      if (line.find(StartEvent::kind) == line.npos && line.find(RecoveryEvent::kind) == line.npos) continue;
      for_each_event(std::string(line) + "\n",
                     [&](const Json& event) { ranks = training_ranks(event, spares).value_or(ranks); });
    }
    if (ranks > 0) return ranks;
    end = begin;
  }
  return 0;
}

bool is_whole(const SaveTimes& times) {
  return std::isfinite(times.step_seconds) && std::isfinite(times.cost_seconds) &&
         std::isfinite(times.durable_seconds);
}

}  // namespace

RunFigures read_run_figures(Env& env, const std::string& directory, int ranks, int spares) {
  const RunPaths paths{directory};
  RunFigures figures;
  const std::optional<FailureHistory> history = read_failure_history(env, paths);
  if (!history.has_value()) return figures;
  figures.directory = directory;
  figures.history = *history;
  const Result<LogTail> tail = read_log_tail(env, paths, FailureTally::tail_bytes);
  if (!tail.ok()) return figures;
  if (!tail->whole) figures.ranks = ranks_before_tail(env, paths, spares);
  std::vector<double> steps, recoveries;
  for_each_event(tail->lines, [&](const Json& event) {
    const int now = training_ranks(event, spares).value_or(figures.ranks);
    if (now != figures.ranks || event_as<StartEvent>(event).has_value()) {
      figures.ranks = now;
      figures.save = figures.snapshot = std::nullopt;
      steps.clear();
    }
    if (const auto step = event_as<StepEvent>(event);
        step.has_value() && std::isfinite(step->step_duration_ms))
      steps.push_back(step->step_duration_ms / 1e3);
    if (const auto interval = event_as<IntervalEvent>(event)) {
      const SaveTimes times{.step_seconds = interval->step_ms / 1e3,
                            .cost_seconds = interval->cost_ms / 1e3,
                            .durable_seconds = interval->durable_ms.value_or(0.0) / 1e3};
      if (is_whole(times)) (interval->tier == "disk" ? figures.save : figures.snapshot) = times;
    }
    const auto recovery = event_as<RecoveryEvent>(event);
    if (!recovery.has_value() || recovery->level != RecoveryEvent::in_place ||
        recovery->reason != RecoveryEvent::loss)
      return;
    const double seconds =
        std::visit([](auto ms) { return static_cast<double>(ms); }, recovery->duration_ms) / 1e3;
    if (std::isfinite(seconds)) recoveries.push_back(seconds);
  });
  if (!recoveries.empty()) figures.recovery_seconds = median_of(recoveries);
  if (figures.ranks != ranks) figures.save = figures.snapshot = std::nullopt;
  constexpr std::size_t enough = 5;
  if (figures.ranks == ranks && steps.size() >= enough) figures.step_seconds = median_of(steps);
  return figures;
}

ReliabilityPlan plan_reliability(const LayoutPlan& plan, const PlannedMachine& machine,
                                 const RunFigures& figures, const ReliabilityOptions& options) {
  const Config& config = plan.config;
  const int ranks = plan.shape.ranks(), on_host = machine.ranks_on_host(ranks);
  ReliabilityPlan result{.ranks = ranks,
                         .hosts = (ranks + on_host - 1) / on_host,
                         .device_kind = options.device_kind,
                         .history = counted_history(figures, ranks),
                         .replacement_seconds = options.replacement_seconds,
                         .spares = config.elastic.spares};
  result.prior = run_prior({.run_mtbf_seconds = static_cast<double>(config.checkpoint.mtbf_ms) / 1e3,
                            .device_mtbf_hours = config.hazard.mtbf_hours},
                           options.device_kind, ranks);
  result.mtbf_seconds = expected_mtbf_seconds(result.prior, result.history);
  result.saving_mtbf_seconds = expected_mtbf_seconds(cautious(result.prior), result.history);
  result.ranks_note = note_on(figures, ranks);
  result.unit = result.hosts > 1 ? on_host : 1;
  const int units = result.hosts > 1 ? result.hosts : ranks;
  result.pool = {.needed = units,
                 .unit_mtbf_seconds = result.mtbf_seconds * units,
                 .replacement_seconds = options.replacement_seconds};
  result.spares_95 = spares_for(result.pool, 0.95) * result.unit;
  result.spares_99 = spares_for(result.pool, 0.99) * result.unit;
  if (figures.step_seconds.has_value()) {
    result.step_seconds = {*figures.step_seconds, fmt::format("measured in {}", figures.directory)};
  } else if (plan.time.has_value()) {
    result.step_seconds = {plan.time->seconds(), "estimated above"};
  }
  if (!result.step_seconds.has_value()) return result;
  const double step_seconds = result.step_seconds->value;
  result.training_seconds = step_seconds * static_cast<double>(config.training.steps);
  result.tokens = plan.tokens_per_step() * static_cast<std::uint64_t>(config.training.steps);
  result.p_no_failure = p_no_failure(result.training_seconds, result.mtbf_seconds);
  result.disk = disk_plan(plan, machine, figures, step_seconds, result.saving_mtbf_seconds);
  result.ram = ram_plan(plan, machine, figures, step_seconds);
  plan_reaches(result, plan, machine, figures, options);
  result.time = time_of(result);
  if (result.spares_95 > config.elastic.spares)
    result.others.push_back(
        with_spares(result, waiting_seconds(result, plan, machine, options, result.spares_95)));
  for (Alternative& each : without_fault_tolerance(result)) result.others.push_back(std::move(each));
  return result;
}

namespace {

std::string note_text(const ReliabilityPlan& plan) {
  return plan.ranks_note.empty() ? "" : "  note        " + plan.ranks_note + "\n";
}

std::string rate_text(const ReliabilityPlan& plan) {
  const std::string of_ranks = fmt::format("{} rank{}", plan.ranks, plan.ranks == 1 ? "" : "s");
  const DevicePrior& published = device_prior(plan.device_kind);
  std::string why =
      fmt::format("{:.0f} h of a device, {} ({})", published.mtbf_hours, of_ranks, published.source);
  if (plan.prior.is_fixed) why = "checkpoint.mtbf";
  if (plan.prior.is_stated) why = fmt::format("hazard.mtbf_hours, {}", of_ranks);
  if (!plan.prior.is_fixed && plan.history.running_seconds > 0.0) {
    why += fmt::format("; and {} failure{} in {} of this run", plan.history.failures,
                       plan.history.failures == 1 ? "" : "s", span_text(plan.history.running_seconds));
  }
  return fmt::format("  failures    {:.3g} a day, one every {}: {}\n", failures_per_day(plan.mtbf_seconds),
                     span_text(plan.mtbf_seconds), why);
}

std::string spares_text(const ReliabilityPlan& plan) {
  const auto counted = [&](std::int64_t spares) {
    if (plan.hosts == 1) return fmt::format("{} rank{}", spares, spares == 1 ? "" : "s");
    const std::int64_t hosts = spares / plan.unit;
    return fmt::format("{} host{} ({} ranks)", hosts, hosts == 1 ? "" : "s", spares);
  };
  const auto enough = [&](std::int64_t spares, double chance) {
    const bool is_so = p_enough(plan.pool, spares / plan.unit) >= chance;
    return fmt::format("{} {}", counted(spares), is_so ? "are enough" : "are too few for");
  };
  return fmt::format("  spares      {} 95 % of the time, {} 99 %, where what failed is back after {}\n",
                     enough(plan.spares_95, 0.95), enough(plan.spares_99, 0.99),
                     span_text(plan.replacement_seconds));
}

std::string tier_text(const char* name, const TierPlan& tier) {
  if (!tier.exists) return fmt::format("  {} none\n", name);
  return fmt::format("  {} every {} ({}): {} of the time; one costs {} ({})\n", name,
                     span_text(tier.interval_seconds), tier.chosen_by, percent(tier.overhead()),
                     format_seconds(tier.cost_seconds.value), tier.cost_seconds.source);
}

std::string reaches_text(const ReliabilityPlan& plan) {
  TextTable table(
      {"when it dies", "of failures", "goes on from", "work lost", "at most", "recovery", "waiting"}, 1);
  for (const ReachPlan& each : plan.reaches) {
    table.add({fmt::format("a {}", each.reach.name), percent(each.reach.share), each.recovered_from,
               span_text(each.reach.lost_seconds),
               each.most_lost_seconds.has_value() ? span_text(*each.most_lost_seconds) : "all of it",
               fmt::format("{} ({})", span_text(each.reach.recovery_seconds), each.recovery_source),
               span_text(each.reach.waiting_seconds)});
  }
  return table.text();
}

std::string ettr_text(const ReliabilityPlan& plan) {
  const RunTime& time = plan.time;
  if (!std::isfinite(time.elapsed()))
    return "  elapsed     for ever: a failure undoes more than is done between two of them; save more "
           "often\n";
  const double all = time.elapsed();
  return fmt::format(
      "  elapsed     {} with {:.3g} failures: ETTR {} trains, {} saves, {} is computed again, {} recovers, "
      "{} waits "
      "for hosts\n",
      span_text(all), time.failures, percent(time.ettr()), percent(time.saves / all),
      percent(time.lost / all), percent(time.recovery / all), percent(time.waiting / all));
}

std::string hours_text(double rank_seconds) {
  const double hours = rank_seconds / hour_seconds;
  return hours < 1e4 ? fmt::format("{:.4g}", hours) : fmt::format("{:.0f}", hours);
}

std::string cost_text(const ReliabilityPlan& plan, const CostConfig& cost) {
  const double elapsed = plan.time.elapsed();
  const bool priced = cost.per_rank_hour > 0.0;
  const auto money = [&](double rank_seconds) {
    return money_text(rank_seconds, cost.per_rank_hour, cost.currency);
  };
  std::string text;
  if (std::isfinite(elapsed)) {
    text += fmt::format("  in all      {} rank hours", hours_text(plan.rank_seconds(elapsed)));
    text += priced
                ? fmt::format(": {}, of which {} for saves and failures\n", money(plan.rank_seconds(elapsed)),
                              money(plan.rank_seconds(elapsed - plan.training_seconds)))
                : std::string("; cost.per_rank_hour gives their price\n");
  }
  for (const Alternative& each : plan.others) {
    text += fmt::format("              {}: {}", each.name, span_text(each.elapsed_seconds));
    constexpr double never_s = 1e15;
    if (each.elapsed_seconds < never_s) {
      text += fmt::format(", ETTR {}", percent(each.ettr));
      if (priced) text += ", " + money(each.elapsed_seconds * each.ranks);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string reliability_text(const ReliabilityPlan& plan, const CostConfig& cost) {
  std::string text = "reliability and cost";
  if (!plan.step_seconds.has_value()) {
    return text + "\n" + note_text(plan) + rate_text(plan) + spares_text(plan) +
           "  the time of a step is not known here: give --gpu, or --peak-tflops and --memory-gbs\n";
  }
  text += fmt::format(" of the whole run\n  training    {} steps of {} ({}): {}, {}tokens\n",
                      std::llround(plan.training_seconds / plan.step_seconds->value),
                      format_seconds(plan.step_seconds->value), plan.step_seconds->source,
                      span_text(plan.training_seconds), count_text(static_cast<double>(plan.tokens)));
  text += note_text(plan) + rate_text(plan);
  text += fmt::format("  no failure  in the whole run: {}\n", percent(plan.p_no_failure));
  text += tier_text("checkpoints", plan.disk) + tier_text("snapshots  ", plan.ram);
  if (plan.disk.chosen_by == "Young, Daly" && plan.saving_mtbf_seconds < 0.99 * plan.mtbf_seconds) {
    text +=
        fmt::format("              the run saves as if it failed every {} until its history says otherwise\n",
                    span_text(plan.saving_mtbf_seconds));
  }
  return text + spares_text(plan) + ettr_text(plan) + cost_text(plan, cost) + "\n" + reaches_text(plan);
}

Json reliability_json(const ReliabilityPlan& plan, const CostConfig& cost) {
  const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  const bool timed = plan.step_seconds.has_value(), priced = cost.per_rank_hour > 0.0;
  const auto price = [&](double seconds) {
    return timed && priced ? finite(price_of(plan.rank_seconds(seconds), 1.0, cost.per_rank_hour)) : Json();
  };
  const double elapsed = plan.time.elapsed();
  Json json = {{"mtbf_hours", plan.mtbf_seconds / hour_seconds},
               {"mtbf_from", plan.prior.is_fixed    ? "checkpoint.mtbf"
                             : plan.prior.is_stated ? "hazard.mtbf_hours"
                                                    : std::string(device_prior(plan.device_kind).source)},
               {"failures_so_far", plan.history.failures},
               {"running_seconds_so_far", plan.history.running_seconds},
               {"failures_per_day", failures_per_day(plan.mtbf_seconds)},
               {"spares_95", plan.spares_95},
               {"spares_99", plan.spares_99},
               {"replacement_seconds", plan.replacement_seconds},
               {"p_no_failure", timed ? Json(plan.p_no_failure) : Json()},
               {"ettr", timed ? Json(plan.time.ettr()) : Json()},
               {"cost_total", price(elapsed)},
               {"cost_training", price(plan.training_seconds)},
               {"currency", cost.currency}};
  if (!timed) return json;
  const auto tier_json = [](const TierPlan& tier) -> Json {
    if (!tier.exists) return nullptr;
    return {{"interval_seconds", tier.interval_seconds},
            {"chosen_by", tier.chosen_by},
            {"overhead", tier.overhead()},
            {"cost_seconds", tier.cost_seconds.value},
            {"cost_from", tier.cost_seconds.source}};
  };
  Json reaches = Json::array(), others = Json::array();
  for (const ReachPlan& each : plan.reaches) {
    reaches.push_back(
        {{"reach", std::string(each.reach.name)},
         {"share", each.reach.share},
         {"lost_seconds", each.reach.lost_seconds},
         {"most_lost_seconds", each.most_lost_seconds.has_value() ? Json(*each.most_lost_seconds) : Json()},
         {"recovery_seconds", each.reach.recovery_seconds},
         {"recovery_from", each.recovery_source},
         {"waiting_seconds", each.reach.waiting_seconds}});
  }
  for (const Alternative& each : plan.others) {
    others.push_back(
        {{"name", each.name},
         {"elapsed_seconds", finite(each.elapsed_seconds)},
         {"ettr", each.ettr},
         {"ranks", each.ranks},
         {"cost", priced ? finite(price_of(each.elapsed_seconds, each.ranks, cost.per_rank_hour)) : Json()}});
  }
  const RunTime& time = plan.time;
  json.update({{"step_seconds", plan.step_seconds->value},
               {"step_from", plan.step_seconds->source},
               {"tokens", plan.tokens},
               {"training_seconds", plan.training_seconds},
               {"elapsed_seconds", finite(elapsed)},
               {"rank_hours", finite(plan.rank_seconds(elapsed) / hour_seconds)},
               {"failures", finite(time.failures)},
               {"parts",
                {{"training", time.ettr()},
                 {"saves", finite(time.saves / elapsed)},
                 {"lost", finite(time.lost / elapsed)},
                 {"recovery", finite(time.recovery / elapsed)},
                 {"waiting", finite(time.waiting / elapsed)}}},
               {"checkpoints", tier_json(plan.disk)},
               {"snapshots", tier_json(plan.ram)},
               {"reaches", reaches},
               {"others", others}});
  return json;
}

}  // namespace holdfast::plan
