#include "kernels/digest.h"

#include <bit>
#include <limits>
#include <numeric>
#include <set>

#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::int32, DType::fp64};
constexpr std::int64_t counts[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 129, 4096, 4101, 70003};

// Bytes of any pattern: NaNs and infinities are among the elements.
Values random_bits(std::int64_t count, DType dtype, std::uint64_t seed) {
  Values values(count, dtype);
  std::byte* const bytes = values.as<std::byte>();
  for (std::size_t i = 0; i < values.byte_count(); ++i)
    bytes[i] = static_cast<std::byte>(
        static_cast<int>(256.0 * (random_at(seed, static_cast<std::int64_t>(i)) + 1.0) / 2.0));
  return values;
}

// The same, as integers, which compare as equal where NaNs do not.
Values random_words(std::int64_t count, DType dtype, std::uint64_t seed) {
  const auto bytes = static_cast<std::int64_t>(bytes_of(dtype)) * count;
  return random_bits((bytes + 3) / 4, DType::int32, seed);
}

Values result_words(const DigestWords& words = {}) {
  Values values(sizeof(DigestWords) / 4, DType::int32);
  std::memcpy(values.data(), &words, sizeof(words));
  return values;
}
DigestWords words_in(const Values& values) {
  DigestWords words;
  std::memcpy(&words, values.data(), sizeof(words));
  return words;
}
TensorDigest digest_of_all(Tensors& t, DType dtype, std::int64_t count) {
  return {.values = t[0].data(), .dtype = dtype, .count = count, .result = t[1].as<DigestWords>()};
}

constexpr OpLimits exact = {.tolerance = 0.0, .bf16_tolerance = 0.0};

KERNEL_CASES(DigestIsThatOfTheReference, OpId::digest) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t count : counts) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << count);
      expect_op(
          {random_words(count, dtype, 1), result_words({.sum = 7, .nonfinite = 9})},
          [&](Tensors& t) { return digest_of_all(t, dtype, count); }, exact);
    }
  }
}

// Chunks of threads, groups of prefetches and tiles of a GPU have other borders than vectors have.
KERNEL_CASES(DigestOfALargeTensorIsThatOfTheReference, OpId::digest) {
  constexpr std::int64_t count = 300'007;
  for (const DType dtype : dtypes) {
    for (const bool finite : {false, true}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << finite);
      const bool makes_values = finite && dtype != DType::int32;
      expect_op(
          {makes_values ? random_values(count, dtype, 2) : random_words(count, dtype, 2), result_words()},
          [&](Tensors& t) { return digest_of_all(t, dtype, count); }, exact);
    }
  }
}

LONG_KERNEL_CASES(DigestOfAHugeTensorIsThatOfTheReference, OpId::digest) {
  constexpr std::int64_t count = 5'000'003;
  expect_op(
      {random_words(count, DType::fp32, 3), result_words()},
      [&](Tensors& t) { return digest_of_all(t, DType::fp32, count); }, exact);
}

KERNEL_CASES(DigestOfAPieceIsAddedToTheResult, OpId::digest) {
  const DigestWords before = {.sum = ~std::uint64_t{5}, .weighted = 1, .nonfinite = 3, .largest = 0x3f800000};
  for (const DType dtype : dtypes) {
    for (const std::int64_t count : {0, 33, 20'000}) {
      expect_op(
          {random_words(count, dtype, 4), result_words(before)},
          [&](Tensors& t) {
            TensorDigest op = digest_of_all(t, dtype, count);
            op.first_index = 0x1'2345'6789;
            op.accumulate = true;
            return op;
          },
          exact);
    }
  }
}

KERNEL_CASES(DigestHasTheSameBitsAnywhere, OpId::digest) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t count : {5, 4101, 40'000}) {
      const Tensors tensors = {random_bits(count, dtype, 5), result_words()};
      const auto bind = [&](Tensors& t) { return digest_of_all(t, dtype, count); };
      const std::optional<Tensors> here = run_under_test(tensors, bind);
      if (!here) return;
      Tensors moved = tensors;
      moved[0].move_off_alignment();
      EXPECT_EQ(words_in((*run_under_test(moved, bind))[1]), words_in((*here)[1])) << name_of(dtype);
      moved[0].move_to_cache_line();
      EXPECT_EQ(words_in((*run_under_test(moved, bind))[1]), words_in((*here)[1])) << name_of(dtype);
    }
  }
}

KERNEL_CASES(DigestsOfPiecesAddUpToThatOfTheWhole, OpId::digest) {
  const std::vector<std::int64_t> pieces = {1, 16, 4095, 0, 7, 30'000, 2};
  const std::int64_t count = std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0});
  for (const DType dtype : dtypes) {
    const Tensors tensors = {random_bits(count, dtype, 6), result_words({.sum = 3})};
    const std::optional<Tensors> whole =
        run_under_test(tensors, [&](Tensors& t) { return digest_of_all(t, dtype, count); });
    if (!whole) return;
    Tensors sum = tensors;
    std::int64_t first = 0;
    for (const std::int64_t size : pieces) {
      sum = *run_under_test(sum, [&](Tensors& t) {
        TensorDigest op = digest_of_all(t, dtype, size);
        op.values = t[0].as<std::byte>() + static_cast<std::size_t>(first) * bytes_of(dtype);
        op.first_index = first;
        op.accumulate = first > 0;
        return op;
      });
      first += size;
    }
    EXPECT_EQ(words_in(sum[1]), words_in((*whole)[1])) << name_of(dtype);
  }
}

KERNEL_CASES(DigestSeesEveryFlippedBit, OpId::digest) {
  constexpr std::int64_t count = 37;
  for (const DType dtype : dtypes) {
    Tensors tensors = {random_bits(count, dtype, 7), result_words()};
    const auto bind = [&](Tensors& t) { return digest_of_all(t, dtype, count); };
    const std::optional<Tensors> good = run_under_test(tensors, bind);
    if (!good) return;
    const std::size_t size = bytes_of(dtype);
    for (const std::size_t element : {std::size_t{0}, std::size_t{17}, std::size_t{36}}) {
      for (std::size_t bit = 0; bit < 8 * size; ++bit) {
        std::byte& byte = tensors[0].as<std::byte>()[element * size + bit / 8];
        byte ^= std::byte{1} << bit % 8;
        const DigestWords bad = words_in((*run_under_test(tensors, bind))[1]);
        EXPECT_NE(bad.sum, words_in((*good)[1]).sum) << name_of(dtype) << " " << element << ", bit " << bit;
        EXPECT_NE(bad.weighted, words_in((*good)[1]).weighted) << name_of(dtype) << " " << element;
        byte ^= std::byte{1} << bit % 8;
      }
    }
  }
}

KERNEL_CASES(DigestSeesElementsThatChangePlaces, OpId::digest) {
  constexpr std::int64_t count = 37;
  for (const DType dtype : dtypes) {
    Tensors tensors = {random_bits(count, dtype, 8), result_words()};
    const auto bind = [&](Tensors& t) { return digest_of_all(t, dtype, count); };
    const std::optional<Tensors> good = run_under_test(tensors, bind);
    if (!good) return;
    const auto size = static_cast<std::ptrdiff_t>(bytes_of(dtype));
    std::byte* const bytes = tensors[0].as<std::byte>();
    std::swap_ranges(bytes + 3 * size, bytes + 4 * size, bytes + 20 * size);
    const DigestWords bad = words_in((*run_under_test(tensors, bind))[1]);
    EXPECT_EQ(bad.sum, words_in((*good)[1]).sum);
    EXPECT_NE(bad.weighted, words_in((*good)[1]).weighted) << name_of(dtype);
  }
}

KERNEL_CASES(DigestCountsWhatIsNotFinite, OpId::digest) {
  constexpr std::int64_t count = 5000;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp64}) {
    Tensors tensors = {Values(count, dtype), result_words()};
    for (std::int64_t i = 0; i < count; ++i) tensors[0].set(i, 0x1p-130 * static_cast<double>(i % 3));
    tensors[0].set(1, -2.5);
    const auto bind = [&](Tensors& t) { return digest_of_all(t, dtype, count); };
    const auto words = [&] { return words_in(run_under_test(tensors, bind).value_or(tensors)[1]); };
    const DigestWords finite = words();
    if (under_test()->implementation().op != OpId::digest) return;
    EXPECT_EQ(finite.nonfinite, 0U) << name_of(dtype);
    EXPECT_EQ(finite.largest, std::bit_cast<std::uint32_t>(2.5F)) << name_of(dtype);
    tensors[0].set(0, infinity);
    tensors[0].set(1, -infinity);
    tensors[0].set(17, std::nan(""));
    tensors[0].set(4999, -std::nan(""));
    EXPECT_EQ(words().nonfinite, 4U) << name_of(dtype);
    EXPECT_EQ(words().largest, std::bit_cast<std::uint32_t>(0x1p-129F)) << name_of(dtype);
  }
}

KERNEL_CASES(DigestRoundsTheLargestOfDoubles, OpId::digest) {
  const auto largest_of = [](double value) {
    Tensors tensors = {Values(1, DType::fp64), result_words()};
    tensors[0].set(0, value);
    const auto ran = run_under_test(tensors, [](Tensors& t) { return digest_of_all(t, DType::fp64, 1); });
    return std::bit_cast<float>(words_in((*ran)[1]).largest);
  };
  EXPECT_EQ(largest_of(-0.1), 0.1F);
  EXPECT_EQ(largest_of(1e300), std::numeric_limits<float>::max());
  EXPECT_EQ(largest_of(1e-300), 0.0F);
}

TEST(DigestWords, AddUp) {
  DigestWords words = {.sum = ~std::uint64_t{0}, .weighted = 5, .nonfinite = 1, .largest = 3};
  add(words, {.sum = 2, .weighted = 6, .nonfinite = 2, .largest = 2});
  EXPECT_EQ(words, (DigestWords{.sum = 1, .weighted = 11, .nonfinite = 3, .largest = 3}));
}

TEST(DigestWords, MultipliersAreOddAndDiffer) {
  std::set<std::uint32_t> seen;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    EXPECT_EQ(digest_multiplier(i) % 2, 1U);
    EXPECT_TRUE(seen.insert(digest_multiplier(i)).second) << i;
  }
}

}  // namespace
}  // namespace holdfast::test
