#include "tools/bench_native/contenders.h"

#include <set>

namespace holdfast::bench {

std::vector<const Implementation*> contenders_for(const KernelRegistry& registry, OpId id,
                                                  const KernelTarget& target, std::string_view wanted) {
  std::vector<const Implementation*> contenders;
  std::set<std::string_view> seen;
  for (const Implementation* each : registry.of(id)) {
    const bool is_wanted =
        wanted.empty() ? std::string_view(each->name) != "reference" : wanted == each->name;
    const Implementation* best = registry.find(id, each->name, target);
    if (is_wanted && best != nullptr && seen.insert(each->name).second) contenders.push_back(best);
  }
  return contenders;
}

Result<double> limit_of(const OpCall& call, const OpCost& cost, DType dtype, Limits& limits) {
  if (call.id() == Matmul::id) return limits.product_seconds(*static_cast<const Matmul*>(call.arguments()));
  return op_seconds(limits, cost, dtype);
}

}  // namespace holdfast::bench
