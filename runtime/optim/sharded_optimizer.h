// ShardedOptimizer updates the blocks that this rank owns, by the rule of optimizer.name (update_rule.h): moments and, in
// bf16 runs, fp32 master weights exist only at their owner.
//
// In fp32 runs the owner's range of the flat parameter buffer is the master itself; in bf16 runs the master
// is a shard and the update writes the rounded copy into the parameter buffer. After the update
// ParameterGather sends the owned ranges to all ranks.
//
// A frozen tensor has an owner as well, which saves and loads its weight; in bf16 runs that keeps its fp32
// value, too.
//
// With optimizer.ema an owner also keeps an exponential moving average of its weights, in fp32, which each update moves. It
// is a function of the weights after each update alone, so it is the same in every layout.
//
// Moments are fp32 or, with optimizer.moments = bf16, rounded stochastically by bits that follow from the seed of the
// run, the step, the tensor (or its slice) and the element in it: from nothing that a layout decides.
//
// Every update carries digests of the owned weights, moments and averages to the next one (runtime/core/block_digest.h),
// which finds bits that flipped in between. Where the state was loaded or made, the first digests are those of
// what is there. No update reads frozen tensors, so theirs are compared by ops of their own. The bf16 copies
// have none: lane audits compare those (runtime/integrity/parameter_check.h). Gradients have the digests that were
// made with their norm, so an update also finds those that changed since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/optimizer.h"
#include "parallel/data/buckets.h"
#include "runtime/config/config.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"

namespace holdfast::optim {

struct UpdateScalars {
  std::int64_t step = 1;  // counted from 1: decides the bias correction
  double learning_rate = 0.0;
  double gradient_scale = 1.0;  // factor from clipping
};

// UpdateFactors holds what an update takes from the host, as the device gets it.
struct UpdateFactors {
  float learning_rate = 0.0F, correction1 = 1.0F, correction2 = 1.0F, gradient_scale = 1.0F;
  bool operator==(const UpdateFactors&) const = default;
};
// Returns the factors of an update. Pure.
UpdateFactors update_factors(const OptimizerConfig& config, const UpdateScalars& scalars);

// One owned segment of one kind of state in device memory, which checkpoints read and write.
struct OwnedState {
  ShardSpec spec;  // kind: "weight", which is fp32, or one of OptimizerConfig::state_kinds()
  std::byte* data = nullptr;
  // Digests of a weight's blocks in device memory, which cover what is kept beside it; null where updates compute none,
  // and for that. They count while has_digests().
  std::uint64_t* digests = nullptr;
};

// Damage of the state at rest: blocks that an update read with other values than the update before had
// written, or was loaded. Or of gradients: blocks that it read with other values than their norm was taken of. The
// update has been made of the damaged values.
struct StateFinding {
  std::uint64_t block_count = 0;  // number of damaged blocks
  // The first of them: its tensor, slice and range of elements. The kind is empty, because a digest covers the
  // weight and its moments.
  ShardSpec first_block;
  // Step at which frozen blocks that are damaged were last verified, or 0: when they were loaded. None: no frozen
  // block is damaged.
  std::optional<std::uint64_t> frozen_verified_step = {};
  bool is_of_gradients = false;  // and no block of the state is damaged
};

class ShardedOptimizer {
 public:
  // `checks_state`: updates compute digests, and compare those of gradients that have some. Without them there are no
  // findings; the updates have the same bits. `seed`: run.seed, which decides how bf16 moments are rounded.
  ShardedOptimizer(const BucketPlan& buckets, int rank, DType dtype, const OptimizerConfig& config,
                   MemoryPlan& plan, bool checks_state = true, std::uint64_t seed = 0);
  // Takes the addresses, once, after the arena exists; `gradients` as LaneReduction::reduced() says.
  void bind(Device& device, const MemoryArena& arena, std::byte* parameters, ReducedGradients gradients);

  const std::vector<Segment>& segments() const { return segments_; }  // those that are trained
  // `kept`: table of keeping_table(), so that the update also writes a second copy of the state; null: none is wanted.
  void launch_update(Device& device, const UpdateScalars& scalars,
                     const std::vector<OptimizerTensor>* kept = nullptr);
  // Returns whether updates can keep the state: they leave digests of it, by which a reader knows that it is whole, the
  // host sees the device's memory, and the kernel that computes them does this as well.
  bool can_keep(const Device& device) const;
  // Returns the table of an update that writes what it leaves to `targets`, one for each element of state(); null: that
  // one is not kept. Those of frozen tensors are not used. Table and targets outlive the update.
  std::vector<OptimizerTensor> keeping_table(std::span<std::byte* const> targets) const;
  struct LaunchedUpdate {
    UpdateScalars scalars;
    UpdateFactors factors;
  };
  // Returns the last update, as it was asked for and as it was launched; nothing where the state was made or
  // loaded since, or updates compute no digests.
  const std::optional<LaunchedUpdate>& last_update() const { return last_update_; }
  // Multiplies the learning rate of the next update, for tests (runtime/os/fault_point.h).
  void scale_next_rate(double factor) { next_rate_factor_ = factor; }
  // Rounds the owned master weights into the parameter buffer in bf16 runs, and leaves digests of the state as
  // it is. It is called whenever the state was made or loaded.
  void launch_publish(Device& device);
  // Rounds the same again where the masters have not changed since there are digests: those stay.
  void launch_copies(Device& device);

  // Makes the next update write digests only, because the state was written by something else than an update:
  // whoever writes through state() calls this, or launch_publish(), before the next update.
  void forget_digests();
  bool checks_state() const { return checks_state_; }
  // Returns whether there are digests of the state, as the last update or launch_publish() has left it.
  bool has_digests() const { return has_digests_; }
  // Takes the digests that some update left of the state that was loaded, a word for each block, in the order of the
  // weights in state(). check_state() compares the state with them, and launch_copies() is called instead of
  // launch_publish().
  void load_digests(Device& device, std::span<const std::byte> digests);
  // Returns what the last update found; nothing where it compared nothing. The device was waited for since.
  // Reading resets nothing: the next update does, and launch_publish().
  std::optional<StateFinding> finding() const;
  // Compares the state, frozen tensors included, with the digests of the last update, as the next update would;
  // finding() says what came out. `step`: the one that the state is of. `wait` waits for the device; it is called
  // for every few million elements. The device has run what was launched before.
  void check_state(Device& device, std::uint64_t step, const std::function<void()>& wait);
  // Compares the frozen tensors with what was loaded, in the queue of the device; finding() includes what comes
  // out, until the next comparison of them. It is called at steps that increase, after the update of `step`.
  void launch_frozen_check(Device& device, std::uint64_t step);

  // Begins the average of the weights with the weights as they are, where there is one; launch_publish() follows. For a
  // state that was made, or loaded from one without an average.
  void launch_average_start(Device& device);

  // Returns the weights of all segments, the frozen ones last, and then what is kept of the trained ones, kind by kind.
  std::vector<OwnedState> state();

 private:
  // Calls visit(op) with the update of the run's rule.
  auto visit_update_of(const UpdateFactors& factors, std::int64_t step,
                       const std::vector<OptimizerTensor>* kept, const auto& visit) const;
  void launch_digests(Device& device);
  void launch_comparison(Device& device, std::uint64_t first_block, std::uint64_t block_count,
                         StateDamage* damage);
  void begin_frozen_check(std::uint64_t step);
  float* master(const Segment& segment) const;
  // Returns the index of a kind in arrays_, or their count where the run does not keep that kind.
  std::size_t array_of(std::string_view kind) const;
  // Returns the part of an array of arrays_ that a segment has, or null where there is no such array.
  std::byte* kept(std::size_t array, const Segment& segment) const {
    if (array >= arrays_.size()) return nullptr;
    return arrays_[array].memory + segment.shard_offset * bytes_of(arrays_[array].kind.dtype);
  }
  BFloat16* working_copy(const Segment& segment) const;  // bf16 runs: where other ranks and the model see it

  OptimizerConfig config_;
  DType dtype_, moments_;
  std::uint64_t rounding_stream_;
  // KeptArray is the memory of a kind of state that trained tensors have beside their weights.
  struct KeptArray {
    StateKind kind;
    MemoryPlan::Slot slot = {};
    std::byte* memory = nullptr;
  };
  std::vector<KeptArray> arrays_;
  std::vector<Segment> segments_, frozen_;
  std::vector<ShardSpec> specs_;      // of kind "weight", one per segment, then one per frozen segment
  std::vector<double> weight_decay_;  // one per segment
  // Number of blocks in the segments before, by segment, the frozen ones last.
  std::vector<std::uint64_t> first_blocks_;
  std::uint64_t trained_blocks_ = 0, frozen_blocks_ = 0;
  std::optional<double> next_rate_factor_;
  bool checks_state_;
  bool has_digests_ = false;   // the last update left them, or launch_publish()
  bool has_compared_ = false;  // the last update compared those that were left before it
  std::optional<LaunchedUpdate> last_update_;
  // Steps of the last comparison of frozen tensors, if there was one since they were loaded, and of the one before.
  std::optional<std::uint64_t> frozen_check_;
  std::uint64_t frozen_check_before_ = 0;
  MemoryPlan::Slot master_slot_, table_slot_, digests_slot_, damage_slot_;
  float* master_ = nullptr;
  const OptimizerTensor* table_ = nullptr;  // one per segment, the frozen ones last
  std::vector<OptimizerTensor> trained_;    // the same in the host's memory, of those that are trained
  std::uint64_t* digests_ = nullptr;        // one per block, or null
  // Points to the damage of trained tensors, of frozen ones and of gradients, in host_visible memory; or null.
  StateDamage* damage_ = nullptr;
  const std::uint64_t* gradient_digests_ = nullptr;  // one per block of trained tensors; or null
  std::byte* parameters_ = nullptr;
};

}  // namespace holdfast::optim
