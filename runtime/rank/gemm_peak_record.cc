#include "runtime/rank/gemm_peak_record.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/core/json.h"

namespace holdfast::inline rank {
namespace {

struct Machine {
  std::vector<std::string> ranks = {};  // the second line of each rank's place, sorted
  double flops = 0.0;
};
using Machines = std::map<std::string, Machine>;

// Groups the places by machine. None if some place is not known (peak_place() was empty there).
std::optional<Machines> machines_of(std::span<const std::string> places, std::span<const double> rates = {}) {
  Machines machines;
  for (std::size_t each = 0; each < places.size(); ++each) {
    const std::size_t end = places[each].find('\n');
    if (end == std::string::npos) return std::nullopt;
    Machine& machine = machines[places[each].substr(0, end)];
    machine.ranks.push_back(places[each].substr(end + 1));
    machine.flops += rates.empty() ? 0.0 : rates[each];
  }
  for (auto& [name, machine] : machines) std::ranges::sort(machine.ranks);
  return machines;
}

}  // namespace

std::string peak_place(Env& env, const Device& device, DType dtype) {
  const Result<std::string> boot = env.read_text("/proc/sys/kernel/random/boot_id");
  if (!boot.ok() || boot->empty()) return {};
  return fmt::format("{}, boot {}\n{} processors, {} threads, {}, {} products of random numbers by {}",
                     env.host_name(), boot->substr(0, boot->find('\n')), env.processor_count(),
                     device.threads(), device.description(), name_of(dtype),
                     device.kernels()[static_cast<std::size_t>(OpId::matmul)].first().name);
}

std::string peak_record(std::span<const std::string> places, std::span<const double> rates) {
  HF_CHECK(places.size() == rates.size());
  const std::optional<Machines> machines = machines_of(places, rates);
  if (!machines.has_value() || machines->empty()) return {};
  Json record;
  for (const auto& [name, machine] : *machines)
    record[name] = {{"ranks", machine.ranks}, {"flops", machine.flops}};
  return record.dump_any(1) + "\n";
}

std::optional<double> recorded_peak(const std::string& record, std::span<const std::string> places) {
  const std::optional<Machines> machines = machines_of(places);
  const Json json = Json::parse_any(record);
  if (!machines.has_value() || !json.is_object()) return std::nullopt;
  double sum = 0.0;
  for (const auto& [name, machine] : *machines) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_object()) return std::nullopt;
    const Json flops = found->value("flops", Json());
    if (found->value("ranks", Json()) != machine.ranks || !flops.is_number()) return std::nullopt;
    sum += flops.get<double>();
  }
  return sum > 0.0 && std::isfinite(sum) ? std::optional(sum) : std::nullopt;
}

}  // namespace holdfast::inline rank
