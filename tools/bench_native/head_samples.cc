#include "kernels/visit_op.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench {
namespace {

Samples cross_entropy(const SampleSource& source) {
  const ModelSpec spec = source.spec;
  const std::int64_t rows = source.rows_of_head;
  return {{"head", [=](OpMemory& memory) {
             return OpCall(CrossEntropy{.logits = memory.values(rows * spec.padded_vocabulary, spec.dtype),
                                        .targets = memory.tokens(rows, spec.vocabulary),
                                        .losses = memory.floats(rows),
                                        .rows = rows,
                                        .row_stride = spec.padded_vocabulary,
                                        .vocabulary = spec.vocabulary,
                                        .gradient_scale = 1.0F / static_cast<float>(rows),
                                        .dtype = spec.dtype});
           }}};
}

// Number of slices in the samples of ops that only a model with split tensors calls.
constexpr std::int64_t sample_slices = 4;

Samples cross_entropy_slices(OpId id, const SampleSource& source) {
  const std::int64_t rows = source.rows_of_head, columns = source.spec.padded_vocabulary / sample_slices;
  const std::int64_t vocabulary = source.spec.vocabulary;
  const DType dtype = source.spec.dtype;
  const auto statistics = [](OpMemory& memory, std::int64_t count) {
    return reinterpret_cast<SoftmaxStatistics*>(memory.positive_floats(3 * count));
  };
  return {{"slice of the head", [=](OpMemory& memory) {
             const std::int32_t* targets = memory.tokens(rows, vocabulary);
             if (id == CrossEntropyJoin::id) {
               return OpCall(CrossEntropyJoin{.slices = statistics(memory, sample_slices * rows),
                                              .targets = targets,
                                              .losses = memory.floats(rows),
                                              .statistics = statistics(memory, rows),
                                              .rows = rows,
                                              .slice_count = sample_slices});
             }
             if (id == CrossEntropySlice::id) {
               return OpCall(CrossEntropySlice{.logits = memory.values(rows * columns, dtype),
                                               .targets = targets,
                                               .statistics = statistics(memory, rows),
                                               .rows = rows,
                                               .row_stride = columns,
                                               .columns = columns,
                                               .dtype = dtype});
             }
             return OpCall(CrossEntropyGradient{.logits = memory.values(rows * columns, dtype),
                                                .targets = targets,
                                                .statistics = statistics(memory, rows),
                                                .rows = rows,
                                                .row_stride = columns,
                                                .columns = columns,
                                                .gradient_scale = 1.0F / static_cast<float>(rows),
                                                .dtype = dtype});
           }}};
}

Samples tree_sum(const SampleSource& source) {
  const ModelSpec spec = source.spec;
  const std::int64_t rows = source.batch.rows();
  return {{"attention output", [=](OpMemory& memory) {
             TreeSum op{.part_count = sample_slices,
                        .bias = spec.biases ? memory.values(spec.width, spec.dtype) : nullptr,
                        .y = memory.values(rows * spec.width, spec.dtype),
                        .rows = rows,
                        .columns = spec.width,
                        .dtype = spec.dtype};
             for (std::size_t i = 0; i < sample_slices; ++i) op.parts[i] = memory.floats(rows * spec.width);
             return OpCall(op);
           }}};
}

Samples loss_sum(const SampleSource& source) {
  const std::int64_t rows = source.batch.rows();
  return {{"head", [=](OpMemory& memory) {
             return OpCall(LossSum{.values = memory.floats(rows), .count = rows, .sum = memory.doubles(1)});
           }}};
}

}  // namespace

Samples head_samples(OpId id, const SampleSource& source) {
  switch (id) {
    case CrossEntropy::id:
      return cross_entropy(source);
    case CrossEntropySlice::id:
    case CrossEntropyJoin::id:
    case CrossEntropyGradient::id:
      return cross_entropy_slices(id, source);
    case LossSum::id:
      return loss_sum(source);
    case TreeSum::id:
      return tree_sum(source);
    default:
      return {};
  }
}

}  // namespace holdfast::bench
