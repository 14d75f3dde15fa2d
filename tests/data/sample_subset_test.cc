#include "runtime/data/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace holdfast::test {
namespace {

using Part = SampleSubset::Part;

std::vector<std::uint64_t> samples_of(const SampleSubset& subset) {
  std::vector<std::uint64_t> samples;
  for (std::uint64_t i = 0; i < subset.count(); ++i) samples.push_back(subset.at(i));
  return samples;
}

// Every sample is in one part exactly, each part is ascending, and the share is the fraction.
TEST(SampleSubsetTest, ThePartsAreDisjointAndComplete) {
  for (const double fraction : {0.5, 0.49999, 1.0 / 3.0, 0.3, 0.1, 0.01, 0.0007}) {
    for (const std::uint64_t samples : {1u, 2u, 3u, 9u, 10u, 11u, 1000u, 4096u, 10'007u}) {
      const ValidationRule rule = {.fraction = fraction, .seed = 5};
      const auto training = samples_of({Part::training, rule, 1, samples});
      const auto validation = samples_of({Part::validation, rule, 1, samples});
      ASSERT_EQ(training.size() + validation.size(), samples) << fraction;
      ASSERT_LE(std::abs(static_cast<double>(validation.size()) - fraction * static_cast<double>(samples)),
                1.0)
          << fraction << " of " << samples;
      std::set<std::uint64_t> all(training.begin(), training.end());
      all.insert(validation.begin(), validation.end());
      ASSERT_EQ(all.size(), samples) << fraction;
      ASSERT_EQ(*all.rbegin(), samples - 1);
      ASSERT_TRUE(std::ranges::is_sorted(training) && std::ranges::is_sorted(validation));
    }
  }
}

TEST(SampleSubsetTest, AppendedSamplesMoveNoOther) {
  const ValidationRule rule = {.fraction = 0.07, .seed = 3};
  const auto before = samples_of({Part::validation, rule, 0, 1000});
  const auto after = samples_of({Part::validation, rule, 0, 5000});
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (after[i] >= 1000) {
      EXPECT_EQ(i, before.size());
      break;
    }
    ASSERT_EQ(after[i], before.at(i));
  }
}

TEST(SampleSubsetTest, SeedAndSourceDecideWhich) {
  const auto held = [](std::uint64_t seed, std::uint64_t source) {
    return samples_of({Part::validation, {.fraction = 0.05, .seed = seed}, source, 2000});
  };
  EXPECT_EQ(held(1, 0), held(1, 0));
  EXPECT_NE(held(1, 0), held(2, 0));
  EXPECT_NE(held(1, 0), held(1, 1));
}

TEST(SampleSubsetTest, VeryManySamples) {
  const std::uint64_t samples = std::uint64_t{1} << 50;
  for (const double fraction : {0.5, 1e-9, 0.123}) {
    const ValidationRule rule = {.fraction = fraction, .seed = 1};
    const SampleSubset training(Part::training, rule, 0, samples),
        validation(Part::validation, rule, 0, samples);
    EXPECT_EQ(training.count() + validation.count(), samples);
    EXPECT_LT(training.at(training.count() - 1), samples);
    EXPECT_LT(validation.at(validation.count() - 1), samples);
    std::set<std::uint64_t> last;
    for (std::uint64_t i = 1; i <= 100; ++i) {
      last.insert(training.at(training.count() - i));
      last.insert(validation.at(validation.count() - i));
    }
    EXPECT_EQ(last.size(), 200u);
  }
}

}  // namespace
}  // namespace holdfast::test
