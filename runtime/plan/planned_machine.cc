#include "runtime/plan/planned_machine.h"

#include <algorithm>

#include "kernels/cost.h"
#include "kernels/optimizer.h"
#include "runtime/core/median.h"
#include "runtime/measure/op_text.h"

namespace holdfast::plan {

double PeakPrices::seconds(OpId id, const void* arguments) const {
  const OpCost cost = cost_of(id, arguments);
  return std::max(cost.flops / flops_per_second_,
                  static_cast<double>(cost.bytes_moved()) / bytes_per_second_);
}

TimedPrices::TimedPrices(std::span<const std::vector<OpTimer::Record>> rounds, double launch_seconds,
                         double flops_per_second, std::string description)
    : launch_seconds_(launch_seconds),
      flops_per_second_(flops_per_second),
      description_(std::move(description)) {
  std::map<std::pair<OpId, std::string>, std::vector<double>> samples;
  std::map<std::pair<OpId, std::string>, OpCost> costs;
  for (const std::vector<OpTimer::Record>& round : rounds) {
    for (const OpTimer::Record& record : round) {
      const std::pair key(record.id, measure::shape_text(record.id, record.arguments.data()));
      samples[key].push_back(static_cast<double>(record.duration_ns) * 1e-9);
      costs.try_emplace(key, cost_of(record.id, record.arguments.data()));
    }
  }
  for (const auto& [key, values] : samples) {
    const double seconds = median(values);
    seconds_[key] = seconds;
    Sum& sum = sums_[key.first];
    sum.seconds += seconds;
    sum.flops += costs[key].flops;
    sum.bytes += static_cast<double>(costs[key].bytes_moved());
  }
  const auto timed = std::ranges::find_if(sums_, [](const auto& sum) { return is_update(sum.first); });
  HF_CHECK(timed != sums_.end() && timed->second.seconds > 0.0, "no update was timed");
  const Sum& update = timed->second;
  memory_bytes_per_second_ = update.bytes / update.seconds;
}

double TimedPrices::seconds(OpId id, const void* arguments) const {
  if (const auto found = seconds_.find({id, measure::shape_text(id, arguments)}); found != seconds_.end()) {
    return found->second + launch_seconds_;
  }
  const OpCost cost = cost_of(id, arguments);
  const auto bytes = static_cast<double>(cost.bytes_moved());
  const auto same = sums_.find(id);
  if (same == sums_.end() || same->second.bytes <= 0.0) {
    return bytes / memory_bytes_per_second_ + launch_seconds_;
  }
  const Sum& sum = same->second;
  const double scale = sum.flops > 0.0 ? cost.flops / sum.flops : bytes / sum.bytes;
  return sum.seconds * scale + launch_seconds_;
}

}  // namespace holdfast::plan
