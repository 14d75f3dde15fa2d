// Contenders: the implementations that a measurement of an op puts side by side, and the limit that it compares them with.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/registry.h"
#include "runtime/measure/host_limits.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench {

// Returns the build of every name of an op that suits the target best, or of the one that is wanted. The scalar reference
// takes minutes on a model's shapes, so it wants to be asked for.
std::vector<const Implementation*> contenders_for(const KernelRegistry& registry, OpId id,
                                                  const KernelTarget& target, std::string_view wanted = {});

// Returns the time of a call at its limit. `cost`: that of the call, or of a part of it.
Result<double> limit_of(const OpCall& call, const OpCost& cost, DType dtype, Limits& limits);

}  // namespace holdfast::bench
