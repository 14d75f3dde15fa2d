#include "runtime/data/sample_subset.h"

#include <algorithm>
#include <cmath>

#include "runtime/core/check.h"
#include "runtime/core/random.h"

namespace holdfast::data {
namespace {

__extension__ using Wide = unsigned __int128;  // products of a sample's number and 2^32

constexpr std::uint64_t one = std::uint64_t{1} << 32;  // the fraction 1

}  // namespace

SampleSubset::SampleSubset(Part part, const ValidationRule& rule, std::uint64_t source, std::uint64_t samples)
    : part_(part), samples_(samples), count_(samples), key_(mix64(rule.seed, source)) {
  HF_CHECK(rule.fraction > 0.0 && rule.fraction <= 0.5, "fraction {}", rule.fraction);
  const auto fraction = static_cast<std::uint64_t>(std::llround(rule.fraction * static_cast<double>(one)));
  fraction_ = std::max<std::uint64_t>(1, fraction);
  if (part == Part::all) return;
  const std::uint64_t whole_groups = group_of(samples);
  const std::uint64_t held = whole_groups + (held_back(whole_groups) < samples ? 1 : 0);
  count_ = part == Part::validation ? held : samples - held;
}

std::uint64_t SampleSubset::at(std::uint64_t index) const {
  HF_CHECK(index < count_);
  if (part_ == Part::all) return index;
  if (part_ == Part::validation) return held_back(index);
  // The number of training samples before group g is floor(g * (1 - fraction) / fraction); the last g with at
  // most `index` of them holds the requested sample.
  const auto group = static_cast<std::uint64_t>((Wide{index + 1} * fraction_ - 1) / (one - fraction_));
  const std::uint64_t sample = index + group;
  return sample < held_back(group) ? sample : sample + 1;
}

std::uint64_t SampleSubset::group_begin(std::uint64_t group) const {
  return static_cast<std::uint64_t>(Wide{group} * one / fraction_);
}

std::uint64_t SampleSubset::group_of(std::uint64_t sample) const {
  return static_cast<std::uint64_t>((Wide{sample + 1} * fraction_ - 1) >> 32);
}

std::uint64_t SampleSubset::held_back(std::uint64_t group) const {
  const std::uint64_t begin = group_begin(group);
  return begin + mix64(key_, group) % (group_begin(group + 1) - begin);
}

}  // namespace holdfast::data
