// A SampleSubset is the part of a source's samples that is used: all, those for training, or those held back
// for validation.
//
// The samples of a source come in consecutive groups of 1 / fraction (group g begins at floor(g / fraction));
// one sample of each group, chosen by a hash of (seed, source, group), is held back. So a sample's part is a
// pure function of its index, the fraction and the seed: each sample is in exactly one part, samples appended
// to the end of a source change the part of no other, and both directions are O(1) without a table.
#pragma once

#include <cstdint>

namespace holdfast::data {

struct ValidationRule {
  double fraction = 0.0;  // share of the samples to hold back; 0 = none, at most 0.5
  std::uint64_t seed = 0;
};

class SampleSubset {
 public:
  enum class Part : std::uint8_t { all, training, validation };

  SampleSubset(std::uint64_t samples) : samples_(samples), count_(samples) {}  // uses all of them
  // Makes the given part of a source. `source`: its index in the list of sources. rule.fraction > 0.
  SampleSubset(Part part, const ValidationRule& rule, std::uint64_t source, std::uint64_t samples);

  std::uint64_t count() const { return count_; }
  std::uint64_t at(
      std::uint64_t index) const;  // the index-th sample of the subset, ascending; index < count()

 private:
  std::uint64_t group_begin(std::uint64_t group) const;
  std::uint64_t group_of(std::uint64_t sample) const;
  std::uint64_t held_back(std::uint64_t group) const;  // the group's sample for validation

  Part part_ = Part::all;
  std::uint64_t samples_ = 0, count_ = 0;
  std::uint64_t fraction_ = 0;  // in units of 2^-32
  std::uint64_t key_ = 0;
};

}  // namespace holdfast::data
