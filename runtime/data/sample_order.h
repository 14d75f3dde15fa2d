// SampleOrder says which sample is at global position p of the run: a pure function of (seed, p) and the
// sources' sizes and weights.
//
// Without weights all sources are one list of N samples: epoch e = p / N is a permutation of all of them.
// With weights, positions come in rounds of 65,536: each round holds every source's share of slots (largest
// remainder) in a permuted order, and each source goes through permutations of its own samples, with an epoch
// count of its own.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace holdfast::data {

// A bijection of [0, length) that is a pure function of its key: a Feistel network over the next even number
// of bits with cycle walking. No table, O(1). Proven bijective by test for every length up to 5,000,
// every 97th up to 70,000, and around powers of 2 and 4.
class Permutation {
 public:
  Permutation(std::uint64_t length, std::uint64_t key);  // length >= 1
  std::uint64_t operator()(std::uint64_t index) const;   // index < length

 private:
  static constexpr int rounds = 6;
  std::uint64_t encrypt(std::uint64_t value) const;
  std::uint64_t length_;
  int half_bits_;
  std::uint64_t half_mask_;
  std::array<std::uint64_t, rounds> keys_;
};

// A SampleSubset is the part of a source's samples that is used: all, those for training, or those held back
// for validation.
//
// The samples of a source come in consecutive groups of 1 / fraction (group g begins at floor(g / fraction));
// one sample of each group, chosen by a hash of (seed, source, group), is held back. So a sample's part is a
// pure function of its index, the fraction and the seed: each sample is in exactly one part, samples appended
// to the end of a source change the part of no other, and both directions are O(1) without a table.
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

  std::size_t source_count() const { return sources_.size(); }
  // Returns after how many positions the sources have had their shares exactly once more: an epoch of the list, or a
  // round.
  std::uint64_t period() const { return first_.back(); }
  std::uint64_t samples_per_period(std::size_t source) const { return first_[source + 1] - first_[source]; }
  // Adds `by` to counts[i] for each of the positions [begin, end) that source i has.
  void count(std::uint64_t begin, std::uint64_t end, std::uint64_t by, std::span<std::uint64_t> counts) const;

 private:
  SampleId at_unweighted(std::uint64_t position) const;
  SampleId at_weighted(std::uint64_t position) const;
  std::uint32_t source_holding(std::uint64_t index) const;  // the last source with first_ <= index
  std::uint64_t seed_;
  std::vector<Source> sources_;
  std::vector<std::uint64_t> first_;  // unweighted: cumulative samples; weighted: cumulative slots of a round
};

// Positions [begin, end) of a run.
struct PositionRange {
  std::uint64_t begin = 0, end = 0;
  bool operator==(const PositionRange&) const = default;
};

// SourceCounts says how many samples of each source a run has used at a position. It follows from the order alone, so
// nothing is counted while the run goes on that a kill, a roll-back or another number of ranks could falsify; what is
// kept between two calls only saves time.
class SourceCounts {
 public:
  // Positions that a call looks at one by one: some milliseconds, of which a step has one.
  static constexpr std::uint64_t positions_per_call = std::uint64_t{1} << 17;

  explicit SourceCounts(SampleOrder order);
  // Returns the samples of each source at the positions below `position` that are not in `left_out` (ascending ranges,
  // all of them below it). Whole periods have a closed form; the rest is looked at one by one, from the nearest of the
  // period's ends and the place where the call before ended, and allocates nothing where `left_out` is as before. Valid
  // until the next call. Empty where that is more than `positions`, which a mix with weights never needs: the next
  // calls go on from there.
  std::span<const std::uint64_t> used_before(std::uint64_t position,
                                             std::span<const PositionRange> left_out = {},
                                             std::uint64_t positions = positions_per_call);

 private:
  bool go_to(std::uint64_t position, std::uint64_t positions);

  SampleOrder order_;
  std::uint64_t position_ = 0;
  std::vector<std::uint64_t> counts_;  // of the positions below position_
  std::vector<PositionRange> left_out_ = {};
  std::vector<std::uint64_t> left_counts_;  // of the positions in left_out_
  std::vector<std::uint64_t> used_;
};

}  // namespace holdfast::data
