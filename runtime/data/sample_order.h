// SampleOrder says which sample is at global position p of the run: a pure function of (seed, p) and the
// sources' sizes and weights.
//
// Without weights all sources are one list of N samples: epoch e = p / N is a permutation of all of them.
// With weights, positions come in rounds of 65,536: each round holds every source's share of slots (largest
// remainder) in a permuted order, and each source goes through permutations of its own samples, with an epoch
// count of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/permutation.h"
#include "runtime/data/sample_subset.h"

namespace holdfast::data {

struct SampleId {
  std::uint32_t source = 0;
  std::uint64_t sample = 0;
  std::uint64_t epoch = 0;  // completed passes over this source (or the whole list) before this one
  bool operator==(const SampleId&) const = default;
};

class SampleOrder {
 public:
  struct Source {
    SampleSubset samples =
        0;  // those that are used; a SampleId names one by its place among all of the source
    double weight = 0.0;
  };
  static constexpr std::uint64_t round_slots = 65536;
  // Returns each source's slots in a round: largest remainder, ties to the first. At least one weight is
  // above zero.
  static std::vector<std::uint64_t> slots_per_round(const std::vector<Source>& sources);

  // Requires at least one source, each with at least one sample; weights are finite, and all zero or none
  // negative.
  SampleOrder(std::uint64_t seed, std::vector<Source> sources);
  SampleId at(std::uint64_t position) const;

 private:
  SampleId at_unweighted(std::uint64_t position) const;
  SampleId at_weighted(std::uint64_t position) const;
  std::uint32_t source_holding(std::uint64_t index) const;  // the last source with first_ <= index
  std::uint64_t seed_;
  std::vector<Source> sources_;
  std::vector<std::uint64_t> first_;  // unweighted: cumulative samples; weighted: cumulative slots of a round
};

}  // namespace holdfast::data
