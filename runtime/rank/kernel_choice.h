// Reads [kernels] of a config: what it requests from the registry, and how the choice is shown to users and
// logs.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/kernel_fault.h"
#include "runtime/core/result.h"
#include "runtime/device/device.h"
#include "runtime/os/env.h"
#include "runtime/run/event.h"

namespace holdfast::rank {

struct KernelRequest {
  CpuIsa isa = best_cpu_isa();
  std::vector<KernelPreference> requests = {};
  const KernelRegistry* registry = &kernel_registry();  // with the plug-ins; of the CPU
};
// Returns the request of a config, and loads its plug-ins; ExitCode::config where one cannot be loaded. `origin`: where
// each key was set, for messages.
Result<KernelRequest> kernel_request(Env& env, const KernelsConfig& kernels,
                                     const std::map<std::string, std::string>& origin = {});

// Checks that this processor and this build have what is requested; ExitCode::config when not. It tells
// oneDNN its limit, so call it before the first device is made.
Result<void> settle_kernels(const KernelRequest& request);

// Returns a line with the implementation that runs most ops, and a line for each op that differs.
std::vector<std::string> kernel_summary(const KernelTable& table);
// Returns a line for every op: which implementation runs it, why, and which others the registry has for it.
std::vector<std::string> kernel_lines(const KernelTable& table, const KernelRegistry& registry, CpuIsa isa);
// Returns for every op which implementation runs it, and why, for the start event.
std::vector<EventKernel> kernels_in_use(const KernelTable& table);

// Returns the names of the implementations that run an op: "avx512, mine in layers 0-3".
std::string names_in_use(const KernelChoice& choice);

// Takes out of a config what asks for implementations that the target does not have, as those of a plug-in that was not
// loaded; the keys `needed` stay. Returns what it took out, as in "kernels.add = "mine"".
std::vector<std::string> forget_missing_kernels(KernelsConfig& kernels, const KernelRegistry& registry,
                                                const KernelTarget& target,
                                                std::span<const std::string> needed);

// Takes out of a config what asks for kernels of plug-ins that have failed, shadows too, and returns those of the faults
// because of which it took something out. A kernel of a library with other bytes stays. What is left is what a user
// writes who does without these kernels. Pure: equal registries give equal answers.
KernelFaults leave_out_kernels(KernelsConfig& kernels, const KernelRegistry& registry,
                               const KernelTarget& target, const KernelFaults& faults);
// Returns whether a config asks for an implementation of an op anywhere.
bool asks_for(const KernelsConfig& kernels, const KernelName& kernel);

// Returns true if kernels.<op> or the rules about it may change from one config to the other without changing a bit of a run in
// `precision`, as far as this build knows both implementations.
bool same_kernel_bits(const KernelsConfig& before, const KernelsConfig& after, OpId op, DType precision);

}  // namespace holdfast::rank
