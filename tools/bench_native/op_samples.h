// The shapes in which models call ops, with operands, for measurements of an op alone.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/op.h"
#include "runtime/device/device.h"
#include "runtime/measure/op_memory.h"
#include "runtime/model/spec.h"
#include "runtime/os/env.h"

namespace holdfast::bench {

// Any op's arguments.
class OpCall {
 public:
  template <typename Op>
  explicit OpCall(const Op& op) : id_(Op::id) {
    static_assert(std::is_trivially_copyable_v<Op> && sizeof(Op) <= op_bytes_max);
    std::memcpy(arguments_.data(), &op, sizeof(Op));
  }
  OpId id() const { return id_; }
  const void* arguments() const { return arguments_.data(); }
  void launch(Device& device) const;

 private:
  OpId id_;
  alignas(16) std::array<std::byte, op_bytes_max> arguments_ = {};
};

struct OpSample {
  std::string use;                // "gpt2-124m 4x64, feed-forward, weight gradient"
  OpCall shape;                   // its operands are addresses that stand for memory
  OperandContents contents = {};  // of its operands
  double flops_share = 1.0;       // of cost_of(), which knows no documents, that the sample's contents leave
  std::shared_ptr<const void> lists = {};  // table or segments that the shape points to

  OpCall make(OpMemory& memory) const;  // the op on real operands
};

// Sets of models and batches that represent training.
enum class SampleSizes {
  // gpt2-124m, llama-15m and llama-110m with 4 x 64 and 1 x 1024 tokens; for ops that memory limits also
  // 16 x 1024 tokens, beyond every cache of a processor.
  cpu,
  // Shapes that fill a GPU: gpt2-124m with 64 x 1024 tokens, gpt2-1558m and llama-1b with 8 x 1024, and
  // llama-8b with 1 x 8192. Attention also by a table of 16 Ki tokens in sequences of 1 Ki to 16 Ki, with
  // 2048 columns in heads of 64 and of 128: with as many key heads, with a fourth of them, and in documents.
  gpu,
  // The same variety so small that the emulated GPU runs it.
  toy,
};
std::string_view name_of(SampleSizes sizes);

// Returns the samples of all ops: every launch of a planned rank (runtime/elastic/planned_rank.h) that trains the
// model on one microbatch, and what a rank whose model is cut into slices launches beside. Ops that go through
// parameters and gradients have the sizes of the model's tensors.
Result<std::vector<OpSample>> op_samples(Env& env, DType dtype, SampleSizes sizes);

// The shapes of a preset, with the head's chunks as a run on `device` ("cpu", "cuda") has them.
// ExitCode::config when there is no such preset.
Result<ModelSpec> preset_spec(std::string_view preset, DType dtype, std::int64_t sequence_length,
                              const std::string& device = "cpu");

}  // namespace holdfast::bench
