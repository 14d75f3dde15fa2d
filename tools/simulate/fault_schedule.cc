#include "tools/simulate/fault_schedule.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "runtime/core/random.h"

namespace holdfast::launch::fleet {
namespace {

constexpr double second_us = 1e6, hour_us = 3.6e9;

std::uint64_t number_of_name(const std::string& name) {
  std::uint64_t number = 0;
  for (const char letter : name) number = mix64(number, static_cast<unsigned char>(letter));
  return number;
}

double exponential(double uniform, double mean) {
  return -std::log1p(-uniform) * mean;
}

// Draws the faults of one unit.
class UnitFaults {
 public:
  UnitFaults(const Cluster& cluster, int kind, std::uint64_t seed, int unit)
      : cluster_(&cluster),
        fault_(&cluster.faults[static_cast<std::size_t>(kind)]),
        kind_(kind),
        unit_(unit),
        stream_(seed, mix64(number_of_name(fault_->name), static_cast<std::uint64_t>(unit))) {}

  void draw(double rate_per_us, std::int64_t end_us, std::vector<FleetEvent>& events) const {
    if (!(rate_per_us > 0.0)) return;
    double at_us = 0.0;
    const auto most = fault_->at_most > 0.0 ? static_cast<std::uint64_t>(fault_->at_most) : ~std::uint64_t{0};
    for (std::uint64_t i = 0; i < most; ++i) {
      at_us += fault_->timing == "regular" ? 1.0 / rate_per_us
                                           : exponential(stream_.uniform(4 * i), 1.0 / rate_per_us);
      if (!(at_us < static_cast<double>(end_us))) return;
      add(std::llround(at_us), i, events);
    }
  }

 private:
  void add(std::int64_t at_us, std::uint64_t i, std::vector<FleetEvent>& events) const {
    const bool lasts = fault_->effect == FaultEffect::slow || fault_->effect == FaultEffect::storage;
    const double mean_us = (lasts ? fault_->lasts_hours : fault_->away_hours) * hour_us;
    const double lasts_us =
        fault_->away_fixed > 0.0 ? mean_us : exponential(stream_.uniform(4 * i + 1), mean_us);
    FleetEvent event{.at_us = at_us, .kind = kind_, .lasts_us = std::llround(lasts_us)};
    place(event, stream_.uniform(4 * i + 2));
    events.push_back(event);
    const double later_s = fault_->effect == FaultEffect::notice       ? fault_->warning_seconds
                           : fault_->effect == FaultEffect::corruption ? fault_->found_after_seconds
                                                                       : -1.0;
    if (later_s < 0.0) return;
    event.at_us += us_of(later_s);
    event.is_second = true;
    events.push_back(event);
  }
  void place(FleetEvent& event, double pick) const {
    const auto hosts = static_cast<int>(cluster_->hosts);
    const auto per_rack = static_cast<int>(cluster_->hosts_per_rack);
    const bool has_host = fault_->effect != FaultEffect::run && fault_->effect != FaultEffect::storage;
    if (!has_host) return;
    if (fault_->unit == "rack") {
      event.host = unit_ * per_rack;
      event.hosts = std::min(per_rack, hosts - event.host);
    } else {
      const double used = std::ceil(cluster_->ranks_wanted() / cluster_->ranks_per_host);
      event.host = fault_->unit == "host" ? unit_ : std::min(static_cast<int>(pick * used), hosts - 1);
      event.hosts = 1;
    }
  }

  const Cluster* cluster_;
  const FaultKind* fault_;
  int kind_, unit_;
  RandomStream stream_;
};

int units_of(const Cluster& cluster, const FaultKind& fault) {
  if (fault.unit == "host") return static_cast<int>(cluster.hosts);
  if (fault.unit == "rack") return static_cast<int>(std::ceil(cluster.hosts / cluster.hosts_per_rack));
  return 1;
}

// Returns by how much more often a host fails than the mean of all.
double lemon_factor_of(const Cluster& cluster, std::uint64_t seed, int host) {
  constexpr std::uint64_t lemons = 0x6c656d6f6e73;  // a stream of its own
  const double share = cluster.lemon_share, factor = cluster.lemon_factor;
  const bool is_lemon = RandomStream(seed, lemons).uniform(static_cast<std::uint64_t>(host)) < share;
  return (is_lemon ? factor : 1.0) / (1.0 + share * (factor - 1.0));
}

}  // namespace

std::vector<FleetEvent> draw_schedule(const Cluster& cluster, std::uint64_t seed, std::int64_t end_us) {
  std::vector<FleetEvent> events;
  for (std::size_t kind = 0; kind < cluster.faults.size(); ++kind) {
    const FaultKind& fault = cluster.faults[kind];
    const double rate_per_us = fault.rate_per_second() / second_us * cluster.rate_factor;
    for (int unit = 0; unit < units_of(cluster, fault); ++unit) {
      const double factor = fault.unit == "host" ? lemon_factor_of(cluster, seed, unit) : 1.0;
      UnitFaults(cluster, static_cast<int>(kind), seed, unit).draw(rate_per_us * factor, end_us, events);
    }
  }
  std::ranges::stable_sort(events, {}, [](const FleetEvent& event) {
    return std::tuple(event.at_us, event.is_second, event.kind, event.host);
  });
  return events;
}

}  // namespace holdfast::launch::fleet
