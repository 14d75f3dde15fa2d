#include "tools/kernel_kit/check_shapes.h"

#include <algorithm>
#include <set>

#include "kernels/cost.h"
#include "kernels/visit_op.h"
#include "runtime/measure/call_key.h"
#include "tools/kernel_kit/call_states.h"

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

// Gives a sum another number of parts: models have few, and the order of the tree shows from four on.
void set_parts(auto& op, int count) {
  static constexpr float places[TreeSum::parts_max] = {};  // addresses that stand for memory
  op.part_count = count;
  for (int i = 0; i < count; ++i) op.parts[i] = places + i;
}

// Gives an op sizes that no model has. Returns what its new sizes point to; null: nothing.
using Lists = std::shared_ptr<const CallLists>;
Lists set_odd(auto& op, std::int64_t rows, std::int64_t columns) {
  if constexpr (requires { op.lda; }) {
    op.m = rows;
    op.n = columns;
    op.k = 7;
    op.lda = op.transpose_a ? op.m : op.k;
    op.ldb = op.transpose_b ? op.k : op.n;
    op.ldc = op.n;
  } else if constexpr (requires { op.inverse; }) {
    op.sequence_length = rows;
    op.rows = 2 * rows;
    op.heads = std::min<std::int64_t>(rows, 3);
    op.head_size = 2 * std::min<std::int64_t>(columns, 33);
    op.row_stride = op.heads * op.head_size + 6;
  } else if constexpr (requires { op.source_stride; }) {
    op.rows = rows;
    op.columns = columns;
    op.source_stride = columns + 3;
    op.target_stride = columns + 5;
  } else if constexpr (requires { op.slice_count; }) {
    op.rows = columns;
    op.slice_count = rows < 3 ? 1 : rows < 5 ? 2 : rows < 17 ? 4 : 16;
  } else if constexpr (requires { op.batch; }) {
    op.batch = rows > 3 ? 2 : rows;
    op.sequence_length = std::min<std::int64_t>(columns, 65);
  } else if constexpr (requires { op.tensors; }) {
    int moment_count = 2;
    if constexpr (requires { op.moment_count; }) moment_count = op.moment_count;
    const Lists lists = make_lists(rows * columns, !is_update(op.id), moment_count);
    op.tensors = lists->tensors.data();
    op.tensor_count = std::ssize(lists->tensors);
    op.block_count = lists->blocks;
    if constexpr (requires { op.ema_rest; }) op.ema_rest = 0.25F;  // calls of runs have no average, mostly
    return lists;
  } else if constexpr (requires { op.rows; }) {
    op.rows = rows;
    if constexpr (requires { op.part_count; }) set_parts(op, rows < 3 ? 1 : rows < 17 ? 4 : op.parts_max);
    if constexpr (requires { op.row_stride; }) op.row_stride = columns + 5;
    if constexpr (requires { op.columns; }) op.columns = columns;
    if constexpr (requires { op.vocabulary; }) op.vocabulary = columns;
    if constexpr (requires { op.width; }) op.width = columns;
    if constexpr (requires { op.feed_forward; }) op.feed_forward = columns;
  } else if constexpr (requires { op.count; }) {
    op.count = rows * columns;
  } else {
    op.bytes = rows * columns;
  }
  return nullptr;
}

// Calls visit(op, lists) with variants of an op whose sizes divide nothing, of one element, of one row, of one column; of
// two sizes in every state, and with segments.
template <typename Op>
void visit_odd(const Op& base, auto&& visit) {
  constexpr std::int64_t sizes[][2] = {{3, 1023}, {5, 33}, {1, 1}, {1, 17}, {17, 1}};
  constexpr std::size_t in_every_state = 2;
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    Op op = base;
    const Lists lists = set_odd(op, sizes[i][0], sizes[i][1]);
    if (i >= in_every_state) {
      visit(op, lists);
      continue;
    }
    visit_states(op, [&](const Op& state) { visit(state, lists); });
    if constexpr (requires { op.segments; }) {
      const Lists parts = make_lists(op.count, false);
      op.count = parts->elements;
      op.segments = parts->segments.data();
      op.segment_count = std::ssize(parts->segments);
      visit_states(op, [&](const Op& state) {
        if constexpr (requires { state.square_sums; }) {
          if (state.square_sums == nullptr) return;
        }
        visit(state, parts);
      });
    }
  }
}

class ShapeCollector {
 public:
  // Returns whether the call was none of those before.
  bool add(CheckShape shape) {
    const bool is_new = is_small(shape.call, shape.contents) &&
                        seen_.insert(measure::call_key(shape.call.id(), shape.call.arguments())).second;
    if (is_new) shapes_.push_back(std::move(shape));
    return is_new;
  }
  std::vector<CheckShape> take() { return std::move(shapes_); }

 private:
  std::set<measure::CallKey> seen_;
  std::vector<CheckShape> shapes_;
};

void add_odd(ShapeCollector& collector, const bench::OpSample& sample) {
  visit_op(sample.shape.id(), sample.shape.arguments(), [&](const auto& base) {
    visit_odd(base, [&](const auto& odd, const Lists& lists) {
      std::int64_t tokens = std::min(sample.contents.tokens_below, tokens_of_odd);
      if constexpr (requires { odd.vocabulary; }) tokens = std::min(tokens, odd.vocabulary);
      collector.add(
          {.use = "odd", .call = bench::OpCall(odd), .contents = {.tokens_below = tokens}, .lists = lists});
    });
  });
}

}  // namespace

Result<std::vector<CheckShape>> check_shapes(Env& env, OpId op) {
  ShapeCollector collector;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const bench::SampleSizes sizes : {bench::SampleSizes::toy, bench::SampleSizes::cpu}) {
      HF_TRY(const std::vector<bench::OpSample> samples, bench::op_samples(env, dtype, sizes));
      std::size_t taken = 0;
      std::set<std::string> states;  // of which each is taken, however many calls are
      for (const bench::OpSample& sample : samples) {
        if (sample.shape.id() != op) continue;
        const bool is_new_state = states.insert(measure::call_key(op, sample.shape.arguments()).state).second;
        if ((is_new_state || taken < most_of_models) && collector.add({.use = sample.use,
                                                                       .call = sample.shape,
                                                                       .contents = sample.contents,
                                                                       .lists = sample.lists}))
          ++taken;
        if (sizes == bench::SampleSizes::toy) add_odd(collector, sample);
      }
    }
  }
  return collector.take();
}

}  // namespace holdfast::bench::kernel_kit
