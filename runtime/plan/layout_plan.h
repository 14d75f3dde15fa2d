// A layout plan says what a run would hold, send and take in one layout, without its devices and without its
// peers: every rank is planned as the run itself plans it (runtime/elastic/planned_rank.h), and its ops are
// priced instead of run. Nothing of the model's size is allocated or touched.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/core/memory_plan.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/model/spec.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "runtime/plan/planned_machine.h"
#include "runtime/plan/step_time.h"
#include "runtime/plan/step_traffic.h"

namespace holdfast::plan {

inline constexpr std::size_t memory_class_count = 8;

// Plan of one rank. The other ranks of its tensor group hold and send the same.
struct RankPlan {
  MeshCoordinate coordinate;
  std::vector<ModelPart> parts;                                    // by chunk
  std::array<std::uint64_t, memory_class_count> class_bytes = {};  // as the run's MemoryPlan has them
  std::array<std::uint64_t, 2> bytes_by_kind = {};                 // by MemoryKind
  std::uint64_t kernel_bytes = 0;                                  // workspace of the device; 0 if unknown
  std::uint64_t shared_bytes = 0;  // RAM snapshots of the rank, in the shared memory of its host
  StepTraffic traffic;
  // Returns the bytes needed in the memory that bytes_for_rank() is about.
  std::uint64_t needed_bytes(const PlannedMachine& machine) const;
};

std::uint64_t tokens_per_step(const Config& config);

// Returns the machine as far as it follows from the config alone, in which the device is not "auto".
PlannedMachine machine_of(const Config& config, int ranks);

struct LayoutPlan {
  Config config;  // resolved, for this layout
  MeshShape shape;
  int waves = 1;
  // Ranks by stage, then by replica: all of them, or of more than 4 the first, the one that owns most of the
  // optimizer's state, and the last.
  std::vector<RankPlan> ranks;
  double bubble_share = 0.0;  // over all stages, in forward and backward
  std::optional<StepTime> time;

  const RankPlan& largest(const PlannedMachine& machine) const;
  bool fits(const PlannedMachine& machine) const;  // true if the memory is unknown
  std::uint64_t shared_bytes() const;              // of all ranks; an upper bound with more than 4 replicas
  // Returns the shared memory that the ranks of one host need.
  std::uint64_t shared_bytes_of_host(const PlannedMachine& machine) const;
  std::uint64_t tokens_per_step() const { return plan::tokens_per_step(config); }
  // Returns MFU: the model's FLOP of a step as a share of what all ranks could multiply in its time; none
  // without prices.
  std::optional<double> model_flops_utilization(const PlannedMachine& machine) const;
};

// Plans layouts of one run: what several of them have in common is counted and priced once. Every `config` is
// that of the run except for layout, recomputation and the cut into microbatches; it is resolved, except for
// parallel.data. Errors: ExitCode::config with every rule that is broken (rank_layout.h).
class LayoutPlanner {
 public:
  // `env` and `machine` outlive it.
  LayoutPlanner(Env& env, const PlannedMachine& machine) : env_(env), machine_(machine) {}

  Result<LayoutPlan> plan(const Config& config, int ranks);
  // Plans the layout, or returns none if some rank does not fit: stops at the first one.
  Result<std::optional<LayoutPlan>> plan_if_it_fits(const Config& config, int ranks);
  // Returns whether the first rank of the first stage fits, which keeps the most activations.
  Result<bool> first_rank_fits(const Config& config, int ranks);
  // Returns a lower bound of what a rank needs in the memory that bytes_for_rank() is about: that of the stage whose
  // first or last rank needs least.
  Result<std::uint64_t> least_rank_bytes(const Config& config, int ranks);
  // Returns the time that plan() computes, without its memory. Without prices: the time of the FLOP at one
  // per second.
  Result<StepEstimate> estimate(const Config& config, int ranks);
  // Returns a lower bound of estimate(), at the cost of a division.
  Result<double> min_seconds(const Config& config, int ranks);

  // Work that the planner has done so far.
  struct Counts {
    int ranks_planned = 0;  // ranks whose memory was counted
    int parts_priced = 0;   // model parts whose ops were launched to be priced
  };
  const Counts& counts() const { return counts_; }

 private:
  // PricedPart holds the time of one part of a stage and its traffic with the other slices.
  struct PricedPart {
    PartTime time;
    PartTraffic traffic;
  };
  struct StageOps {
    std::vector<PartTime> parts = {};       // by chunk
    std::vector<PartTraffic> traffic = {};  // by chunk
    std::uint64_t kernel_bytes = 0;
  };

  // Returns the ops and the workspace of a stage of the first replica; plans its rank on the first call.
  Result<StageOps> ops_of(const Config& config, const Mesh& mesh, int stage);
  Result<std::unique_ptr<PlannedWorker>> worker_of(const Config& config, const Mesh& mesh, int rank,
                                                   const std::vector<int>& buddies, Device* kernels);
  Result<RankPlan> plan_rank(const Config& config, const Mesh& mesh, int rank,
                             const std::vector<int>& buddies);
  Result<StageCosts> costs_of(const Config& config, const Mesh& mesh, int stage);
  Result<StepEstimate> estimate_on(const Config& config, const Mesh& mesh);
  Result<std::optional<LayoutPlan>> plan_until(const Config& config, int ranks, bool ends_when_too_large);
  bool fits(const RankPlan& rank, int ranks) const;
  const OpPrices& prices() const {
    return machine_.prices != nullptr ? *machine_.prices : one_flop_per_second_;
  }
  // Returns the seconds of one microbatch through both ends of the model, and through one of its layers.
  Result<std::pair<double, double>> model_seconds(const Config& config);

  Env& env_;
  const PlannedMachine& machine_;
  const PeakPrices one_flop_per_second_{1.0, 1e30, {}};
  // Results that depend on the shapes of parts alone, cached so that stages and layouts share them.
  std::map<std::string, PricedPart> parts_;
  std::map<std::string, std::uint64_t> kernel_bytes_;
  Counts counts_;
};

Result<LayoutPlan> plan_layout(Env& env, const Config& config, int ranks, const PlannedMachine& machine);

}  // namespace holdfast::plan
