#include "kernels/visit_op.h"
#include "runtime/core/shard_spec.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench {

Samples parameter_samples(OpId id, const SampleSource& source) {
  const auto sample = [id, dtype = source.spec.dtype](const char* name, std::int64_t count) {
    return OpSample{
        name, [=](OpMemory& memory) {
          const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
          constexpr auto block = static_cast<std::int64_t>(block_elements);
          const std::int64_t blocks = (count + block - 1) / block;
          if (id == AdamW::id) {
            const bool bf16 = dtype == DType::bf16;
            const AdamWTensor tensor{.weight = memory.floats(count),
                                     .moment1 = memory.floats(count),
                                     .moment2 = memory.positive_floats(count),
                                     .gradient = memory.floats(count),
                                     .copy = bf16 ? memory.bfloat16s(count) : nullptr,
                                     .count = count,
                                     .weight_decay = 0.1F};
            return OpCall(AdamW{.tensors = memory.table({tensor}),
                                .tensor_count = 1,
                                .block_count = blocks,
                                .learning_rate = 1e-4F,
                                .beta1 = 0.9F,
                                .beta2 = 0.95F,
                                .epsilon = 1e-8F});
          }
          if (id == SquareSum::id) {
            return OpCall(
                SquareSum{.values = memory.floats(count), .count = count, .sums = memory.doubles(blocks)});
          }
          if (id == Accumulate::id) {
            return OpCall(
                Accumulate{.target = memory.floats(count), .source = memory.floats(count), .count = count});
          }
          if (id == Cast::id) {
            return OpCall(
                Cast{.source = memory.floats(count), .target = memory.bfloat16s(count), .count = count});
          }
          if (id == Copy::id) {
            return OpCall(
                Copy{.source = memory.floats(count), .target = memory.floats(count), .bytes = bytes});
          }
          if (id == TensorDigest::id) {
            constexpr auto words = static_cast<std::int64_t>(sizeof(DigestWords) / sizeof(double));
            return OpCall(TensorDigest{.values = memory.values(count, dtype),
                                       .dtype = dtype,
                                       .count = count,
                                       .result = reinterpret_cast<DigestWords*>(memory.doubles(words))});
          }
          if (id == OptimizerDigest::id) {
            const AdamWTensor tensor{.weight = memory.floats(count),
                                     .moment1 = memory.floats(count),
                                     .moment2 = memory.positive_floats(count),
                                     .count = count};
            return OpCall(
                OptimizerDigest{.tensors = memory.table({tensor}),
                                .tensor_count = 1,
                                .block_count = blocks,
                                .block_digests = reinterpret_cast<std::uint64_t*>(memory.doubles(blocks))});
          }
          return OpCall(FillZero{.target = memory.floats(count), .bytes = bytes});
        }};
  };
  const ModelSpec& spec = source.spec;
  return {sample("a norm's weights", spec.width), sample("attention output", spec.width * spec.width),
          sample("up", spec.up_width() * spec.width),
          sample("embedding", spec.padded_vocabulary * spec.width)};
}

}  // namespace holdfast::bench
