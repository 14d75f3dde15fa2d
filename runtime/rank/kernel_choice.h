// [kernels] of a config: what it asks of the registry, and what people and logs are told about it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/os/events.h"

namespace holdfast::inline rank {

struct KernelRequest {
  CpuIsa isa = best_cpu_isa();
  std::vector<KernelPreference> requests = {};
};
// `origin`: where each key was set, for messages.
KernelRequest kernel_request(const KernelsConfig& kernels,
                             const std::map<std::string, std::string>& origin = {});

// Whether this processor and this build have what is asked for; ExitCode::config when not. Tells oneDNN its
// limit, so it comes before the first device.
Result<void> settle_kernels(const KernelRequest& request);

// What runs most ops in one line, and a line for each op that differs.
std::vector<std::string> kernel_summary(const KernelTable& table);
// A line for every op: what runs it, why, and what else of the registry could.
std::vector<std::string> kernel_lines(const KernelTable& table, const KernelRegistry& registry, CpuIsa isa);
// {"matmul": {"name": "onednn", "why": "the only default"}, ...}, as the field "kernels" of an event.
void put_kernels(const KernelTable& table, EventLine& line);

// Whether kernels.<op> may change from one config to the other without changing a bit of a run in
// `precision`, as far as this build knows both.
bool same_kernel_bits(const KernelsConfig& before, const KernelsConfig& after, OpId op, DType precision);

}  // namespace holdfast::inline rank
