#include "tools/kernel_kit/check_shapes.h"

#include <algorithm>
#include <set>

#include "kernels/cost.h"
#include "kernels/visit_op.h"
#include "runtime/measure/op_text.h"

namespace holdfast::bench::kernel_kit {
namespace {

// Limits of a call whose result a scalar loop in double finds soon enough.
constexpr double most_flops = 4e6;
constexpr std::uint64_t most_bytes = std::uint64_t{2} << 20;
constexpr std::size_t most_of_models = 6;
constexpr std::int64_t tokens_of_odd = 97;

// A whole table of an embedding has a row for each token, of which the call moves few.
bool is_small(const bench::OpCall& call, const measure::OperandContents& contents) {
  const OpCost cost = cost_of(call.id(), call.arguments());
  const std::uint64_t table = visit_op(call.id(), call.arguments(), [&](const auto& op) {
    if constexpr (requires { op.token_count; }) {
      if (op.token_count == 0)
        return static_cast<std::uint64_t>(contents.tokens_below * op.width) * sizeof(float);
    }
    return std::uint64_t{0};
  });
  return cost.flops <= most_flops && cost.bytes_moved() + table <= most_bytes;
}

// Calls visit(op) with variants of an op whose sizes divide nothing, of one element, of one row, of one column.
void visit_odd(const auto& base, auto&& visit) {
  auto op = base;
  constexpr std::int64_t sizes[][2] = {{1, 1}, {1, 17}, {3, 1023}, {17, 1}, {5, 33}};
  for (const auto& [rows, columns] : sizes) {
    if constexpr (requires {
                    op.m;
                    op.lda;
                  }) {
      op.m = rows;
      op.n = columns;
      op.k = 7;
      op.lda = op.transpose_a ? op.m : op.k;
      op.ldb = op.transpose_b ? op.k : op.n;
      op.ldc = op.n;
      visit(op);
    } else if constexpr (requires {
                           op.rows;
                           op.width;
                           op.sequence_length;
                         }) {
      op.rows = rows;
      op.width = columns;
      visit(op);
    } else if constexpr (requires {
                           op.rows;
                           op.row_stride;
                           op.columns;
                         }) {
      op.rows = rows;
      op.columns = columns;
      op.row_stride = columns + 5;
      visit(op);
    } else if constexpr (requires {
                           op.rows;
                           op.row_stride;
                           op.vocabulary;
                         }) {
      op.rows = rows;
      op.vocabulary = columns;
      op.row_stride = columns + 5;
      visit(op);
    } else if constexpr (requires {
                           op.rows;
                           op.width;
                         }) {
      op.rows = rows;
      op.width = columns;
      visit(op);
    } else if constexpr (requires {
                           op.rows;
                           op.columns;
                         }) {
      op.rows = rows;
      op.columns = columns;
      visit(op);
    } else if constexpr (requires {
                           op.rows;
                           op.feed_forward;
                         }) {
      op.rows = rows;
      op.feed_forward = columns;
      visit(op);
    } else if constexpr (requires {
                           op.batch;
                           op.sequence_length;
                         }) {
      op.batch = rows > 3 ? 2 : rows;
      op.sequence_length = std::min<std::int64_t>(columns, 65);
      op.first_key = nullptr;
      visit(op);
    } else if constexpr (
        requires { op.count; } && !requires { op.tensors; } && !requires { op.segments; }) {
      op.count = rows * columns;
      visit(op);
    } else if constexpr (requires { op.bytes; }) {
      op.bytes = rows * columns;
      visit(op);
    }
  }
}

class ShapeCollector {
 public:
  void add(CheckShape shape) {
    std::string key = measure::shape_text(shape.call.id(), shape.call.arguments());
    visit_op(shape.call.id(), shape.call.arguments(), [&](const auto& op) {
      if constexpr (requires { op.dtype; }) key += op.dtype == DType::bf16 ? " bf16" : " fp32";
      if constexpr (requires { op.dtype_c; }) key += op.dtype_c == DType::bf16 ? " bf16" : " fp32";
    });
    if (is_small(shape.call, shape.contents) && seen_.insert(key).second) shapes_.push_back(std::move(shape));
  }
  std::vector<CheckShape> take() { return std::move(shapes_); }

 private:
  std::set<std::string> seen_;
  std::vector<CheckShape> shapes_;
};

}  // namespace

Result<std::vector<CheckShape>> check_shapes(Env& env, OpId op) {
  std::vector<CheckShape> shapes;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    ShapeCollector collector;
    for (const bench::SampleSizes sizes : {bench::SampleSizes::toy, bench::SampleSizes::cpu}) {
      HF_TRY(const std::vector<bench::OpSample> samples, bench::op_samples(env, dtype, sizes));
      std::size_t taken = 0;
      for (const bench::OpSample& sample : samples) {
        if (sample.shape.id() != op || !is_small(sample.shape, sample.contents) || taken++ >= most_of_models)
          continue;
        collector.add(
            {.use = sample.use, .call = sample.shape, .contents = sample.contents, .table = sample.table});
        if (sizes != bench::SampleSizes::toy) continue;
        visit_op(op, sample.shape.arguments(), [&](const auto& base) {
          visit_odd(base, [&](const auto& odd) {
            std::int64_t tokens = std::min(sample.contents.tokens_below, tokens_of_odd);
            if constexpr (requires { odd.vocabulary; }) tokens = std::min(tokens, odd.vocabulary);
            collector.add({.use = "odd", .call = bench::OpCall(odd), .contents = {.tokens_below = tokens}});
          });
        });
      }
    }
    for (CheckShape& each : collector.take()) shapes.push_back(std::move(each));
  }
  return shapes;
}

}  // namespace holdfast::bench::kernel_kit
