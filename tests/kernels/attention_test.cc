#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/op_test.h"

namespace holdfast::test {

namespace {

struct Case {
  std::int64_t batch, length, heads, kv_heads, head_size;
  std::int64_t window = 0, sinks = 0;
  std::int64_t qkv_count() const { return batch * length * (heads + 2 * kv_heads) * head_size; }
  std::int64_t out_count() const { return batch * length * heads * head_size; }
  std::int64_t row_count() const { return batch * length * heads; }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B" << c.batch << " T" << c.length << " H" << c.heads << " K" << c.kv_heads << " D"
             << c.head_size << " window " << c.window << " sinks " << c.sinks;
}

template <typename Op>
void set_shape(Op& op, const Case& c, DType dtype) {
  op.batch = c.batch;
  op.sequence_length = c.length;
  op.heads = c.heads;
  op.kv_heads = c.kv_heads;
  op.head_size = c.head_size;
  op.window = c.window;
  op.sinks = c.sinks;
  op.dtype = dtype;
}

// The first visible key of every token: each sequence is cut into documents of 1 to `longest` tokens. Empty =
// the op's null. In memory that the device under test reaches, as tensors are.
using FirstKeys = std::vector<std::int32_t, TensorAllocator<std::int32_t>>;
FirstKeys documents_of(const Case& c, std::int64_t longest, std::uint64_t seed) {
  FirstKeys first_key;
  std::int64_t begin = 0, end = 0;
  for (std::int64_t row = 0; row < c.batch * c.length; ++row) {
    const std::int64_t t = row % c.length;
    if (t == 0) begin = end = 0;
    if (t == end) {
      begin = t;
      end = t + 1 + static_cast<std::int64_t>((random_at(seed, row) + 1) / 2 * static_cast<double>(longest));
    }
    first_key.push_back(static_cast<std::int32_t>(begin));
  }
  return first_key;
}

// Tensors: qkv, out, lse.
AttentionForward forward_of(Tensors& tensors, const Case& c, const FirstKeys& first_key = {}) {
  AttentionForward op{.qkv = tensors[0].data(),
                      .first_key = first_key.empty() ? nullptr : first_key.data(),
                      .out = tensors[1].data(),
                      .lse = tensors[2].as<float>()};
  set_shape(op, c, tensors[0].dtype());
  return op;
}

// Tensors: qkv, out, lse, dout, delta, dqkv.
AttentionBackward backward_of(Tensors& tensors, const Case& c, const FirstKeys& first_key = {}) {
  AttentionBackward op{.qkv = tensors[0].data(),
                       .first_key = first_key.empty() ? nullptr : first_key.data(),
                       .out = tensors[1].data(),
                       .dout = tensors[3].data(),
                       .lse = tensors[2].as<float>(),
                       .delta = tensors[4].as<float>(),
                       .dqkv = tensors[5].data()};
  set_shape(op, c, tensors[0].dtype());
  return op;
}

Tensors forward_tensors(const Case& c, const Values& qkv) {
  return {qkv, Values(c.out_count(), qkv.dtype()), Values(c.row_count(), DType::fp32)};
}

// What backward starts from; dqkv holds values that it has to overwrite.
Tensors backward_tensors(const Case& c, const Values& qkv, const FirstKeys& first_key = {}) {
  Tensors tensors =
      run_reference(forward_tensors(c, qkv), [&](Tensors& t) { return forward_of(t, c, first_key); });
  tensors.push_back(random_values(c.out_count(), qkv.dtype(), 2));
  tensors.push_back(random_values(c.row_count(), DType::fp32, 3));
  tensors.push_back(random_values(c.qkv_count(), qkv.dtype(), 4));
  return tensors;
}

void expect_both(const Case& c, const Values& qkv, const OpLimits& limits, const FirstKeys& first_key = {}) {
  expect_op(
      forward_tensors(c, qkv), [&](Tensors& t) { return forward_of(t, c, first_key); }, limits);
  expect_op(
      backward_tensors(c, qkv, first_key), [&](Tensors& t) { return backward_of(t, c, first_key); }, limits);
}

bool has_bf16_products() {
  const Implementation& implementation = under_test()->implementation();
  return implementation.needs >= CpuIsa::avx512_bf16 ||
         std::string_view(implementation.name).starts_with("cuda_mma") || implementation.needs_gpu > 0;
}

// Products of bf16 round probabilities and their gradients to bf16 before they are used.
OpLimits usual_limits() {
  return {.tolerance = 4e-6, .bf16_tolerance = has_bf16_products() ? 1.0 / 128 : 1.0 / 256};
}

// Panels are 48 wide, vectors 16, tiles 96 and 192: lengths just below, at and above; one and several heads
// per key head; one task per key head and several (fewer than 8 key heads in the batch).
constexpr Case cases[] = {{1, 1, 1, 1, 2},    {2, 17, 2, 1, 6},   {1, 48, 3, 3, 16}, {2, 49, 4, 2, 10},
                          {3, 50, 3, 3, 34},  {4, 64, 4, 2, 8},   {1, 97, 2, 1, 64}, {1, 33, 1, 1, 256},
                          {1, 193, 2, 1, 18}, {2, 150, 8, 4, 12}, {1, 401, 1, 1, 4}, {1, 16, 6, 1, 80}};

KERNEL_CASES(AttentionMatchesReference, OpId::attention_forward, OpId::attention_backward) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c);
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      expect_both(c, random_values(c.qkv_count(), dtype, 1, 2.0), usual_limits());
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Documents shorter than a vector, around a panel, and longer than a tile.
void expect_both_inside_documents(std::initializer_list<std::int64_t> lengths) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c);
    for (const std::int64_t longest : lengths) {
      SCOPED_TRACE(longest);
      const FirstKeys first_key = documents_of(c, longest, 10);
      expect_both(c, random_values(c.qkv_count(), DType::fp32, 1, 2.0), usual_limits(), first_key);
      if (testing::Test::HasFatalFailure()) return;
    }
    expect_both(c, random_values(c.qkv_count(), DType::bf16, 1, 2.0), usual_limits(),
                documents_of(c, 40, 11));
  }
}

KERNEL_CASES(AttentionInsideDocumentsMatchesReference, OpId::attention_forward, OpId::attention_backward) {
  if (under_test()->on_processor()) return expect_both_inside_documents({5, 70, 300});
  expect_both_inside_documents({70});
}
LONG_KERNEL_CASES(AttentionInsideOtherDocumentsOnADevice, OpId::attention_forward, OpId::attention_backward) {
  if (!under_test()->on_processor()) expect_both_inside_documents({5, 300});
}

// The last rows of sequences, whose keys and values are in a cache. Tensors: qkv, out, lse, cache. The keys and
// values beside the queries are nonsense that nobody reads.
struct Rest {
  Case whole;
  std::int64_t position;
  Case rows() const {
    Case rows = whole;
    rows.length -= position;
    return rows;
  }
};

Tensors cached_tensors(const Rest& rest, const Values& qkv) {
  const Case whole = rest.whole, rows = rest.rows();
  const std::int64_t width = (whole.heads + 2 * whole.kv_heads) * whole.head_size;
  const std::int64_t queries = whole.heads * whole.head_size, cached = width - queries;
  Values own(rows.qkv_count(), qkv.dtype()), cache(whole.batch * whole.length * cached, qkv.dtype());
  for (std::int64_t row = 0; row < whole.batch * whole.length; ++row) {
    for (std::int64_t i = 0; i < cached; ++i) cache.set(row * cached + i, qkv[row * width + queries + i]);
    const std::int64_t t = row % whole.length - rest.position;
    if (t < 0) continue;
    const std::int64_t target = (row / whole.length * rows.length + t) * width;
    for (std::int64_t i = 0; i < width; ++i) own.set(target + i, i < queries ? qkv[row * width + i] : 99.0);
  }
  return {own, Values(rows.out_count(), qkv.dtype()), Values(rows.row_count(), DType::fp32), cache};
}

AttentionForward cached_of(Tensors& tensors, const Rest& rest) {
  AttentionForward op = forward_of(tensors, rest.rows());
  op.cache = tensors[3].data();
  op.first_position = rest.position;
  return op;
}

void expect_the_bits_of_the_whole(const Rest& rest, const Values& qkv) {
  const auto whole =
      run_under_test(forward_tensors(rest.whole, qkv), [&](Tensors& t) { return forward_of(t, rest.whole); });
  const auto cached =
      run_under_test(cached_tensors(rest, qkv), [&](Tensors& t) { return cached_of(t, rest); });
  if (!whole || !cached) return;
  const Case rows = rest.rows();
  const std::int64_t out = rows.out_count() / rows.batch,
                     statistics = rows.row_count() / rows.batch / rows.heads;
  for (std::int64_t i = 0; i < rows.out_count(); ++i) {
    const std::int64_t source =
        (i / out * rest.whole.length + rest.position) * rows.heads * rows.head_size + i % out;
    ASSERT_EQ((*cached)[1][i], (*whole)[1][source]) << i;
  }
  for (std::int64_t i = 0; i < rows.row_count(); ++i) {
    const std::int64_t source = i / statistics * rest.whole.length + rest.position + i % statistics;
    ASSERT_EQ((*cached)[2][i], (*whole)[2][source]) << i;
  }
}

// One row at the ends of vectors, panels and tiles; several rows across them; all rows.
constexpr Rest rests[] = {
    {{1, 1, 1, 1, 2}, 0},           {{2, 17, 2, 1, 6}, 16},          {{1, 48, 3, 3, 16}, 47},
    {{2, 49, 4, 2, 10}, 48},        {{2, 97, 4, 1, 34}, 95},         {{1, 193, 2, 1, 64}, 192},
    {{1, 250, 2, 2, 16}, 100},      {{2, 150, 8, 4, 12}, 0},         {{1, 420, 2, 1, 4}, 419},
    {{1, 401, 1, 1, 18}, 180},      {{1, 64, 2, 1, 80}, 33},         {{1, 193, 2, 1, 8, 1}, 192},
    {{2, 250, 2, 2, 6, 50}, 249},   {{1, 401, 2, 1, 4, 96, 4}, 300}, {{1, 330, 2, 1, 4, 33, 17}, 329},
    {{1, 330, 1, 1, 4, 400, 2}, 40}};

KERNEL_CASES(AttentionToACacheMatchesReference, OpId::attention_forward) {
  for (const Rest& rest : rests) {
    SCOPED_TRACE(testing::Message() << rest.whole << " from " << rest.position);
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      const Values qkv = random_values(rest.whole.qkv_count(), dtype, 1, 2.0);
      expect_op(
          cached_tensors(rest, qkv), [&](Tensors& t) { return cached_of(t, rest); }, usual_limits());
      expect_the_bits_of_the_whole(rest, qkv);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Windows of one key, around a vector, a panel and a tile, and of more than there is; sinks inside of a vector, over
// several, and so many that they meet the window.
constexpr Case window_cases[] = {
    {2, 50, 2, 2, 6, 1},       {1, 97, 2, 1, 10, 16},      {2, 150, 4, 2, 4, 17},
    {1, 300, 2, 2, 4, 49},     {1, 401, 1, 1, 4, 130},     {2, 60, 2, 2, 6, 1000},
    {2, 50, 2, 1, 6, 1, 1},    {1, 401, 2, 1, 4, 16, 4},   {1, 330, 2, 1, 6, 20, 33},
    {2, 193, 4, 2, 4, 60, 16}, {1, 300, 1, 1, 4, 96, 190}, {1, 420, 2, 2, 2, 7, 100}};

KERNEL_CASES(AttentionInAWindowMatchesReference, OpId::attention_forward, OpId::attention_backward) {
  for (const Case& c : window_cases) {
    SCOPED_TRACE(c);
    const Values qkv = random_values(c.qkv_count(), DType::fp32, 1, 2.0);
    expect_both(c, qkv, usual_limits());
    expect_both(c, qkv, usual_limits(), documents_of(c, 70, 10));
    expect_both(c, random_values(c.qkv_count(), DType::bf16, 1, 2.0), usual_limits());
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Blocks of 256 queries and 512 keys that a window leaves out, between sinks that are in the first tile of 128 keys or
// over several; slices of one key head, and one task for each.
constexpr Case bf16_window_cases[] = {{1, 700, 2, 1, 64, 70},        {1, 600, 2, 2, 32, 33, 4},
                                      {1, 1300, 2, 1, 16, 100, 150}, {9, 600, 1, 1, 16, 40, 3},
                                      {1, 200, 4, 2, 128, 64},       {2, 300, 2, 1, 64, 1, 1},
                                      {1, 600, 1, 1, 48, 550, 20},   {1, 100, 2, 1, 64, 500, 7}};

KERNEL_CASES(AttentionInAWindowInBf16MatchesReference, OpId::attention_forward, OpId::attention_backward) {
  if (!has_bf16_products()) return;
  for (const Case& c : bf16_window_cases) {
    SCOPED_TRACE(c);
    const Values qkv = random_values(c.qkv_count(), DType::bf16, 1, 2.0);
    expect_both(c, qkv, usual_limits());
    for (const std::int64_t longest : {20, 300})
      expect_both(c, qkv, usual_limits(), documents_of(c, longest, 10));
    if (testing::Test::HasFatalFailure()) return;
  }
}

// A key that no query sees reaches no result, however large it is, not even as a NaN.
KERNEL_CASES(AttentionDoesNotReadOutsideOfTheWindow, OpId::attention_forward) {
  const Case c{1, 300, 1, 1, 16, 40, 3}, plain{1, 300, 1, 1, 16, 40};
  for (const Case& each : {c, plain}) {
    Values qkv = random_values(each.qkv_count(), DType::fp32, 1);
    qkv.set((100 * 3 + 1) * each.head_size, std::numeric_limits<double>::quiet_NaN());  // in key 100
    const auto result =
        run_under_test(forward_tensors(each, qkv), [&](Tensors& t) { return forward_of(t, each); });
    if (!result) continue;
    EXPECT_FALSE(std::isnan((*result)[1][99 * each.head_size]));
    EXPECT_TRUE(std::isnan((*result)[1][100 * each.head_size]));
    EXPECT_TRUE(std::isnan((*result)[1][139 * each.head_size]));
    EXPECT_FALSE(std::isnan((*result)[1][140 * each.head_size]));
    EXPECT_FALSE(std::isnan((*result)[1][299 * each.head_size]));
  }
}

// bf16, for implementations with products of it: tiles are 32 and 128 wide, blocks 256 and 512; head sizes
// that are whole steps of 32 and not; one task per key head and several (fewer than 16 key heads in forward,
// 8 in backward); one and several query heads per key head.
constexpr Case bf16_cases[] = {{1, 1, 1, 1, 8},    {3, 17, 8, 2, 48}, {1, 65, 4, 2, 64},   {1, 100, 2, 1, 80},
                               {2, 33, 2, 2, 128}, {9, 64, 2, 1, 64}, {1, 550, 2, 1, 64},  {16, 40, 2, 1, 16},
                               {2, 150, 6, 3, 34}, {1, 20, 2, 1, 5},  {1, 401, 1, 1, 256}, {4, 96, 4, 2, 32},
                               {1, 200, 4, 2, 128}};

void expect_both_in_bf16(std::initializer_list<std::int64_t> lengths) {
  for (const Case& c : bf16_cases) {
    SCOPED_TRACE(c);
    const Values qkv = random_values(c.qkv_count(), DType::bf16, 1, 2.0);
    expect_both(c, qkv, usual_limits());
    for (const std::int64_t longest : lengths) {
      expect_both(c, qkv, usual_limits(), documents_of(c, longest, 10));
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

KERNEL_CASES(AttentionInBf16MatchesReference, OpId::attention_forward, OpId::attention_backward) {
  if (!has_bf16_products()) return;
  if (under_test()->on_processor()) return expect_both_in_bf16({5, 70, 300});
  expect_both_in_bf16({70});
}
LONG_KERNEL_CASES(AttentionInBf16InsideOtherDocumentsOnADevice, OpId::attention_forward,
                  OpId::attention_backward) {
  if (has_bf16_products() && !under_test()->on_processor()) expect_both_in_bf16({5, 300});
}

// The others widen bf16 and go on as in fp32, which smaller cases have shown.
LONG_KERNEL_CASES(WidenedAttentionInBf16MatchesReference, OpId::attention_forward, OpId::attention_backward) {
  if (!has_bf16_products()) expect_both_in_bf16({5, 70, 300});
}

void expect_both_of_growing_scores(const Case& c) {
  for (const double growth : {3.0, 30.0}) {
    Values qkv = random_values(c.qkv_count(), DType::bf16, 15);
    for (std::int64_t t = 0; t < c.length; ++t) {
      for (std::int64_t d = 0; d < c.head_size; ++d) {
        const std::int64_t query = t * 3 * c.head_size + d, key = query + c.head_size;
        qkv.set(query, 1.0);
        qkv.set(key, growth * static_cast<double>(t) / static_cast<double>(c.length) + qkv[key] / 8);
      }
    }
    expect_both(c, qkv, {.tolerance = 4e-6, .bf16_tolerance = 1.0 / 64});
  }
}

// Keys that grow along the sequence: the softmax has to change its reference again and again, or just not.
KERNEL_CASES(AttentionOfGrowingScores, OpId::attention_forward, OpId::attention_backward) {
  expect_both_of_growing_scores({1, 1100, 1, 1, 16});
  expect_both_of_growing_scores({1, 300, 1, 1, 64});
}

void expect_one_document_to_have_the_bits_of_none(const Case& c, DType dtype) {
  const Values qkv = random_values(c.qkv_count(), dtype, 12);
  const FirstKeys one(static_cast<std::size_t>(c.batch * c.length), 0);
  const Tensors tensors = backward_tensors(c, qkv);
  const auto backward = [&](const FirstKeys& first_key) {
    return run_op(
        tensors, [&](Tensors& t) { return backward_of(t, c, first_key); }, 2, best_cpu_isa());
  };
  const auto forward = [&](const FirstKeys& first_key) {
    return run_op(
        forward_tensors(c, qkv), [&](Tensors& t) { return forward_of(t, c, first_key); }, 2, best_cpu_isa());
  };
  EXPECT_TRUE(forward(one)[1].same_bits(forward({})[1]));
  EXPECT_TRUE(backward(one)[5].same_bits(backward({})[5]));
}
TEST(Attention, OneDocumentHasTheBitsOfNone) {
  expect_one_document_to_have_the_bits_of_none({2, 150, 4, 2, 12}, DType::fp32);
  expect_one_document_to_have_the_bits_of_none({2, 600, 4, 2, 12}, DType::bf16);
}

// A window of all keys hides nothing, with sinks and without.
KERNEL_CASES(AWindowOfAllKeysHasTheBitsOfNone, OpId::attention_forward, OpId::attention_backward) {
  for (const auto& [c, dtype] :
       {std::pair{Case{2, 150, 4, 2, 12}, DType::fp32}, {{1, 600, 2, 1, 64}, DType::bf16}}) {
    const Values qkv = random_values(c.qkv_count(), dtype, 12);
    const Tensors tensors = backward_tensors(c, qkv);
    const auto run = [&](std::int64_t window, std::int64_t sinks) {
      Case in_window = c;
      in_window.window = window;
      in_window.sinks = sinks;
      const auto forward =
          run_under_test(forward_tensors(c, qkv), [&](Tensors& t) { return forward_of(t, in_window); });
      const auto backward = run_under_test(tensors, [&](Tensors& t) { return backward_of(t, in_window); });
      return std::pair(forward, backward);
    };
    const auto [forward, backward] = run(0, 0);
    for (const auto& [window, sinks] :
         {std::pair<std::int64_t, std::int64_t>{c.length, 0}, {c.length, 3}, {1 << 20, 0}}) {
      const auto [other, other_backward] = run(window, sinks);
      const auto same = [](const auto& a, const auto& b, std::size_t tensor) {
        return !a || !b || (*a)[tensor].same_bits((*b)[tensor]);
      };
      EXPECT_TRUE(same(other, forward, 1)) << window << ' ' << sinks;
      EXPECT_TRUE(same(other_backward, backward, 5)) << window << ' ' << sinks;
    }
  }
}

// Scores of hidden keys that dwarf the visible ones must not reach anything: not as an overflow of 2^(score -
// largest) either, in forward or backward.
KERNEL_CASES(AttentionOfLargeHiddenScores, OpId::attention_forward, OpId::attention_backward) {
  const Case c{1, 200, 2, 1, 16};
  Values qkv = random_values(c.qkv_count(), DType::fp32, 13);
  const std::int64_t begin = 121, stride = 4 * c.head_size;  // of the second document; of a row
  for (std::int64_t t = 0; t < begin; ++t) {
    for (std::int64_t d = 0; d < c.head_size; ++d) {
      const std::int64_t key = t * stride + 2 * c.head_size + d;
      qkv.set(key, qkv[key] * 1e4);
    }
  }
  FirstKeys first_key(static_cast<std::size_t>(c.length), 0);
  std::fill(first_key.begin() + begin, first_key.end(), static_cast<std::int32_t>(begin));
  const Case alone{1, c.length - begin, c.heads, c.kv_heads, c.head_size};
  Values second(alone.qkv_count(), DType::fp32);
  for (std::int64_t i = 0; i < second.count(); ++i) second.set(i, qkv[begin * stride + i]);
  const Tensors expected =
      run_reference(forward_tensors(alone, second), [&](Tensors& t) { return forward_of(t, alone); });
  const auto together =
      run_under_test(forward_tensors(c, qkv), [&](Tensors& t) { return forward_of(t, c, first_key); });
  for (std::int64_t i = 0; together && i < expected[1].count(); ++i) {
    ASSERT_NEAR((*together)[1][begin * c.heads * c.head_size + i], expected[1][i], 4e-6) << i;
  }
  expect_both(c, qkv, {.tolerance = 5e-3}, first_key);
  const Case wide{1, c.length, 2, 1, 64};
  Values rounded = random_values(wide.qkv_count(), DType::bf16, 13);
  for (std::int64_t i = 0; i < begin * wide.qkv_count() / c.length; ++i) {
    if (i / wide.head_size % 4 == 2) rounded.set(i, rounded[i] * 1e4);
  }
  expect_both(wide, rounded, {.tolerance = 5e-3, .bf16_tolerance = 1.0 / 64}, first_key);
}

// Score differences of 1e4, where softmax is one-hot but for near ties; fp32 scores are good to 1e-3 there.
KERNEL_CASES(AttentionOfLargeScores, OpId::attention_forward, OpId::attention_backward) {
  const OpLimits limits = {.tolerance = 5e-3, .bf16_tolerance = 1.0 / 64};
  const Case c{2, 70, 2, 2, 16}, wide{2, 70, 2, 2, 64};
  for (const DType dtype : {DType::fp32, DType::bf16})
    expect_both(c, random_values(c.qkv_count(), dtype, 5, 90.0), limits);
  expect_both(wide, random_values(wide.qkv_count(), DType::bf16, 5, 64.0), limits);
}

// Keys opposite to their queries: the log-sum-exp of the first rows is about -1e4. Nothing may overflow on
// the way, in the padding behind the last key neither.
KERNEL_CASES(AttentionOfVeryNegativeScores, OpId::attention_forward, OpId::attention_backward) {
  const Case c{1, 21, 1, 1, 8};
  Values qkv = random_values(c.qkv_count(), DType::fp32, 6, 100.0);
  for (std::int64_t t = 0; t < c.length; ++t) {
    for (std::int64_t d = 0; d < c.head_size; ++d) {
      const std::int64_t row = t * 3 * c.head_size + d;
      qkv.set(row, 60.0 + random_at(7, row));
      qkv.set(row + c.head_size, -qkv[row]);
    }
  }
  const Tensors tensors =
      run_reference(forward_tensors(c, qkv), [&](Tensors& t) { return forward_of(t, c); });
  ASSERT_LT(tensors[2][0], -9e3);
  expect_both(c, qkv, {.tolerance = 5e-3});
}

KERNEL_CASES(NotANumberReachesTheOutputOfAttention, OpId::attention_forward) {
  const std::pair<DType, std::int64_t> cases_of_head_size[] = {
      {DType::fp32, 16}, {DType::bf16, 16}, {DType::bf16, 64}};
  for (const auto& [dtype, head_size] : cases_of_head_size) {
    const Case c{1, 60, 1, 1, head_size};
    Values qkv = random_values(c.qkv_count(), dtype, 8);
    qkv.set((20 * 3 + 1) * c.head_size, std::numeric_limits<double>::quiet_NaN());  // in key 20
    const auto result = run_under_test(forward_tensors(c, qkv), [&](Tensors& t) { return forward_of(t, c); });
    if (!result) continue;
    EXPECT_FALSE(std::isnan((*result)[1][19 * c.head_size]));  // earlier queries do not see it
    EXPECT_TRUE(std::isnan((*result)[1][20 * c.head_size]));
    EXPECT_TRUE(std::isnan((*result)[1][59 * c.head_size]));
    EXPECT_TRUE(std::isnan((*result)[2][59]));
  }
}

void expect_gradients(const Case& c, const FirstKeys& first_key = {}) {
  const Values qkv = random_values(c.qkv_count(), DType::fp32, 9);
  const Tensors tensors = backward_tensors(c, qkv, first_key);
  const Values& dout = tensors[3];
  for (const int threads : {1, 2}) {
    const Tensors result = run_op(
        tensors, [&](Tensors& t) { return backward_of(t, c, first_key); }, threads, best_cpu_isa());
    Tensors forward = forward_tensors(c, qkv);
    const auto loss = [&] {
      reference(forward_of(forward, c, first_key));
      return dot(forward[1], dout);
    };
    expect_gradient(forward[0], result[5], loss);
  }
}

TEST(Attention, GradientMatchesFiniteDifferences) {
  expect_gradients({2, 9, 4, 2, 6});
}
TEST(Attention, GradientMatchesFiniteDifferencesOverSeveralPanels) {
  expect_gradients({1, 53, 2, 1, 4});
}
TEST(Attention, GradientMatchesFiniteDifferencesWithDocuments) {
  const Case c{2, 53, 2, 1, 4};
  expect_gradients(c, documents_of(c, 30, 14));
}

TEST(Attention, GradientMatchesFiniteDifferencesInAWindow) {
  const Case c{2, 53, 2, 1, 4, 11, 3};
  expect_gradients(c);
  expect_gradients(c, documents_of(c, 30, 14));
}

TEST(Attention, ADeviceTakesBf16ProductsForBf16Alone) {
  const CpuIsa isa = best_cpu_isa();
  if (isa < CpuIsa::avx512_bf16) GTEST_SKIP() << "this processor has neither avx512_bf16 nor amx";
  const std::unique_ptr<Device> device = make_cpu_device({});
  const AttentionForward bf16{.dtype = DType::bf16}, fp32{.dtype = DType::fp32};
  const KernelChoice& choice = device->kernels()[static_cast<std::size_t>(OpId::attention_forward)];
  EXPECT_STREQ(first_that_computes(choice.order, &bf16).name, name_of(isa));
  EXPECT_STREQ(first_that_computes(choice.order, &fp32).name, "avx512");
  EXPECT_NE(device->description().find(std::string("attention_forward ") + name_of(isa)), std::string::npos);
}

}  // namespace

}  // namespace holdfast::test
