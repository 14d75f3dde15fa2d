// What a run would hold, send and take in one layout, without its devices and without its peers: every rank
// is planned as the run itself plans it (runtime/train/planned_rank.h), and its ops are priced instead of
// run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/device.h"
#include "parallel/mesh.h"
#include "runtime/config/config.h"
#include "runtime/core/env.h"
#include "runtime/core/memory_plan.h"
#include "runtime/model/spec.h"
#include "runtime/plan/op_prices.h"
#include "runtime/train/traffic.h"

namespace holdfast {

// What the ranks run on, as far as it is known.
struct PlannedMachine {
  bool host_sees_memory = true;  // of the device
  bool with_nccl = false;
  // Memory for one rank, or for all ranks of one host together; neither: nobody knows.
  std::optional<std::uint64_t> rank_bytes = {}, host_bytes = {};
  // Shared memory that is free, of all ranks of one host together; none: nobody knows.
  std::optional<std::uint64_t> shared_bytes = {};
  // Ranks that compute at the same time on the processors that they share; 0: each has its own.
  int ranks_at_once = 0;
  const OpPrices* prices = nullptr;                  // null: no time is estimated
  std::optional<double> link_bytes_per_second = {};  // of a rank; none: sending takes no time
  // A device whose kernels say what workspace they need; empty: nobody knows.
  std::function<Result<std::unique_ptr<Device>>()> make_kernels = {};

  // Of `ranks` that share the host.
  std::optional<std::uint64_t> bytes_for_rank(int ranks) const;
};

inline constexpr std::size_t memory_class_count = 8;

// One rank. The ranks of its tensor group hold and send the same.
struct SeatPlan {
  MeshSeat seat;
  std::vector<ModelPart> parts;                                    // by chunk
  std::array<std::uint64_t, memory_class_count> class_bytes = {};  // as the run's MemoryPlan has them
  std::array<std::uint64_t, 2> place_bytes = {};                   // by MemoryPlace
  std::uint64_t kernel_bytes = 0;  // workspace of the device; 0 if nobody knows
  std::uint64_t shared_bytes = 0;  // its RAM snapshots, in the shared memory of its host
  StepTraffic traffic;
  // In the memory that bytes_for_rank() is about.
  std::uint64_t needed_bytes(const PlannedMachine& machine) const;
};

// Seconds of a step; the parts add up to it.
struct StepTime {
  double compute = 0.0;        // forwards and backwards of the rank that has most to do
  double bubble = 0.0;         // that it waits for the other stages
  double waiting = 0.0;        // that ranks wait for a processor
  double sums = 0.0;           // of gradients over the lanes
  double update = 0.0;         // AdamW
  double communication = 0.0;  // none of it hidden behind the rest
  double seconds() const { return compute + bubble + waiting + sums + update + communication; }
};

struct LayoutPlan {
  Config config;  // resolved, of this layout
  MeshShape shape;
  int waves = 1;
  // By stage, then by replica: all of them, or the first, the middle and the last of more than 16.
  std::vector<SeatPlan> seats;
  double bubble_share = 0.0;  // of all stages, in forward and backward
  std::optional<StepTime> time;

  const SeatPlan& largest(const PlannedMachine& machine) const;
  bool fits(const PlannedMachine& machine) const;  // true if nobody knows
  std::uint64_t shared_bytes() const;              // of all ranks; of more than 16 replicas an upper bound
  std::uint64_t tokens_per_step() const;
};

// `config` is resolved, but for parallel.data. ExitCode::config with every rule that is broken
// (rank_layout.h).
Result<LayoutPlan> plan_layout(Env& env, const Config& config, int ranks, const PlannedMachine& machine);

}  // namespace holdfast
