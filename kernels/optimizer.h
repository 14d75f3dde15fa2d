// Update rules with fp32 master weights: AdamW (Loshchilov & Hutter 2019) and Lion (Chen et al. 2023). Then the digests of
// the optimizer's state, and the block sums of the global gradient norm.
#pragma once

#include <cstdint>

#include "kernels/elementwise.h"
#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/block_digest.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

// Result of comparing the blocks that an op read with the digests that an op before left.
struct StateDamage {
  static constexpr std::uint64_t no_block = ~std::uint64_t{0};
  std::uint64_t block_count = 0;         // number of blocks that differ
  std::uint64_t first_block = no_block;  // lowest of them, counted over all tensors of the table
};
static_assert(sizeof(StateDamage) == 16);

// One tensor, or the part of it that a rank owns. All arrays have `count` elements; the moments are of the type that
// the op says. A rule with one moment has no moment2. Of a frozen tensor, which only OptimizerDigest takes, moments,
// average and gradient are null.
struct OptimizerTensor {
  float* weight = nullptr;
  void* moment1 = nullptr;
  void* moment2 = nullptr;
  float* ema = nullptr;  // exponential moving average of the weights; or null
  const float* gradient = nullptr;
  BFloat16* copy = nullptr;  // or null
  // Second copies of what an update leaves, where it keeps_state; or null.
  float* kept_weight = nullptr;
  void* kept_moment1 = nullptr;
  void* kept_moment2 = nullptr;
  float* kept_ema = nullptr;
  std::int64_t count = 0;
  std::int64_t first_block = 0;  // number of blocks (runtime/core/block.h) in the tensors before
  float weight_decay = 0;
  // Number of the first block for the rounding of bf16 moments. It is the same whoever owns the block.
  std::uint64_t rounding_block = 0;
};

// Visits what an update of any rule reads and writes of a tensor of its table. A rule is an op: its fields are those of
// every other but for the coefficients, and moment_count says how many moments of a weight it keeps. Kernels, tables and
// digests are written once for all rules.
template <typename Update>
void visit_updated_tensor(const Update& op, auto& tensor, auto&& visit) {
  visit(tensor.gradient, reads("gradient", DType::fp32, tensor.count));
  visit(tensor.weight, updates("weight", DType::fp32, tensor.count));
  visit(tensor.moment1, updates("moment1", op.moments, tensor.count));
  if constexpr (Update::moment_count > 1)
    visit(tensor.moment2, updates("moment2", op.moments, tensor.count).positive());
  visit(tensor.ema, updates("ema", DType::fp32, tensor.count).if_given());
  visit(tensor.copy, writes("copy", DType::bf16, tensor.count).if_given());
  if (!op.keeps_state) return;
  visit(tensor.kept_weight, writes("kept_weight", DType::fp32, tensor.count).if_given());
  visit(tensor.kept_moment1, writes("kept_moment1", op.moments, tensor.count).if_given());
  if constexpr (Update::moment_count > 1)
    visit(tensor.kept_moment2, writes("kept_moment2", op.moments, tensor.count).if_given());
  visit(tensor.kept_ema, writes("kept_ema", DType::fp32, tensor.count).if_given());
}

// Updates each element of all tensors, in fp32:
//   g = gradient * gradient_scale
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
//   w = w - learning_rate * (weight_decay * w + (m / correction1) / (sqrt(v / correction2) + epsilon))
// and, when given, copy = w rounded to bf16, ema = ema + ema_rest * (w - ema). One launch updates a whole shard:
// kernels find the tensor of a block in the table.
//
// Moments in bf16 are widened to fp32, averaged there, and the weights take those averages; what is kept for the next
// update is rounded stochastically (kernels/stochastic_rounding.h): block b of a tensor is block rounding_block + b of
// those that rounding_key rounds, and of an element's bits the lower half rounds m, the upper one v. A v that moves by a
// thousandth a step would not move at all if it were rounded to nearest.
//
// An update that keeps the state writes what it leaves of weights and moments a second time, to the kept_ arrays of those
// tensors that have some: a snapshot (checkpoint/snapshot_slot.h) that costs neither another read of the state nor room in
// caches, because nobody reads it soon. The bits of everything else are those of an update that keeps nothing.
//
// With digests, an update also finds damage of the memory at rest: it leaves the digest (runtime/core/block_digest.h)
// of what it wrote to each block, and the next one compares the digest of what it reads. The update itself
// has the same bits, whether digests are computed or not, and goes on with the values that it read, damaged
// or not. The digests of the gradient are those that the op left which took its norm. The copy is not covered.
struct AdamW {
  static constexpr OpId id = OpId::adamw;
  static constexpr int moment_count = 2;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const OptimizerTensor* tensors = nullptr;      // device memory
  std::int64_t tensor_count = 0;
  std::int64_t block_count = 0;  // of all tensors
  float learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0;
  float correction1 = 1, correction2 = 1;  // 1 - beta^step
  float gradient_scale = 1;                // of clipping
  float ema_rest = 0;                      // 1 - decay of the average
  DType moments = DType::fp32;             // or bf16
  std::uint64_t rounding_key = 0;          // of bf16 moments: 64 mixed bits, others for every update
  bool keeps_state = false;                // writes the kept_ arrays; else they are not looked at
  // Digests by block of the table, in device memory; null: none are computed.
  std::uint64_t* block_digests = nullptr;
  // False where nothing has left digests of what the update reads: they are written, not compared.
  bool checks_digests = false;
  // Result of the comparison, in host_visible memory: set by every update, also where nothing is compared. May
  // be null where nothing is compared.
  StateDamage* damage = nullptr;
  // Digests of the gradient by block of the table, in device memory, which the update compares where it computes
  // digests of the state; null: it compares none. The result, in host_visible memory, is set by every update.
  const std::uint64_t* gradient_digests = nullptr;
  StateDamage* gradient_damage = nullptr;
  static constexpr const char* shape = "{count} in {tensor_count} tensors";
  // The damage, a few bytes of the host, is left out.
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.gradient_digests,
          reads("gradient_digests", DType::int32, op.block_count).of_bytes(sizeof(std::uint64_t)).if_given());
    visit(op.block_digests, writes("block_digests", DType::int32, op.block_count)
                                .of_bytes(sizeof(std::uint64_t))
                                .updated_if(op.checks_digests)
                                .if_given());
  }
  static void visit_tensor(const AdamW& op, auto& tensor, auto&& visit) {
    visit_updated_tensor(op, tensor, visit);
  }
};
void reference(const AdamW& op);

// Updates each element of all tensors, in fp32, by the sign of an average of the gradient:
//   g = gradient * gradient_scale
//   c = beta1 m + (1 - beta1) g        m = beta2 m + (1 - beta2) g
//   w = w - learning_rate * (weight_decay * w + sign(c))
// The sign of 0 is 0, and that of NaN is NaN. A last bit of c can decide it, so c has the same bits everywhere:
// fma(m, beta1, rest1 * g) with rest1 = 1 - beta1, each rounded to fp32, where m is the moment as it is kept.
//
// There is one moment, in moment1: moment2 and kept_moment2 are null. Everything else is as AdamW says; of an element's
// random bits the lower half rounds m.
struct Lion {
  static constexpr OpId id = OpId::lion;
  static constexpr int moment_count = 1;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const OptimizerTensor* tensors = nullptr;      // device memory
  std::int64_t tensor_count = 0;
  std::int64_t block_count = 0;  // of all tensors
  float learning_rate = 0, beta1 = 0, beta2 = 0;
  float gradient_scale = 1;        // of clipping
  float ema_rest = 0;              // 1 - decay of the average
  DType moments = DType::fp32;     // or bf16
  std::uint64_t rounding_key = 0;  // as AdamW has it
  bool keeps_state = false;        // writes the kept_ arrays; else they are not looked at
  // Digests by block of the table, and what came of comparing them, as AdamW has them.
  std::uint64_t* block_digests = nullptr;
  bool checks_digests = false;
  StateDamage* damage = nullptr;
  const std::uint64_t* gradient_digests = nullptr;
  StateDamage* gradient_damage = nullptr;
  static constexpr const char* shape = AdamW::shape;
  static void visit_operands(auto& op, auto&& visit) { AdamW::visit_operands(op, visit); }
  static void visit_tensor(const Lion& op, auto& tensor, auto&& visit) {
    visit_updated_tensor(op, tensor, visit);
  }
};
void reference(const Lion& op);

// Returns whether an op is the update of some rule.
constexpr bool is_update(OpId id) {
  return id == AdamW::id || id == Lion::id;
}

// Computes the digests of blocks of optimizer state as it is, by the table of an update: of state that was loaded, made,
// or is to be examined without an update. A tensor without moments, with one of them, or without an average, has the
// digests of the rest, as if they were zeros.
struct OptimizerDigest {
  static constexpr OpId id = OpId::optimizer_digest;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const OptimizerTensor* tensors = nullptr;      // device memory; their gradients and copies are not used
  std::int64_t tensor_count = 0;
  // Range of blocks, counted over all tensors of the table.
  std::int64_t first_block = 0, block_count = 0;
  std::uint64_t* block_digests = nullptr;  // by block of the table, in device memory
  bool checks_digests = false;             // compares the digests with those in memory, and writes none
  DType moments = DType::fp32;             // or bf16
  // Result of the comparison, in host_visible memory: set by every op, also where nothing is compared. May be
  // null where nothing is compared.
  StateDamage* damage = nullptr;
  static constexpr const char* shape = AdamW::shape;
  static void visit_operands(auto& op, auto&& visit) {
    const auto access = op.checks_digests ? Operand::Access::read : Operand::Access::written;
    visit(op.block_digests,
          operand("block_digests", access, DType::int32, op.block_count).of_bytes(sizeof(std::uint64_t)));
  }
  // Counts the blocks of the range alone: a table has more.
  static void visit_tensor(const OptimizerDigest& op, auto& tensor, auto&& visit) {
    constexpr auto block = static_cast<std::int64_t>(block_elements);
    const auto inside = [&](std::int64_t at) {
      const std::int64_t element = (at - tensor.first_block) * block;
      return element < 0 ? 0 : (element > tensor.count ? tensor.count : element);
    };
    const std::int64_t count = inside(op.first_block + op.block_count) - inside(op.first_block);
    visit(tensor.weight, reads("weight", DType::fp32, count));
    visit(tensor.moment1, reads("moment1", op.moments, count).if_given());
    visit(tensor.moment2, reads("moment2", op.moments, count).positive().if_given());
    visit(tensor.ema, reads("ema", DType::fp32, count).if_given());
  }
};
void reference(const OptimizerDigest& op);

// Computes sums[b] = sum of squares of block b (the last may be short), in double, in a fixed order inside
// the block: the same on every device. When given, digests[b] is the digest of the block
// (runtime/core/block_digest.h, of one array). One launch takes the gradients of a bucket: segments say where its tensors
// begin.
struct SquareSum {
  static constexpr OpId id = OpId::square_sum;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const float* values = nullptr;
  std::int64_t count = 0;
  double* sums = nullptr;
  std::uint64_t* digests = nullptr;  // by block, or null
  // Segments of `values`, which end with element `count`: host memory that is read when the op is launched, and no
  // later. None: the array is one segment.
  const BlockSegment* segments = nullptr;
  std::int64_t segment_count = 0;
  std::int64_t block_count() const { return blocks_of(segments, segment_count, count); }
  static constexpr const char* shape = "{count}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.values, reads("values", DType::fp32, op.count));
    visit(op.sums, writes("sums", DType::fp64, op.block_count()));
    visit(op.digests,
          writes("digests", DType::int32, op.block_count()).of_bytes(sizeof(std::uint64_t)).if_given());
  }
};
void reference(const SquareSum& op);

}  // namespace holdfast::kernels
