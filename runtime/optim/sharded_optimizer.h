// ShardedOptimizer runs AdamW on the blocks that this rank owns: moments and, in bf16 runs, fp32 master
// weights exist only at their owner.
//
// In fp32 runs the owner's range of the flat parameter buffer is the master itself; in bf16 runs the master
// is a shard and the update writes the rounded copy into the parameter buffer. After the update
// ParameterGather sends the owned ranges to all ranks.
//
// A frozen tensor has an owner as well, which saves and loads its weight; in bf16 runs that keeps its fp32
// value, too.
//
// Every update carries digests of the owned weights and moments to the next one (kernels/state_digest.h),
// which finds bits that flipped in between. Frozen tensors are not covered, because no update reads them, and
// neither are the bf16 copies.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "parallel/data/buckets.h"
#include "runtime/config/config.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"
#include "runtime/device/host_access.h"

namespace holdfast::inline optim {

struct UpdateScalars {
  std::int64_t step = 1;  // counted from 1: decides the bias correction
  double learning_rate = 0.0;
  double gradient_scale = 1.0;  // factor from clipping
};

// What an update takes from the host, as the device gets it.
struct UpdateFactors {
  float learning_rate = 0.0F, correction1 = 1.0F, correction2 = 1.0F, gradient_scale = 1.0F;
  bool operator==(const UpdateFactors&) const = default;
};
// Returns the factors of an update. Pure.
UpdateFactors update_factors(const OptimizerConfig& config, const UpdateScalars& scalars);

// One owned segment of one kind of state in device memory, which checkpoints read and write.
struct OwnedState {
  ShardSpec spec;  // kind: "weight", "moment1", "moment2"
  float* data = nullptr;
};

// Damage of the state at rest: blocks that an update read with other values than the update before had
// written. The update has been made of the damaged values.
struct StateFinding {
  std::uint64_t block_count = 0;  // number of damaged blocks
  // The first of them: its tensor, slice and range of elements. The kind is empty, because a digest covers the
  // weight and both moments.
  ShardSpec first_block;
};

class ShardedOptimizer {
 public:
  // `checks_state`: updates compute digests. Without them there are no findings; the updates have the same
  // bits.
  ShardedOptimizer(const BucketPlan& buckets, int rank, DType dtype, const OptimizerConfig& config,
                   MemoryPlan& plan, bool checks_state = true);
  // Takes the addresses, once, after the arena exists; `gradients` as LaneReduction::reduced() says.
  void bind(Device& device, const MemoryArena& arena, std::byte* parameters, ReducedGradients gradients);

  const std::vector<Segment>& segments() const { return segments_; }  // those that are trained
  void launch_update(Device& device, const UpdateScalars& scalars);
  struct LaunchedUpdate {
    UpdateScalars scalars;
    UpdateFactors factors;
  };
  // Returns the last update, as it was asked for and as it was launched; nothing where the state was made or
  // loaded since, or updates compute no digests.
  const std::optional<LaunchedUpdate>& last_update() const { return last_update_; }
  // Multiplies the learning rate of the next update, for tests (runtime/os/fault_point.h).
  void scale_next_rate(double factor) { next_rate_factor_ = factor; }
  // Rounds the owned master weights into the parameter buffer in bf16 runs. It is called whenever the state
  // was made or loaded, and forgets the digests.
  void launch_publish(Device& device);
  // Rounds the same again where the masters have not changed: the digests stay.
  void launch_copies(Device& device);

  // Makes the next update write digests only, because the state was written by something else than an update:
  // whoever writes through state() calls this, or launch_publish(), before the next update.
  void forget_digests();
  bool checks_state() const { return checks_state_; }
  // Returns what the last update found; nothing where it compared nothing. The device was waited for since.
  // Reading resets nothing: the next update does.
  std::optional<StateFinding> finding() const;
  // Compares the state with the digests of the last update, as the next update would; finding() says what
  // came out. It reads all of the state through the host, so it is for steps that are in doubt. The device has
  // run what was launched. `pace` is called after every few million elements.
  void check_state(HostAccess& access, const std::function<void()>& pace);

  // Returns the weights of all segments, the frozen ones last, and then the moments of the trained ones.
  std::vector<OwnedState> state();

 private:
  float* master(const Segment& segment) const;
  BFloat16* working_copy(const Segment& segment) const;  // bf16 runs: where other ranks and the model see it

  OptimizerConfig config_;
  DType dtype_;
  std::vector<Segment> segments_, frozen_;
  std::vector<ShardSpec> specs_;             // of kind "weight", one per segment, then one per frozen segment
  std::vector<bool> weight_decay_;           // one per segment
  std::vector<std::uint64_t> first_blocks_;  // number of blocks in the segments before, by segment
  std::uint64_t block_count_ = 0;
  std::optional<double> next_rate_factor_;
  bool checks_state_;
  bool has_digests_ = false;   // the last update left them
  bool has_compared_ = false;  // the last update compared those of the update before
  std::optional<LaunchedUpdate> last_update_;
  MemoryPlan::Slot master_slot_, moment1_slot_, moment2_slot_, table_slot_, digests_slot_, damage_slot_;
  float* master_ = nullptr;
  float* moment1_ = nullptr;
  float* moment2_ = nullptr;
  const AdamWTensor* table_ = nullptr;  // one per segment
  std::uint64_t* digests_ = nullptr;    // one per block, or null
  StateDamage* damage_ = nullptr;       // in host_visible memory, or null
  std::byte* parameters_ = nullptr;
};

}  // namespace holdfast::inline optim
