#include "tools/simulate/study.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "runtime/os/background_job.h"

namespace holdfast::launch::fleet {
namespace {

constexpr std::uint64_t swept_seeds = 3;  // of a point of a curve, and of an assumption

double quantile(const std::vector<double>& sorted, double share) {
  const auto last = static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(share * last));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double between = share * last - static_cast<double>(below);
  return sorted[below] + between * (sorted[above] - sorted[below]);
}

bool has(const Cluster& cluster, FaultEffect effect) {
  return std::ranges::find(cluster.faults, effect, &FaultKind::effect) != cluster.faults.end();
}

std::vector<Variant> variants_of(const Cluster& cluster) {
  std::vector<Variant> variants;
  const auto add = [&](std::string name, std::string how, auto&& change) {
    variants.push_back({.name = std::move(name), .how = std::move(how), .cluster = cluster});
    change(variants.back().cluster);
  };
  if (cluster.in_place > 0.0)
    add("no recovery in place", "--elastic.in_place=false", [](Cluster& c) { c.in_place = 0.0; });
  if (cluster.has_replicas())
    add("no replicas", "--checkpoint.replicas=off", [](Cluster& c) { c.replicas = "off"; });
  const double spares = std::floor(0.01 * cluster.data * cluster.per_copy() / cluster.ranks_per_host + 1.0) *
                        cluster.ranks_per_host;
  if (cluster.spares > 0.0) {
    add("no spares", "--elastic.spares=0", [](Cluster& c) { c.spares = 0.0; });
  } else if (cluster.ranks_wanted() + spares <= cluster.hosts * cluster.ranks_per_host) {
    add("1 % spares", fmt::format("--elastic.spares={:.0f}", spares), [&](Cluster& c) { c.spares = spares; });
  }
  if (cluster.grow == "auto") add("no growth", "--elastic.grow=off", [](Cluster& c) { c.grow = "off"; });
  if (cluster.drain > 0.0 && has(cluster, FaultEffect::notice))
    add("no drain", "--elastic.drain=false", [](Cluster& c) { c.drain = 0.0; });
  const bool is_guarded = cluster.preset == "guard";
  if (has(cluster, FaultEffect::slow))
    add(is_guarded ? "slow hosts are kept" : "slow hosts are left",
        fmt::format("--health.preset={}", is_guarded ? "watch" : "guard"),
        [&](Cluster& c) { c.preset = is_guarded ? "watch" : "guard"; });
  add("restart everything, from RAM",
      "--elastic.in_place=false --elastic.spares=0 --elastic.drain=false --health.preset=watch",
      [](Cluster& c) {
        c.in_place = c.spares = c.drain = 0.0;
        c.preset = "watch";
      });
  add("restart everything, from the disk", "... --checkpoint.ram_every_steps=0 --checkpoint.replicas=off",
      [](Cluster& c) {
        c.in_place = c.spares = c.drain = 0.0;
        c.replicas = "off";
        c.ram_every_steps = -1.0;
        c.preset = "watch";
      });
  return variants;
}

// The three that every curve has.
std::vector<Variant> curves_of(const Cluster& cluster) {
  std::vector<Variant> curves = {{.name = "as the file says", .cluster = cluster}};
  for (const Variant& variant : variants_of(cluster)) {
    if (variant.name.starts_with("no recovery") || variant.name.ends_with("the disk"))
      curves.push_back(variant);
  }
  return curves;
}

// Scales the fleet and the run with it.
void resize(Cluster& cluster, double factor) {
  cluster.data = std::max(1.0, std::round(cluster.data * factor));
  cluster.hosts = std::ceil(cluster.hosts * factor);
  cluster.lanes = cluster.lanes > 0.0 ? std::max(cluster.data, std::round(cluster.lanes * factor)) : 0.0;
  cluster.spares = std::floor(cluster.spares * factor);
  cluster.min_data_parallel = std::clamp(std::round(cluster.min_data_parallel * factor), 1.0, cluster.data);
  cluster.hosts = std::max(cluster.hosts, std::ceil(cluster.ranks_wanted() / cluster.ranks_per_host));
}

double failures_per_day(const Cluster& cluster) {
  double rate = 0.0;
  for (const FaultKind& fault : cluster.faults) {
    const double units = fault.unit == "host"   ? cluster.hosts
                         : fault.unit == "rack" ? std::ceil(cluster.hosts / cluster.hosts_per_rack)
                                                : 1.0;
    if (fault.effect != FaultEffect::slow && fault.effect != FaultEffect::storage)
      rate += fault.rate_per_second() * units;
  }
  return rate * cluster.rate_factor * 86'400.0;
}

class Sweeper {
 public:
  Sweeper(Env& env, const Cluster& cluster, const StudyOptions& options)
      : env_(&env), cluster_(&cluster), options_(&options) {
    last_ = options.first_seed + std::min(options.last_seed - options.first_seed, swept_seeds - 1);
  }

  Result<double> ettr(const Cluster& cluster) const {
    HF_TRY(const std::vector<FleetOutcome> outcomes,
           run_seeds(*env_, cluster, options_->first_seed, last_, options_->days));
    return mean_of(outcomes).ettr.mean;
  }
  // `change` sets one point of a curve and returns its x; NaN: there is no such point.
  template <typename Change>
  Result<Sweep> sweep(std::string name, std::string unit, const std::vector<double>& points,
                      const Change& change) const {
    Sweep sweep{.name = std::move(name), .unit = std::move(unit)};
    for (const Variant& variant : curves_of(*cluster_)) {
      Sweep::Curve curve{.name = variant.name};
      for (const double point : points) {
        Cluster changed = variant.cluster;
        const double x = change(changed, point);
        if (!std::isfinite(x)) continue;
        HF_TRY(const double point_ettr, ettr(changed));
        curve.xs.push_back(x);
        curve.ettrs.push_back(point_ettr);
      }
      sweep.curves.push_back(std::move(curve));
    }
    return sweep;
  }
  Result<std::vector<Sweep>> all() const;
  Result<std::vector<Doubt>> doubts() const;

 private:
  Env* env_;
  const Cluster* cluster_;
  const StudyOptions* options_;
  std::uint64_t last_ = 0;
};

Result<std::vector<Sweep>> Sweeper::all() const {
  const std::vector<double> factors = {0.25, 0.5, 1.0, 2.0, 4.0};
  std::vector<Sweep> sweeps;
  const auto nothing = std::nan("");
  HF_TRY(Sweep mtbf, sweep("failures", "failures a day", factors, [](Cluster& c, double factor) {
           c.rate_factor *= factor;
           return failures_per_day(c);
         }));
  sweeps.push_back(std::move(mtbf));
  HF_TRY(Sweep size, sweep("size", "ranks", {0.125, 0.25, 0.5, 1.0, 2.0}, [&](Cluster& c, double factor) {
           if (c.data * factor < 1.0) return nothing;
           resize(c, factor);
           return static_cast<double>(c.ranks_wanted());
         }));
  sweeps.push_back(std::move(size));
  HF_TRY(Sweep interval, sweep("interval", "seconds between saves",
                               {1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0}, [&](Cluster& c, double steps) {
                                 double& asked = c.ram_every_steps < 0.0 ? c.every_steps : c.ram_every_steps;
                                 asked = steps;
                                 return steps * c.step;
                               }));
  sweeps.push_back(std::move(interval));
  HF_TRY(Sweep spares,
         sweep("spares", "spare hosts", {0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0}, [&](Cluster& c, double hosts) {
           const bool has_hosts =
               c.data * c.per_copy() + hosts * c.ranks_per_host <= c.hosts * c.ranks_per_host;
           if (!has_hosts) return nothing;
           c.spares = hosts * c.ranks_per_host;
           return hosts;
         }));
  sweeps.push_back(std::move(spares));
  return sweeps;
}

Result<std::vector<Doubt>> Sweeper::doubts() const {
  std::vector<Doubt> doubts;
  for (const std::string& key : model_keys(*cluster_)) {
    const double value = number_of(*cluster_, key);
    const bool is_counted = key.ends_with(".days") || key.ends_with(".of") || key == "fleet.hosts_per_rack" ||
                            key == "cost.per_rank_hour";
    if (!(value > 0.0) || is_counted || (key.ends_with(".factor") && value <= 1.0) ||
        (key == "fleet.lemon_factor" && value <= 1.0))
      continue;
    const auto source = cluster_->sources.find(key);
    Doubt doubt{
        .key = key, .value = value, .source = source == cluster_->sources.end() ? "" : source->second};
    Cluster changed = *cluster_;
    const double least = key.ends_with("factor") ? 1.0 : 0.0;
    set_number(changed, key, std::max(least, value / 2.0));
    HF_TRY(doubt.half_ettr, ettr(changed));
    set_number(changed, key, value * 2.0);
    HF_TRY(doubt.double_ettr, ettr(changed));
    doubts.push_back(std::move(doubt));
  }
  std::ranges::stable_sort(doubts, std::greater<>(),
                           [](const Doubt& doubt) { return std::abs(doubt.half_ettr - doubt.double_ettr); });
  return doubts;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  Spread spread{.mean = std::accumulate(values.begin(), values.end(), 0.0) / count,
                .low = quantile(values, 0.05),
                .median = quantile(values, 0.5),
                .high = quantile(values, 0.95)};
  double squares = 0.0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  if (values.size() > 1) spread.error = std::sqrt(squares / (count - 1.0) / count);
  return spread;
}

MeanOutcome mean_of(const std::vector<FleetOutcome>& outcomes) {
  MeanOutcome mean{.seeds = std::ssize(outcomes), .seconds = std::vector<double>(span_uses)};
  if (outcomes.empty()) return mean;
  mean.faults.resize(outcomes.front().faults.size());
  const double share = 1.0 / static_cast<double>(outcomes.size());
  std::vector<double> ettrs;
  for (const FleetOutcome& one : outcomes) {
    ettrs.push_back(one.ettr());
    mean.wall_seconds += share * static_cast<double>(one.spans_us()) / 1e6;
    for (std::size_t use = 0; use < span_uses; ++use)
      mean.seconds[use] += share * static_cast<double>(one.times_us[use]) / 1e6;
    mean.narrower_seconds += share * static_cast<double>(one.narrower_us) / 1e6;
    for (std::size_t kind = 0; kind < one.faults.size(); ++kind)
      mean.faults[kind] += share * static_cast<double>(one.faults[kind]);
    const auto add = [&](double& to, std::int64_t count) { to += share * static_cast<double>(count); };
    add(mean.steps, one.steps), add(mean.starts, one.starts), add(mean.in_place, one.in_place),
        add(mean.restarts, one.restarts);
    add(mean.from_disk, one.from_disk), add(mean.growths, one.growths), add(mean.left, one.left),
        add(mean.spares_used, one.spares_used);
    add(mean.launches_ended, one.launches_ended), add(mean.excluded, one.excluded);
  }
  mean.ettr = spread_of(std::move(ettrs));
  return mean;
}

Result<std::vector<FleetOutcome>> run_seeds(Env& env, const Cluster& cluster, std::uint64_t first,
                                            std::uint64_t last, double days) {
  const std::uint64_t seeds = last - first + 1;
  const auto threads = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(env.processor_count()), 1,
                                                 std::min<std::uint64_t>(seeds, 64));
  const std::int64_t end_us = us_of(days * 86'400.0);
  std::vector<FleetOutcome> outcomes(seeds);
  const auto part = [&](std::uint64_t thread) {
    RecoveryTable table(cluster);
    for (std::uint64_t i = thread; i < seeds; i += threads)
      outcomes[i] = FleetRun(cluster, table, first + i, end_us).run();
    return true;
  };
  std::vector<std::unique_ptr<BackgroundJob<bool>>> jobs;
  for (std::uint64_t thread = 1; thread < threads; ++thread) {
    jobs.push_back(std::make_unique<BackgroundJob<bool>>());
    jobs.back()->start(env, "simulation", [&part, thread]() -> Result<bool> { return part(thread); });
  }
  part(0);
  for (const std::unique_ptr<BackgroundJob<bool>>& job : jobs) HF_TRY_VOID(outcome_of(job->take()));
  return outcomes;
}

Result<Study> run_study(Env& env, const Cluster& cluster, const StudyOptions& options) {
  Study study{.cluster = cluster, .options = options};
  HF_TRY(study.outcomes, run_seeds(env, cluster, options.first_seed, options.last_seed, options.days));
  study.mean = mean_of(study.outcomes);
  const Sweeper sweeper(env, cluster, options);
  if (options.compares) {
    study.variants = variants_of(cluster);
    for (Variant& variant : study.variants) {
      HF_TRY(const std::vector<FleetOutcome> outcomes,
             run_seeds(env, variant.cluster, options.first_seed, options.last_seed, options.days));
      variant.mean = mean_of(outcomes);
    }
    HF_TRY(study.sweeps, sweeper.all());
  }
  if (options.asks_numbers) {
    HF_TRY(study.doubts, sweeper.doubts());
  }
  return study;
}

}  // namespace holdfast::launch::fleet
