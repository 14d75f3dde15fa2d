// The shapes in which a model calls an op, with operands, for measurements of the op alone.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/op.h"
#include "runtime/device/device.h"
#include "runtime/measure/op_memory.h"
#include "runtime/model/block.h"
#include "runtime/model/spec.h"

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
  std::string use;  // "gpt2-124m 4x64, up, weight gradient"
  std::function<OpCall(OpMemory&)> make;
  std::string variant = {};  // what shape_text() does not tell: " in documents"
  double flops_share = 1.0;  // of cost_of(), which knows no documents, that the sample's contents leave
};

// Describes how a training step of the model on one microbatch calls the op; no samples when it does not.
// `rows_of_head` rows go through the head at once. Ops that add or join slices are called as by the model in
// four slices.
struct SampleSource {
  std::string name;
  ModelSpec spec;
  BatchShapeBT batch;
  std::int64_t rows_of_head = 0;
  std::int64_t document_unit =
      0;  // attention stays in documents of 1 to 6 times so many tokens; 0 = one each
};
std::vector<OpSample> op_samples(OpId id, const SampleSource& source);

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

// The shapes of a preset, with the head's chunks as a run on `device` ("cpu", "cuda") has them.
// ExitCode::config when there is no such preset.
Result<ModelSpec> preset_spec(std::string_view preset, DType dtype, std::int64_t sequence_length,
                              const std::string& device = "cpu");

// The models and batches that op_samples() is asked for.
std::vector<SampleSource> sample_sources(OpId id, DType dtype, SampleSizes sizes);

// The next three are shared by the files that make samples: each knows the ops of one part of a model, and
// returns none for others.
using Samples = std::vector<OpSample>;

Samples layer_samples(OpId id, const SampleSource& source);  // embedding and blocks
Samples head_samples(OpId id, const SampleSource& source);   // the loss, and sums over slices
// Returns the samples of ops that go through parameters and gradients: they have the sizes of the model's
// tensors; batches do not matter.
Samples parameter_samples(OpId id, const SampleSource& source);

}  // namespace holdfast::bench
