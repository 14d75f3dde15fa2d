#include "kernels/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/stochastic_rounding.h"
#include "runtime/core/random.h"
#include "runtime/core/shard_spec.h"
#include "tests/kernels/op_test.h"
#include "tests/kernels/segmented_op.h"

namespace holdfast::test {
namespace {

// Tensors: weight, moment1, moment2, gradient, bf16 copy.
Tensors adamw_tensors(std::int64_t count, DType moments = DType::fp32) {
  Tensors tensors = {random_values(count, DType::fp32, 1), random_values(count, moments, 2, 0.1),
                     random_values(count, moments, 3, 0.1), random_values(count, DType::fp32, 4),
                     Values(count, DType::bf16)};
  for (std::int64_t i = 0; i < count; ++i) tensors[2].set(i, std::abs(tensors[2][i]) + 1e-3);
  return tensors;
}

// Where the implementation rounds a moment from another last bit, it may be kept as the next number of bf16.
constexpr OpLimits limits_of(DType moments) {
  return moments == DType::bf16 ? OpLimits{.bf16_tolerance = 1.0 / 128} : OpLimits{};
}

void* element_of(Values& values, std::int64_t index) {
  return values.as<std::byte>() + static_cast<std::size_t>(index) * bytes_of(values.dtype());
}

// Returns the second moment of an element as digests take it.
template <typename Update>
void* moment2_of(Tensors& t, std::int64_t index) {
  return Update::moment_count > 1 ? element_of(t[2], index) : nullptr;
}

// An update of the tensors above, cut into pieces of the given sizes, and the table it points to. Every
// second piece decays. A rule with one moment leaves the second tensor of moments alone.
template <typename Update>
class RuleUpdate {
 public:
  RuleUpdate(std::vector<std::int64_t> counts, bool copy) : counts_(std::move(counts)), copy_(copy) {}
  Update operator()(Tensors& t) const {
    table_.clear();
    std::int64_t first = 0, blocks = 0;
    for (const std::int64_t count : counts_) {
      table_.push_back({.weight = t[0].as<float>() + first,
                        .moment1 = element_of(t[1], first),
                        .moment2 = Update::moment_count > 1 ? element_of(t[2], first) : nullptr,
                        .gradient = t[3].as<float>() + first,
                        .copy = copy_ ? t[4].as<BFloat16>() + first : nullptr,
                        .count = count,
                        .first_block = blocks,
                        .weight_decay = table_.size() % 2 == 0 ? 0.1F : 0.0F,
                        .rounding_block = rounding_block(table_.size())});
      first += count;
      blocks += (count + 4095) / 4096;
    }
    Update op{.tensors = table_.data(),
              .tensor_count = static_cast<std::int64_t>(table_.size()),
              .block_count = blocks,
              .learning_rate = 3e-2F,
              .beta1 = 0.9F,
              .beta2 = 0.95F,
              .gradient_scale = 0.25F,
              .moments = t[1].dtype(),
              .rounding_key = rounding_key};
    if constexpr (requires { op.epsilon; }) {
      op.epsilon = 1e-8F;
      op.correction1 = 1.0F - 0.9F * 0.9F;
      op.correction2 = 1.0F - 0.95F * 0.95F;
    }
    return op;
  }
  static constexpr std::uint64_t rounding_key = 0x123456789abcdef0U;
  // Returns the number of the first block of a piece.
  static std::uint64_t rounding_block(std::size_t piece) { return mix64(piece, 0); }

 private:
  std::vector<std::int64_t> counts_;
  bool copy_;
  // Belongs to the op made last, and lies in memory that the device under test reaches, as tensors do.
  mutable std::vector<OptimizerTensor, TensorAllocator<OptimizerTensor>> table_;
};

using AdamWUpdate = RuleUpdate<AdamW>;

// Declares a test of every rule: AdamW##name and Lion##name.
#define UPDATE_CASES(name)                 \
  template <typename Update>               \
  void update_##name();                    \
  KERNEL_CASES(AdamW##name, OpId::adamw) { \
    update_##name<AdamW>();                \
  }                                        \
  KERNEL_CASES(Lion##name, OpId::lion) {   \
    update_##name<Lion>();                 \
  }                                        \
  template <typename Update>               \
  void update_##name()

// The update above with digests, in the sixth tensor, and those of gradients that are compared, in the seventh. The
// damage is that of the run before.
template <typename Update = AdamW>
class DigestedUpdate {
 public:
  DigestedUpdate(std::vector<std::int64_t> counts, bool copy, DType moments = DType::fp32)
      : counts_(counts), update_(counts, copy), moments_(moments) {}
  DigestedUpdate& checking(bool checks) {
    checks_ = checks;
    return *this;
  }
  Update operator()(Tensors& t) const {
    Update op = update_(t);
    op.block_digests = t[5].as<std::uint64_t>();
    op.checks_digests = checks_;
    op.damage = damage_.data();
    op.gradient_digests = t[6].as<std::uint64_t>();
    op.gradient_damage = damage_.data() + 1;
    return op;
  }
  const StateDamage& damage() const { return damage_[0]; }
  const StateDamage& gradient_damage() const { return damage_[1]; }

  Tensors tensors() const {
    Tensors all = adamw_tensors(std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}), moments_);
    const std::vector<std::uint64_t> of_gradients =
        digests_of([&](std::int64_t at, std::int64_t size) { return gradient_digest(all, at, size); });
    const auto blocks = static_cast<std::int64_t>(of_gradients.size());
    for (int i = 0; i < 2; ++i) all.emplace_back(blocks, DType::fp64);
    std::ranges::copy(of_gradients, all[6].as<std::uint64_t>());
    return all;
  }
  // By the definition, of what the tensors hold now.
  std::vector<std::uint64_t> digests_of(Tensors& t) const {
    return digests_of([&](std::int64_t at, std::int64_t size) {
      return state_digest(t[0].as<float>() + at, element_of(t[1], at), moment2_of<Update>(t, at), size,
                          moments_);
    });
  }
  static std::vector<std::uint64_t> kept_digests(Tensors& t) {
    const auto* kept = t[5].as<std::uint64_t>();
    return {kept, kept + t[5].count()};
  }

 private:
  static std::uint64_t gradient_digest(Tensors& t, std::int64_t first, std::int64_t size) {
    return state_digest(t[3].as<float>() + first, nullptr, nullptr, size);
  }
  template <typename DigestOf>
  std::vector<std::uint64_t> digests_of(const DigestOf& digest_of) const {
    std::vector<std::uint64_t> digests;
    std::int64_t first = 0;
    for (const std::int64_t count : counts_) {
      for (std::int64_t begin = 0; begin < count; begin += 4096)
        digests.push_back(digest_of(first + begin, std::min<std::int64_t>(4096, count - begin)));
      first += count;
    }
    return digests;
  }

  std::vector<std::int64_t> counts_;
  RuleUpdate<Update> update_;
  DType moments_;
  bool checks_ = false;
  mutable std::vector<StateDamage, TensorAllocator<StateDamage>> damage_{2};
};

void flip_bit(Values& values, std::int64_t element, int bit) {
  values.as<std::byte>()[element * static_cast<std::int64_t>(bytes_of(values.dtype())) + bit / 8] ^=
      std::byte{1} << bit % 8;
}

int bits_of(const Values& values) {
  return static_cast<int>(8 * bytes_of(values.dtype()));
}

constexpr DType moment_types[] = {DType::fp32, DType::bf16};

UPDATE_CASES(MatchesReference) {
  for (const DType moments : moment_types) {
    for (const std::int64_t count : {1, 15, 16, 4096, 20011}) {
      for (const bool copy : {false, true}) {
        SCOPED_TRACE(testing::Message() << count << " " << name_of(moments));
        expect_op(adamw_tensors(count, moments), RuleUpdate<Update>({count}, copy), limits_of(moments));
      }
    }
  }
}

// The update above, which also writes what it leaves to the eighth to tenth tensor, `shift` elements behind their begin.
// Every fourth piece is not kept, and of every fifth only the second moment is.
template <typename Update = AdamW>
class KeepingUpdate {
 public:
  KeepingUpdate(std::vector<std::int64_t> counts, DType moments, std::int64_t shift)
      : counts_(counts), update_(std::move(counts), true, moments), moments_(moments), shift_(shift) {}
  Update operator()(Tensors& t) const {
    Update op = update_(t);
    op.keeps_state = true;
    table_.assign(op.tensors, op.tensors + op.tensor_count);
    std::int64_t first = shift_;
    for (std::size_t piece = 0; piece < counts_.size(); first += room(counts_[piece++])) {
      if (keeps(piece, 0)) table_[piece].kept_weight = t[7].as<float>() + first;
      if (keeps(piece, 1)) table_[piece].kept_moment1 = element_of(t[8], first);
      if (keeps(piece, 2)) table_[piece].kept_moment2 = element_of(t[9], first);
    }
    op.tensors = table_.data();
    return op;
  }
  static bool keeps(std::size_t piece, int array) {
    return array <= Update::moment_count && piece % 4 != 3 && (piece % 5 != 4 || array == 2);
  }
  // Begins each piece at a multiple of 64 bytes where `shift` is 0, as a snapshot does.
  static std::int64_t room(std::int64_t count) { return (count + 31) / 32 * 32; }
  Tensors tensors() const {
    Tensors all = update_.tensors();
    std::int64_t count = shift_;
    for (const std::int64_t each : counts_) count += room(each);
    for (const DType dtype : {DType::fp32, moments_, moments_}) all.emplace_back(count, dtype);
    return all;
  }
  // Returns what the kept arrays must hold: what the update has left, where it is kept, else what was there.
  Tensors expected(Tensors& before, Tensors& after) const {
    Tensors kept = {before[7], before[8], before[9]};
    std::int64_t from = 0, to = shift_;
    for (std::size_t piece = 0; piece < counts_.size(); ++piece) {
      for (int array = 0; array < 3; ++array) {
        const auto index = static_cast<std::size_t>(array);
        if (keeps(piece, array))
          std::memcpy(element_of(kept[index], to), element_of(after[index], from),
                      static_cast<std::size_t>(counts_[piece]) * bytes_of(kept[index].dtype()));
      }
      from += counts_[piece];
      to += room(counts_[piece]);
    }
    return kept;
  }
  const DigestedUpdate<Update>& update() const { return update_; }

 private:
  std::vector<std::int64_t> counts_;
  DigestedUpdate<Update> update_;
  DType moments_;
  std::int64_t shift_;
  mutable std::vector<OptimizerTensor, TensorAllocator<OptimizerTensor>> table_;
};

// An update that keeps the state leaves the bits of one that does not, and has them twice; whatever the alignment.
UPDATE_CASES(KeepsWhatItLeaves) {
  const std::vector<std::int64_t> counts = {4096, 1, 4097, 15, 12'300, 16, 3, 8192 + 70};
  for (const DType moments : moment_types) {
    for (const std::int64_t shift : {0, 1, 8}) {
      SCOPED_TRACE(testing::Message() << name_of(moments) << ", shifted by " << shift);
      const KeepingUpdate<Update> keeping(counts, moments, shift);
      Tensors before = keeping.tensors();
      before[3].set(4200, std::numeric_limits<double>::quiet_NaN());
      auto plain = run_under_test(before, keeping.update(), 3);
      auto kept = run_under_test(before, keeping, 3);
      if (!plain || !kept) return;
      for (std::size_t t = 0; t < 7; ++t) EXPECT_TRUE((*kept)[t].same_bits((*plain)[t])) << "tensor " << t;
      const Tensors expected = keeping.expected(before, *kept);
      for (std::size_t t = 0; t < 3; ++t)
        EXPECT_TRUE((*kept)[7 + t].same_bits(expected[t])) << "tensor " << 7 + t;
    }
  }
}

// The update above with averages of the weights in the eighth tensor, which every second piece has, and where the update
// keeps state the ninth to twelfth tensor for what it leaves, pieces at multiples of 64 bytes but for `shift`.
template <typename Update = AdamW>
class AveragingUpdate {
 public:
  AveragingUpdate(std::vector<std::int64_t> counts, DType moments, bool keeps = false, std::int64_t shift = 0)
      : counts_(counts),
        update_(std::move(counts), true, moments),
        moments_(moments),
        keeps_(keeps),
        shift_(shift) {}
  AveragingUpdate& checking(bool checks) {
    update_.checking(checks);
    return *this;
  }
  AveragingUpdate& with_digests(bool digests) {
    with_digests_ = digests;
    return *this;
  }
  Update operator()(Tensors& t) const {
    Update op = update_(t);
    op.keeps_state = keeps_;
    op.ema_rest = 0.0625F;
    if (!with_digests_) {
      op.block_digests = nullptr;
      op.gradient_digests = nullptr;
    }
    table_.assign(op.tensors, op.tensors + op.tensor_count);
    std::int64_t first = 0, room = shift_;
    for (std::size_t piece = 0; piece < counts_.size(); ++piece) {
      if (has_average(piece)) table_[piece].ema = t[7].as<float>() + first;
      if (keeps_) {
        table_[piece].kept_weight = t[8].as<float>() + room;
        table_[piece].kept_moment1 = element_of(t[9], room);
        if (Update::moment_count > 1) table_[piece].kept_moment2 = element_of(t[10], room);
        table_[piece].kept_ema = t[11].as<float>() + room;
      }
      first += counts_[piece];
      room += KeepingUpdate<>::room(counts_[piece]);
    }
    op.tensors = table_.data();
    return op;
  }
  static bool has_average(std::size_t piece) { return piece % 2 == 0; }
  Tensors tensors() const {
    Tensors all = update_.tensors();
    std::int64_t count = 0, room = shift_;
    for (const std::int64_t each : counts_) {
      count += each;
      room += KeepingUpdate<>::room(each);
    }
    all.push_back(random_values(count, DType::fp32, 8));
    for (const DType dtype : {DType::fp32, moments_, moments_, DType::fp32}) all.emplace_back(room, dtype);
    return all;
  }
  // Calls visit(piece, its first element, its place among what is kept).
  void visit_pieces(auto&& visit) const {
    std::int64_t first = 0, room = shift_;
    for (std::size_t piece = 0; piece < counts_.size(); ++piece) {
      visit(piece, first, room);
      first += counts_[piece];
      room += KeepingUpdate<>::room(counts_[piece]);
    }
  }
  // By the definition, of what the tensors hold now.
  std::vector<std::uint64_t> digests_of(Tensors& t) const {
    std::vector<std::uint64_t> digests;
    visit_pieces([&](std::size_t piece, std::int64_t first, std::int64_t) {
      for (std::int64_t begin = 0; begin < counts_[piece]; begin += 4096) {
        const std::int64_t at = first + begin;
        digests.push_back(state_digest(t[0].as<float>() + at, element_of(t[1], at), moment2_of<Update>(t, at),
                                       std::min<std::int64_t>(4096, counts_[piece] - begin), moments_,
                                       has_average(piece) ? t[7].as<float>() + at : nullptr));
      }
    });
    return digests;
  }
  const StateDamage& damage() const { return update_.damage(); }
  const DigestedUpdate<Update>& plain() const { return update_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }

 private:
  std::vector<std::int64_t> counts_;
  DigestedUpdate<Update> update_;
  DType moments_;
  bool keeps_, with_digests_ = true;
  std::int64_t shift_;
  mutable std::vector<OptimizerTensor, TensorAllocator<OptimizerTensor>> table_;
};

const std::vector<std::int64_t> averaged_counts = {4097, 1, 15, 4096, 12'300, 16, 3, 8192, 70'001};

// Averages move by the weights that the update leaves, whose bits they do not change.
UPDATE_CASES(MovesAveragesOfTheWeights) {
  for (const DType moments : moment_types) {
    for (const bool with_digests : {false, true}) {
      AveragingUpdate<Update> update(averaged_counts, moments);
      const Tensors before = update.with_digests(with_digests).tensors();
      const auto run = run_under_test(before, update, 3);
      const auto plain = run_under_test(before, update.plain(), 3);
      if (!run || !plain) return;
      for (const std::size_t t : {0U, 1U, 2U, 3U, 4U})
        EXPECT_TRUE((*run)[t].same_bits((*plain)[t])) << "tensor " << t;
      update.visit_pieces([&](std::size_t piece, std::int64_t first, std::int64_t) {
        for (std::int64_t i = first; i < first + averaged_counts[piece]; ++i) {
          const double old = before[7][i], weight = (*run)[0][i];
          const double expected =
              AveragingUpdate<Update>::has_average(piece) ? old + 0.0625 * (weight - old) : old;
          ASSERT_NEAR((*run)[7][i], expected, 1.5e-7 * (std::abs(old) + std::abs(weight)))
              << "piece " << piece << ", element " << i - first;
        }
      });
      expect_same_bits_anywhere(before, update);
    }
  }
}

UPDATE_CASES(DigestsCoverAverages) {
  for (const DType moments : moment_types) {
    AveragingUpdate<Update> update(averaged_counts, moments);
    auto run = run_under_test(update.tensors(), update.checking(false), 3);
    if (!run) return;
    EXPECT_EQ(DigestedUpdate<Update>::kept_digests(*run), update.digests_of(*run));
    Tensors damaged = *run_under_test(*run, update.checking(true), 3);
    EXPECT_EQ(update.damage().block_count, 0U);
    EXPECT_EQ(DigestedUpdate<Update>::kept_digests(damaged), update.digests_of(damaged));
    flip_bit(damaged[7], 4096, 0);                            // the second block of the first piece
    flip_bit(damaged[7], 4097 + 1 + 15 + 4096 + 12'299, 31);  // the last of the fifth
    flip_bit(damaged[7], 4097, 31);                           // of a piece that has none
    run_under_test(damaged, update, 3);
    EXPECT_EQ(update.damage().block_count, 2U);
    EXPECT_EQ(update.damage().first_block, 1U);
  }
}

UPDATE_CASES(KeepsAveragesThatItLeaves) {
  for (const DType moments : moment_types) {
    for (const std::int64_t shift : {0, 1}) {
      const AveragingUpdate<Update> plain(averaged_counts, moments),
          keeping(averaged_counts, moments, true, shift);
      const Tensors before = keeping.tensors();
      auto expected = run_under_test(before, plain, 3);
      auto kept = run_under_test(before, keeping, 3);
      if (!expected || !kept) return;
      for (std::size_t t = 0; t < 8; ++t) EXPECT_TRUE((*kept)[t].same_bits((*expected)[t])) << "tensor " << t;
      const std::size_t live[] = {0, 1, 2, 7};
      keeping.visit_pieces([&](std::size_t piece, std::int64_t first, std::int64_t room) {
        for (std::size_t array = 0; array < 4; ++array) {
          if (array == 2 && Update::moment_count < 2) continue;
          if (array == 3 && !AveragingUpdate<Update>::has_average(piece)) continue;
          Values& copy = (*kept)[8 + array];
          EXPECT_EQ(std::memcmp(element_of(copy, room), element_of((*kept)[live[array]], first),
                                static_cast<std::size_t>(averaged_counts[piece]) * bytes_of(copy.dtype())),
                    0)
              << "piece " << piece << ", array " << array;
        }
      });
    }
  }
}

// Returns the bits of a fp32 number as the moment that is kept of it.
BFloat16 kept(float averaged, std::uint32_t random) {
  const std::uint32_t bits = rounded_with(std::bit_cast<std::uint32_t>(averaged), random);
  return BFloat16{static_cast<std::uint16_t>(bits >> 16)};
}

// An update with bf16 moments is that of the same moments in fp32, whose moments are then rounded by the definition:
// the weights have all bits of the averages. Sizes around those of vectors, packs and blocks; numbers that are not
// finite are among them.
UPDATE_CASES(RoundsOnlyTheMomentsThatItKeeps) {
  const std::vector<std::int64_t> counts = {1, 15, 4096, 4097, 16, 12'300, 3, 8192};
  const std::int64_t count = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  Tensors narrow = adamw_tensors(count, DType::bf16);
  narrow[3].set(5, std::numeric_limits<double>::infinity());
  narrow[3].set(4200, -std::numeric_limits<double>::infinity());
  narrow[3].set(4201, std::numeric_limits<double>::quiet_NaN());
  narrow[2].set(8300, std::numeric_limits<double>::infinity());
  Tensors wide = narrow;
  for (std::size_t t = 1; t <= Update::moment_count; ++t) {
    wide[t] = Values(count, DType::fp32);
    for (std::int64_t i = 0; i < count; ++i) wide[t].set(i, narrow[t][i]);
  }
  const RuleUpdate<Update> update(counts, true);
  auto averaged = run_under_test(wide, update);
  auto rounded = run_under_test(narrow, update);
  if (!averaged || !rounded) return;
  for (const std::size_t t : {0U, 3U, 4U})
    EXPECT_TRUE((*rounded)[t].same_bits((*averaged)[t])) << "tensor " << t;
  std::int64_t up = 0, down = 0, at = 0;
  for (std::size_t piece = 0; piece < counts.size(); ++piece) {
    for (std::int64_t i = 0; i < counts[piece]; ++i, ++at) {
      const RoundingKey key =
          rounding_key_of_block(RuleUpdate<Update>::rounding_key, RuleUpdate<Update>::rounding_block(piece) +
                                                                      static_cast<std::uint64_t>(i / 4096));
      const std::uint32_t random = rounding_bits(key, static_cast<std::uint32_t>(i % 4096));
      for (std::size_t t = 1; t <= Update::moment_count; ++t) {
        const float value = (*averaged)[t].template as<float>()[at];
        const BFloat16 expected = kept(value, t == 1 ? random & 0xffffU : random >> 16);
        ASSERT_EQ((*rounded)[t].template as<BFloat16>()[at].bits, expected.bits)
            << "tensor " << t << ", element " << at << ": " << value;
        up += std::abs(to_float(expected)) > std::abs(value) ? 1 : 0;
        down += std::abs(to_float(expected)) < std::abs(value) ? 1 : 0;
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(up) / static_cast<double>(up + down), 0.5, 0.02)
      << up << " of " << up + down;
}

// Pieces shorter and longer than what one thread takes at a time, around the edges of blocks.
UPDATE_CASES(UpdatesATableOfTensors) {
  const std::vector<std::int64_t> counts = {1, 4096, 4097, 16, 100'000, 3, 8192, 70'001};
  for (const DType moments : moment_types) {
    const Tensors tensors =
        adamw_tensors(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), moments);
    for (const bool copy : {false, true}) {
      expect_op(tensors, RuleUpdate<Update>(counts, copy), limits_of(moments));
      expect_same_bits_anywhere(tensors, RuleUpdate<Update>(counts, copy));
    }
  }
}

// A copy that starts on a cache line is streamed: the same bits.
UPDATE_CASES(StreamedCopyHasTheSameBits) {
  const std::int64_t count = 100'005;
  Tensors tensors = adamw_tensors(count);
  const RuleUpdate<Update> update({count}, true);
  const auto stored = run_under_test(tensors, update, 2);
  tensors[4].move_to_cache_line();
  expect_op(tensors, update);
  const auto streamed = run_under_test(tensors, update, 2);
  EXPECT_TRUE(!stored || (*streamed)[4].same_bits((*stored)[4]));
}

// Sizes around those of vectors, packs and blocks, and blocks that lie where no wide access can start.
UPDATE_CASES(DigestsAreThoseOfTheStateItWrote) {
  const std::vector<std::vector<std::int64_t>> tables = {
      {1}, {15}, {16}, {17}, {4095}, {4096}, {4097}, {20'011}, {1, 4096, 4097, 16, 30'000, 3, 8192, 20'001}};
  for (const std::vector<std::int64_t>& counts : tables) {
    for (const bool copy : {false, true}) {
      SCOPED_TRACE(testing::Message() << counts.front() << " of " << counts.size());
      DigestedUpdate<Update> update(counts, copy, copy ? DType::bf16 : DType::fp32);
      const Tensors tensors = update.tensors();
      const auto plain = run_under_test(tensors, RuleUpdate<Update>(counts, copy), 1);
      if (!plain) return;
      for (const int threads : under_test()->thread_counts()) {
        Tensors written = *run_under_test(tensors, update.checking(false), threads);
        EXPECT_EQ(update.kept_digests(written), update.digests_of(written));
        EXPECT_EQ(update.damage().block_count, 0U) << "nothing was compared";
        EXPECT_EQ(update.gradient_damage().block_count, 0U);
        for (std::size_t t = 0; t < 5; ++t) {
          EXPECT_TRUE(written[t].same_bits((*plain)[t])) << "tensor " << t;
          EXPECT_TRUE(written[t].guard_intact()) << "tensor " << t;
        }
        written = *run_under_test(written, update.checking(true), threads);
        EXPECT_EQ(update.kept_digests(written), update.digests_of(written));
        EXPECT_EQ(update.damage().block_count, 0U);
        EXPECT_EQ(update.damage().first_block, StateDamage::no_block);
        EXPECT_EQ(update.gradient_damage().block_count, 0U);
        EXPECT_EQ(update.gradient_damage().first_block, StateDamage::no_block);
      }
    }
  }
}

UPDATE_CASES(DigestsAreTheSameAnywhere) {
  for (const DType moments : moment_types) {
    const DigestedUpdate<Update> update({4099, 21}, true, moments);
    expect_same_bits_anywhere(update.tensors(), update);
  }
}

// Every bit of a block, in as many blocks of one table, also in an update that compares nothing of the state. It makes
// the update with what it reads.
UPDATE_CASES(FindsEveryFlippedBitOfTheGradient) {
  constexpr std::int64_t count = 21;  // a vector and a rest
  constexpr std::size_t bits = 32, flips = bits * count;
  const std::vector<std::int64_t> counts(flips, count);
  DigestedUpdate<Update> update(counts, true);
  Tensors damaged = update.tensors();
  for (std::size_t flip = 0; flip < flips; ++flip) {
    flip_bit(damaged[3], static_cast<std::int64_t>(flip) * count + static_cast<std::int64_t>(flip / bits),
             static_cast<int>(flip % bits));
  }
  const auto written = run_under_test(damaged, update.checking(false), 2);
  if (!written) return;
  EXPECT_EQ(update.gradient_damage().block_count, flips);
  EXPECT_EQ(update.gradient_damage().first_block, 0U);
  EXPECT_EQ(update.damage().block_count, 0U);
  const Tensors plain = *run_under_test(damaged, RuleUpdate<Update>(counts, true), 2);
  for (std::size_t t = 0; t < 5; ++t) EXPECT_TRUE((*written)[t].same_bits(plain[t])) << "tensor " << t;
}

UPDATE_CASES(NamesTheFirstDamagedBlockOfTheGradient) {
  DigestedUpdate<Update> update({4096, 70, 4096 * 40 + 5}, false);
  Tensors damaged = update.tensors();
  flip_bit(damaged[3], 4096 + 70 + 4096 * 40 + 4, 31);
  flip_bit(damaged[3], 4096 + 69, 0);
  flip_bit(damaged[3], 4096 + 70 + 4096 * 21, 7);
  flip_bit(damaged[0], 3, 1);
  if (!run_under_test(damaged, update.checking(false), 3)) return;
  EXPECT_EQ(update.gradient_damage().block_count, 3U);
  EXPECT_EQ(update.gradient_damage().first_block, 1U);
}

// Flips every bit of a block of each array of the state, in as many blocks of `count` elements of one table. Returns how
// many that is.
template <typename Update = AdamW>
std::size_t flip_every_bit(Tensors& state, std::int64_t count) {
  std::size_t flips = 0;
  for (std::size_t array = 0; array <= Update::moment_count; ++array) {
    for (std::int64_t element = 0; element < count; ++element) {
      for (int bit = 0; bit < bits_of(state[array]); ++bit, ++flips)
        flip_bit(state[array], static_cast<std::int64_t>(flips) * count + element, bit);
    }
  }
  return flips;
}

constexpr std::int64_t flipped_count = 21;  // a vector and a rest

// The blocks that flip_every_bit() takes.
template <typename Update = AdamW>
std::vector<std::int64_t> flipped_blocks(DType moments) {
  const std::size_t bits = 8 * (sizeof(float) + Update::moment_count * bytes_of(moments));
  return std::vector<std::int64_t>(bits * flipped_count, flipped_count);
}

UPDATE_CASES(FindsEveryFlippedBit) {
  for (const DType moments : moment_types) {
    DigestedUpdate<Update> update(flipped_blocks<Update>(moments), false, moments);
    const auto written = run_under_test(update.tensors(), update.checking(false), 2);
    if (!written) return;
    Tensors damaged = *written;
    const std::size_t flips = flip_every_bit<Update>(damaged, flipped_count);
    const Tensors next = *run_under_test(damaged, update.checking(true), 2);
    EXPECT_EQ(update.damage().block_count, flips);
    EXPECT_EQ(update.damage().first_block, 0U);
    run_under_test(next, update.checking(true), 2);
    EXPECT_EQ(update.damage().block_count, 0U) << "the values that it went on with are not damaged";
    run_under_test(damaged, update.checking(false), 2);
    EXPECT_EQ(update.damage().block_count, 0U) << "nothing was compared";
  }
}

UPDATE_CASES(NamesTheFirstDamagedBlock) {
  const std::vector<std::int64_t> counts = {4096, 70, 4096 * 40 + 5};  // more blocks than one thread takes
  DigestedUpdate<Update> update(counts, true);
  const auto written = run_under_test(update.tensors(), update.checking(false), 3);
  if (!written) return;
  Tensors damaged = *written;
  flip_bit(damaged[Update::moment_count], 4096 + 70 + 4096 * 40 + 4, 31);
  flip_bit(damaged[0], 4096 + 70 + 4096 * 3 + 11, 0);
  flip_bit(damaged[1], 4096 + 70 + 4096 * 21, 7);
  flip_bit(damaged[1], 4096 + 70 + 4096 * 21 + 1, 7);
  run_under_test(damaged, update.checking(true), 3);
  EXPECT_EQ(update.damage().block_count, 3U);
  EXPECT_EQ(update.damage().first_block, 5U);
}

// The op on the tensors above, of which every third piece is frozen where `some_frozen` says so. The damage is that
// of the run before.
class StateExamination {
 public:
  StateExamination(std::vector<std::int64_t> counts, bool some_frozen, DType moments = DType::fp32)
      : counts_(std::move(counts)), some_frozen_(some_frozen), moments_(moments) {}
  StateExamination& checking(bool checks) {
    checks_ = checks;
    return *this;
  }
  // Takes the moments of a rule that keeps so many.
  StateExamination& with_moments(int count) {
    moment_count_ = count;
    return *this;
  }
  // Takes the blocks [first, first + count) alone.
  StateExamination& range(std::int64_t first, std::int64_t count) {
    first_block_ = first;
    block_count_ = count;
    return *this;
  }
  OptimizerDigest operator()(Tensors& t) const {
    table_.clear();
    std::int64_t first = 0, blocks = 0;
    for (const std::int64_t count : counts_) {
      const bool frozen = is_frozen(table_.size());
      table_.push_back({.weight = t[0].as<float>() + first,
                        .moment1 = frozen ? nullptr : element_of(t[1], first),
                        .moment2 = frozen || moment_count_ < 2 ? nullptr : element_of(t[2], first),
                        .count = count,
                        .first_block = blocks});
      first += count;
      blocks += (count + 4095) / 4096;
    }
    return {.tensors = table_.data(),
            .tensor_count = static_cast<std::int64_t>(table_.size()),
            .first_block = first_block_,
            .block_count = block_count_ < 0 ? blocks : block_count_,
            .block_digests = t[5].as<std::uint64_t>(),
            .checks_digests = checks_,
            .moments = moments_,
            .damage = damage_.data()};
  }
  const StateDamage& damage() const { return damage_.front(); }
  Tensors tensors() const { return DigestedUpdate(counts_, false, moments_).tensors(); }
  // By the definition, of what the tensors hold now.
  std::vector<std::uint64_t> digests_of(Tensors& t) const {
    std::vector<std::uint64_t> digests;
    std::int64_t first = 0;
    for (std::size_t piece = 0; piece < counts_.size(); first += counts_[piece++]) {
      const bool frozen = is_frozen(piece);
      for (std::int64_t begin = 0; begin < counts_[piece]; begin += 4096) {
        const std::int64_t at = first + begin;
        digests.push_back(state_digest(t[0].as<float>() + at, frozen ? nullptr : element_of(t[1], at),
                                       frozen || moment_count_ < 2 ? nullptr : element_of(t[2], at),
                                       std::min<std::int64_t>(4096, counts_[piece] - begin), moments_));
      }
    }
    return digests;
  }

 private:
  bool is_frozen(std::size_t piece) const { return some_frozen_ && piece % 3 == 1; }

  std::vector<std::int64_t> counts_;
  bool some_frozen_;
  DType moments_;
  bool checks_ = false;
  int moment_count_ = 2;
  std::int64_t first_block_ = 0, block_count_ = -1;
  mutable std::vector<OptimizerTensor, TensorAllocator<OptimizerTensor>> table_;
  mutable std::vector<StateDamage, TensorAllocator<StateDamage>> damage_{1};
};

KERNEL_CASES(OptimizerDigestsAreThoseOfTheDefinition, OpId::optimizer_digest) {
  const std::vector<std::vector<std::int64_t>> tables = {
      {1}, {15}, {16}, {17}, {4095}, {4096}, {4097}, {20'011}, {1, 4096, 4097, 16, 30'000, 3, 8192, 20'001}};
  for (const std::vector<std::int64_t>& counts : tables) {
    for (const bool some_frozen : {false, true}) {
      SCOPED_TRACE(testing::Message() << counts.front() << " of " << counts.size());
      StateExamination examination(counts, some_frozen, some_frozen ? DType::bf16 : DType::fp32);
      examination.with_moments(counts.size() % 2 == 0 || counts.front() % 2 == 0 ? 1 : 2);
      const Tensors tensors = examination.tensors();
      for (const int threads : under_test()->thread_counts()) {
        const auto made = run_under_test(tensors, examination.checking(false), threads);
        if (!made) return;
        Tensors written = *made;
        EXPECT_EQ(DigestedUpdate<>::kept_digests(written), examination.digests_of(written));
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          EXPECT_TRUE(written[t].guard_intact()) << "tensor " << t;
          EXPECT_TRUE(t == 5 || written[t].same_bits(tensors[t])) << "tensor " << t;
        }
        const Tensors compared = *run_under_test(written, examination.checking(true), threads);
        EXPECT_TRUE(compared[5].same_bits(written[5])) << "a comparison writes none";
        EXPECT_EQ(examination.damage().block_count, 0U);
        EXPECT_EQ(examination.damage().first_block, StateDamage::no_block);
      }
    }
  }
}

KERNEL_CASES(OptimizerDigestsCoverAverages, OpId::optimizer_digest) {
  for (const DType moments : moment_types) {
    const AveragingUpdate<> update(averaged_counts, moments);
    std::vector<StateDamage, TensorAllocator<StateDamage>> damage(1);
    const auto examine = [&](Tensors& t, bool checks) {
      const AdamW op = update(t);
      return OptimizerDigest{.tensors = op.tensors,
                             .tensor_count = op.tensor_count,
                             .block_count = op.block_count,
                             .block_digests = op.block_digests,
                             .checks_digests = checks,
                             .moments = moments,
                             .damage = damage.data()};
    };
    auto run = run_under_test(
        update.tensors(), [&](Tensors& t) { return examine(t, false); }, 3);
    if (!run) return;
    EXPECT_EQ(DigestedUpdate<>::kept_digests(*run), update.digests_of(*run));
    flip_bit((*run)[7], 4096, 0);
    run_under_test(
        *run, [&](Tensors& t) { return examine(t, true); }, 3);
    EXPECT_EQ(damage[0].block_count, 1U);
    EXPECT_EQ(damage[0].first_block, 1U);
  }
}

// Digests what an update of a rule compares.
template <typename Update>
void expect_digests_that_an_update_compares() {
  const std::vector<std::int64_t> counts = {4097, 21, 8192};
  for (const DType moments : moment_types) {
    StateExamination examination(counts, false, moments);
    examination.with_moments(Update::moment_count);
    DigestedUpdate<Update> update(counts, true, moments);
    const auto written = run_under_test(examination.tensors(), examination.checking(false), 2);
    if (!written) return;
    const Tensors updated = run_op(*written, update.checking(true), 2, best_cpu_isa());
    EXPECT_EQ(update.damage().block_count, 0U);
    run_under_test(updated, examination.checking(true), 2);
    EXPECT_EQ(examination.damage().block_count, 0U);
  }
}

KERNEL_CASES(OptimizerDigestsAreThoseThatAnUpdateCompares, OpId::optimizer_digest) {
  expect_digests_that_an_update_compares<AdamW>();
  expect_digests_that_an_update_compares<Lion>();
}

KERNEL_CASES(OptimizerDigestTakesARangeOfBlocks, OpId::optimizer_digest) {
  const std::vector<std::int64_t> counts = {4096, 70, 4096 * 40 + 5, 9000};  // blocks 0, 1, 2 to 42, 43 to 45
  StateExamination examination(counts, true);
  Tensors tensors = examination.tensors();
  const auto of_range = run_under_test(tensors, examination.range(1, 41), 3);
  if (!of_range) return;
  Tensors written = *of_range;
  const std::vector<std::uint64_t> before = DigestedUpdate<>::kept_digests(tensors),
                                   expected = examination.digests_of(tensors),
                                   kept = DigestedUpdate<>::kept_digests(written);
  for (std::size_t b = 0; b < kept.size(); ++b)
    EXPECT_EQ(kept[b], b >= 1 && b < 42 ? expected[b] : before[b]) << b;
  written = *run_under_test(written, examination.range(0, 46), 2);
  flip_bit(written[0], 4096 + 3, 31);                      // block 1, which is frozen
  flip_bit(written[1], 4096 + 5, 0);                       // of no meaning: it has no moments
  flip_bit(written[2], 4096 + 70 + 4096 * 40 + 4, 0);      // block 42
  flip_bit(written[1], 4096 + 70 + 4096 * 21 + 4095, 30);  // block 23
  const struct {
    std::int64_t first, count;
    std::uint64_t damaged, first_damaged;
  } ranges[] = {{0, 46, 3, 1},
                {0, 1, 0, StateDamage::no_block},
                {1, 1, 1, 1},
                {2, 40, 1, 23},
                {23, 20, 2, 23},
                {43, 3, 0, StateDamage::no_block},
                {5, 0, 0, StateDamage::no_block}};
  for (const auto& each : ranges) {
    for (const int threads : under_test()->thread_counts()) {
      run_under_test(written, examination.checking(true).range(each.first, each.count), threads);
      EXPECT_EQ(examination.damage().block_count, each.damaged) << each.first;
      EXPECT_EQ(examination.damage().first_block, each.first_damaged) << each.first;
    }
  }
}

KERNEL_CASES(OptimizerDigestFindsEveryFlippedBit, OpId::optimizer_digest) {
  for (const DType moments : moment_types) {
    StateExamination examination(flipped_blocks(moments), false, moments);
    const auto written = run_under_test(examination.tensors(), examination.checking(false), 2);
    if (!written) return;
    Tensors damaged = *written;
    const std::size_t flips = flip_every_bit(damaged, flipped_count);
    run_under_test(damaged, examination.checking(true), 2);
    EXPECT_EQ(examination.damage().block_count, flips);
    EXPECT_EQ(examination.damage().first_block, 0U);
  }
}

KERNEL_CASES(OptimizerDigestIsTheSameAnywhere, OpId::optimizer_digest) {
  for (const DType moments : moment_types) {
    const StateExamination examination({4099, 21, 5000}, true, moments);
    expect_same_bits_anywhere(examination.tensors(), examination);
  }
}

// Compares digests of what is written in one pass and read in another, on any two devices.
KERNEL_CASES(SquareSumDigestsAreThoseThatAnUpdateCompares, OpId::square_sum) {
  for (const std::int64_t count : {1, 15, 16, 17, 31, 32, 33, 4095, 4096, 4097, 200'003}) {
    SCOPED_TRACE(count);
    DigestedUpdate<> update({count}, false);
    Tensors tensors = update.tensors();
    const Tensors expected = tensors;
    tensors[6] = Values(tensors[6].count(), DType::fp64);
    const auto bind = [count](Tensors& t) {
      return SquareSum{.values = t[3].as<float>(),
                       .count = count,
                       .sums = t[5].as<double>(),
                       .digests = t[6].as<std::uint64_t>()};
    };
    for (const int threads : under_test()->thread_counts()) {
      const auto made = run_under_test(tensors, bind, threads);
      if (!made) return;
      EXPECT_TRUE((*made)[6].same_bits(expected[6]));
      EXPECT_TRUE((*made)[6].guard_intact());
      const auto plain = *run_under_test(
          tensors,
          [&](Tensors& t) {
            SquareSum op = bind(t);
            op.digests = nullptr;
            return op;
          },
          threads);
      EXPECT_TRUE((*made)[5].same_bits(plain[5])) << "the sums do not depend on it";
      run_op(*made, update.checking(false), 2, best_cpu_isa());
      EXPECT_EQ(update.gradient_damage().block_count, 0U);
    }
  }
}

// The digest is linear modulo 2^64, so digests of single ones are the weights, and these two properties make
// it notice every flipped bit and every exchange of two elements (runtime/core/block_digest.h).
TEST(StateDigest, WeightsAreOddAndDifferInTheirLowHalves) {
  std::vector<float> arrays[3];
  for (std::vector<float>& array : arrays) array.resize(block_elements);
  std::vector<std::uint32_t> weights;
  for (std::vector<float>& array : arrays) {
    for (float& element : array) {
      element = std::bit_cast<float>(1U);
      const std::uint64_t weight =
          state_digest(arrays[0].data(), arrays[1].data(), arrays[2].data(), block_elements);
      element = 0.0F;
      ASSERT_EQ(weight % 2, 1U);
      weights.push_back(static_cast<std::uint32_t>(weight));
    }
  }
  std::ranges::sort(weights);
  EXPECT_EQ(std::ranges::adjacent_find(weights), weights.end());
}

// A check of all devices against a value that none of them computed: the definition in Python.
TEST(StateDigest, IsTheDefinition) {
  const std::vector<float> w = {1.0F, -2.5F, 0.0F}, m = {0.125F, 3e-5F, -1.0F}, v = {1e-8F, 2.0F, 0.5F};
  EXPECT_EQ(state_digest(w.data(), m.data(), v.data(), 3), 0x8fb5188c4aa45e61U);
}

// 1,200 updates without a gradient, with the b2 of Adam: a moment that is rounded to nearest would stay 1 for good.
TEST(AdamW, BFloat16MomentsDecayOnAverageAsTheyDoInFp32) {
  const std::int64_t count = 8192;
  const int updates = 1200;
  Tensors tensors = adamw_tensors(count, DType::bf16);
  for (std::int64_t i = 0; i < count; ++i) {
    tensors[1].set(i, i % 2 == 0 ? 1 : -1);
    tensors[2].set(i, 1);
    tensors[3].set(i, 0);
  }
  const AdamWUpdate update({count}, false);
  for (std::uint64_t step = 0; step < updates; ++step) {
    tensors = run_op(
        tensors,
        [&](Tensors& t) {
          AdamW op = update(t);
          op.beta1 = op.beta2 = 0.999F;
          op.rounding_key = mix64(7, step);
          return op;
        },
        1, best_cpu_isa());
  }
  double m = 0, v = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    m += (i % 2 == 0 ? 1 : -1) * tensors[1][i] / static_cast<double>(count);
    v += tensors[2][i] / static_cast<double>(count);
  }
  const double expected = std::pow(0.999, updates);
  EXPECT_NEAR(m, expected, 0.005 * expected);
  EXPECT_NEAR(v, expected, 0.005 * expected);
}

TEST(AdamW, CopyIsTheNewWeightRounded) {
  const Tensors result = run_op(adamw_tensors(5001), AdamWUpdate({5001}, true), 2, best_cpu_isa());
  for (std::int64_t i = 0; i < result[0].count(); ++i) {
    ASSERT_EQ(result[4][i], static_cast<double>(to_float(to_bfloat16(static_cast<float>(result[0][i])))));
  }
}

TEST(AdamW, FirstStepMovesEachWeightByTheLearningRateAgainstItsGradient) {
  const std::int64_t count = 40;
  Tensors tensors = adamw_tensors(count);
  for (std::int64_t i = 0; i < count; ++i) {
    for (const std::size_t zeroed : {0U, 1U, 2U}) tensors[zeroed].set(i, 0);
  }
  const AdamWUpdate update({count}, false);
  const Tensors result = run_op(
      tensors,
      [&](Tensors& t) {
        AdamW op = update(t);
        op.correction1 = 1.0F - op.beta1;
        op.correction2 = 1.0F - op.beta2;
        return op;
      },
      1, best_cpu_isa());
  for (std::int64_t i = 0; i < count; ++i) EXPECT_NEAR(result[0][i], tensors[3][i] > 0 ? -0.03 : 0.03, 1e-6);
}

// Numbers around 0 in the average whose sign is taken, which another order of rounding would put on the other side. A NaN is
// not hidden by it, and a weight without a gradient only decays.
KERNEL_CASES(LionTakesTheSignOfTheAverageInFp32, OpId::lion) {
  const std::int64_t count = 5003;
  Tensors tensors = adamw_tensors(count);
  for (std::int64_t i = 0; i < count; ++i) {
    tensors[0].set(i, 1);
    const float m = static_cast<float>(tensors[1][i]);
    tensors[3].set(
        i, static_cast<double>(m * 0.9F / -0.1F / 0.25F) * (1 + static_cast<double>(i % 5 - 2) * 6e-8));
  }
  for (const std::size_t t : {1U, 3U}) tensors[t].set(7, 0);
  tensors[3].set(9, std::numeric_limits<double>::quiet_NaN());
  tensors[3].set(11, std::numeric_limits<double>::infinity());
  const RuleUpdate<Lion> update({count}, false);
  const auto run = run_under_test(tensors, update, 2);
  if (!run) return;
  const float rate = 3e-2F, decay = 0.1F;
  std::map<int, int> signs;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i == 9) continue;
    const float g = static_cast<float>(tensors[3][i]) * 0.25F;
    const float c = std::fma(static_cast<float>(tensors[1][i]), 0.9F, (1.0F - 0.9F) * g);
    const int sign = (c > 0.0F ? 1 : 0) - (c < 0.0F ? 1 : 0);
    ++signs[sign];
    ASSERT_EQ(static_cast<float>((*run)[0][i]),
              std::fma(-rate, std::fma(decay, 1.0F, static_cast<float>(sign)), 1.0F))
        << i;
  }
  for (const int sign : {-1, 0, 1}) EXPECT_GT(signs[sign], 0) << sign;
  EXPECT_TRUE(std::isnan((*run)[0][9]));
  EXPECT_TRUE(std::isnan((*run)[1][9]));
}

KERNEL_CASES(SquareSumMatchesReference, OpId::square_sum) {
  for (const std::int64_t count : {0, 1, 31, 32, 33, 4096, 4097, 40000}) {
    SCOPED_TRACE(count);
    const std::int64_t blocks = (count + 4095) / 4096;
    expect_op({random_values(count, DType::fp32, 1, 10.0), Values(blocks, DType::fp64)},
              [&](Tensors& t) {
                return SquareSum{.values = t[0].as<float>(), .count = count, .sums = t[1].as<double>()};
              },
              {.tolerance = 1e-14});
  }
}

KERNEL_CASES(SquareSumOfSegmentsIsThatOfEach, OpId::square_sum) {
  expect_like_each_segment(1, [](Tensors& t, const BlockSegment& segment) {
    return SquareSum{.values = t[0].as<float>() + segment.first,
                     .count = segment.count,
                     .sums = t[1].as<double>() + segment.first_block,
                     .digests = t[2].as<std::uint64_t>() + segment.first_block};
  });
}

TEST(SquareSum, OfABlockDoesNotDependOnWhereTheBlockIs) {
  const std::int64_t block = static_cast<std::int64_t>(block_elements);
  const Tensors tensors = {random_values(3 * block, DType::fp32, 1), Values(3, DType::fp64)};
  const auto from = [&](std::int64_t first) {
    return run_op(
        tensors,
        [&](Tensors& t) {
          return SquareSum{.values = t[0].as<float>() + first * block,
                           .count = (3 - first) * block,
                           .sums = t[1].as<double>() + first};
        },
        2, best_cpu_isa())[1];
  };
  EXPECT_EQ(from(0)[2], from(2)[2]);
  EXPECT_EQ(from(0)[1], from(1)[1]);
}

}  // namespace
}  // namespace holdfast::test
