#include "runtime/plan/reliability.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace holdfast::plan {
namespace {

constexpr double gigabyte = 1e9;
// Share of the faults that a new process cures (DLRover: about 75 %); the others take a host away.
constexpr double process_share = 0.75;
// Time to notice and to go on, where no recovery of this run was measured: a hang or a death within 5 s, a process in
// 1 s, a start with the host left out in 60 s (docs/scaling.md).
constexpr double process_recovery_seconds = 6.0, host_recovery_seconds = 65.0;
// Waiting for a save on an H200, in seconds for each GB of a rank; a processor copies and writes at 1 GB/s, and its update takes
// that much longer where it writes a RAM snapshot. A host's disk or its share of one takes 1 GB/s.
constexpr double gpu_save_seconds_per_gb = 0.022, cpu_save_seconds_per_gb = 1.0,
                 cpu_snapshot_seconds_per_gb = 0.03;
constexpr double disk_seconds_per_gb = 1.0;
// A job without fault tolerance stands still for a checkpoint each hour, and somebody starts it again.
constexpr double by_hand_interval_seconds = hour_seconds, by_hand_restart_seconds = 900.0;

double bytes_of_rank(const LayoutPlan& plan) {
  return static_cast<double>(state_bytes(make_model_spec(plan.config), plan.config.optimizer)) /
         plan.shape.ranks();
}

bool hosts_have_replicas(const LayoutPlan& plan, int hosts) {
  return hosts > 1 && plan.shape.data > 1 && plan.config.checkpoint.replicas != "off" &&
         plan.config.checkpoint.ram_every_steps != 0;
}

// Returns the cost of a save, as measured or by its bytes; `cpu_rate`: that of a processor.
Figure save_cost(const LayoutPlan& plan, const PlannedMachine& machine, const RunFigures& figures,
                 const std::optional<SaveTimes>& measured, double cpu_rate) {
  if (measured.has_value()) return {measured->cost_seconds, fmt::format("measured in {}", figures.directory)};
  const double gigabytes = bytes_of_rank(plan) / gigabyte;
  const bool on_gpu = !machine.host_sees_memory;
  const double rate = on_gpu ? gpu_save_seconds_per_gb : cpu_rate;
  return {gigabytes * rate, fmt::format("assumed: {} s for each of a rank's {:.3g} GB", rate, gigabytes)};
}

TierPlan disk_plan(const LayoutPlan& plan, const PlannedMachine& machine, const RunFigures& figures,
                   double step_seconds, double mtbf_seconds) {
  const CheckpointConfig& checkpoint = plan.config.checkpoint;
  TierPlan tier{.cost_seconds = save_cost(plan, machine, figures, figures.save, cpu_save_seconds_per_gb),
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
                  double step_seconds, double mtbf_seconds) {
  const CheckpointConfig& checkpoint = plan.config.checkpoint;
  TierPlan tier{
      .exists = checkpoint.ram_every_steps != 0,
      .cost_seconds = save_cost(plan, machine, figures, figures.snapshot, cpu_snapshot_seconds_per_gb),
      .counts_after_seconds = step_seconds};
  if (!tier.exists) return tier;
  std::int64_t steps = checkpoint.ram_every_steps;
  tier.chosen_by = "checkpoint.ram_every_steps";
  if (steps == CheckpointConfig::interval_auto) {
    const double cost_seconds = tier.cost_seconds.value;
    steps =
        steps_between_snapshots({.step_seconds = step_seconds, .cost_seconds = cost_seconds}, mtbf_seconds);
    tier.chosen_by =
        snapshots_follow_failures(cost_seconds, mtbf_seconds) ? "Young, Daly" : "as often as costs 0.5 %";
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
  const ElasticConfig& elastic = plan.config.elastic;
  const bool goes_on =
      elastic.in_place && ranks - lost_ranks >= replica * static_cast<int>(elastic.min_data_parallel);
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
  const bool in_place = plan.config.elastic.in_place;  // else a process costs a start, as a host does
  process.reach.recovery_seconds =
      in_place ? figures.recovery_seconds.value_or(process_recovery_seconds) : host_recovery_seconds;
  process.recovery_source = in_place && figures.recovery_seconds.has_value()
                                ? fmt::format("measured in {}", figures.directory)
                                : "assumed";
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

std::string note_on(const RunFigures& figures, int ranks) {
  if (figures.directory.empty() || figures.ranks == ranks) return {};
  if (figures.ranks == 0) {
    return fmt::format(
        "the event log of {} does not say how many ranks it had: its steps and saves are not counted",
        figures.directory);
  }
  return fmt::format(
      "the steps and saves of {} were those of {} rank{}, and are not counted; its failures are, for "
      "{} rank{}",
      figures.directory, figures.ranks, figures.ranks == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s");
}

}  // namespace

std::optional<double> ReliabilityPlan::beyond_promise_seconds() const {
  if (lose_at_most_seconds <= 0.0 || reaches.empty()) return std::nullopt;
  double most = 0.0;
  for (const ReachPlan& each : reaches)
    most = std::max(most, each.most_lost_seconds.value_or(std::numeric_limits<double>::infinity()));
  constexpr double rounding = 1.0 + 1e-9;
  return most > lose_at_most_seconds * rounding ? std::optional(most) : std::nullopt;
}

ReliabilityPlan plan_reliability(const LayoutPlan& plan, const PlannedMachine& machine,
                                 const RunFigures& figures, const ReliabilityOptions& options) {
  const Config& config = plan.config;
  const int ranks = plan.shape.ranks(), on_host = machine.ranks_on_host(ranks);
  ReliabilityPlan result{
      .ranks = ranks,
      .hosts = (ranks + on_host - 1) / on_host,
      .device_kind = options.device_kind,
      .history = figures.history.of(ranks),
      .replacement_seconds = options.replacement_seconds,
      .spares = config.elastic.spares,
      .lose_at_most_seconds = static_cast<double>(config.checkpoint.lose_at_most_ms) / 1e3};
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
  result.ram = ram_plan(plan, machine, figures, step_seconds, result.saving_mtbf_seconds);
  plan_reaches(result, plan, machine, figures, options);
  result.time = time_of(result);
  if (result.spares_95 > config.elastic.spares)
    result.others.push_back(
        with_spares(result, waiting_seconds(result, plan, machine, options, result.spares_95)));
  for (Alternative& each : without_fault_tolerance(result)) result.others.push_back(std::move(each));
  return result;
}

}  // namespace holdfast::plan
