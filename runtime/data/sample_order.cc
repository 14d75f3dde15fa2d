#include "runtime/data/sample_order.h"

#include <algorithm>
#include <numeric>

#include "runtime/core/check.h"
#include "runtime/core/random.h"

namespace holdfast::data {
namespace {

// Streams that separate the keys of the permutations; source i uses source_stream + i.
constexpr std::uint64_t list_stream = 0;
constexpr std::uint64_t slot_stream = 1;
constexpr std::uint64_t source_stream = 2;

Permutation permutation_of(std::uint64_t length, std::uint64_t seed, std::uint64_t stream,
                           std::uint64_t epoch) {
  return Permutation(length, mix64(mix64(seed, stream), epoch));
}

bool has_weights(const std::vector<SampleOrder::Source>& sources) {
  return std::ranges::any_of(sources, [](const SampleOrder::Source& source) { return source.weight > 0.0; });
}

}  // namespace

std::vector<std::uint64_t> SampleOrder::slots_per_round(const std::vector<Source>& sources) {
  double total = 0.0;
  for (const Source& source : sources) total += source.weight;
  std::vector<std::uint64_t> slots;
  std::vector<double> remainders;
  for (const Source& source : sources) {
    const double share = source.weight / total * static_cast<double>(round_slots);
    slots.push_back(static_cast<std::uint64_t>(share));
    remainders.push_back(share - static_cast<double>(slots.back()));
  }
  std::vector<std::size_t> by_remainder(sources.size());
  std::iota(by_remainder.begin(), by_remainder.end(), std::size_t{0});
  std::ranges::stable_sort(by_remainder,
                           [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  const std::uint64_t given = std::accumulate(slots.begin(), slots.end(), std::uint64_t{0});
  HF_CHECK(given <= round_slots && round_slots - given <= sources.size());
  for (std::uint64_t i = 0; i < round_slots - given; ++i) ++slots[by_remainder[i]];
  return slots;
}

SampleOrder::SampleOrder(std::uint64_t seed, std::vector<Source> sources)
    : seed_(seed), sources_(std::move(sources)) {
  HF_CHECK(!sources_.empty());
  for (const Source& source : sources_) HF_CHECK(source.samples.count() >= 1);
  std::vector<std::uint64_t> lengths;
  if (has_weights(sources_)) {
    lengths = slots_per_round(sources_);
  } else {
    for (const Source& source : sources_) lengths.push_back(source.samples.count());
  }
  first_.push_back(0);
  for (const std::uint64_t length : lengths) first_.push_back(first_.back() + length);
}

SampleId SampleOrder::at(std::uint64_t position) const {
  return has_weights(sources_) ? at_weighted(position) : at_unweighted(position);
}

SampleId SampleOrder::at_unweighted(std::uint64_t position) const {
  const std::uint64_t samples = first_.back();
  const std::uint64_t epoch = position / samples;
  const std::uint64_t sample = permutation_of(samples, seed_, list_stream, epoch)(position % samples);
  const std::uint32_t source = source_holding(sample);
  return {.source = source, .sample = sources_[source].samples.at(sample - first_[source]), .epoch = epoch};
}

SampleId SampleOrder::at_weighted(std::uint64_t position) const {
  const std::uint64_t round = position / round_slots;
  const std::uint64_t slot = permutation_of(round_slots, seed_, slot_stream, round)(position % round_slots);
  const std::uint32_t source = source_holding(slot);
  const std::uint64_t slots = first_[source + 1] - first_[source];
  const std::uint64_t turn = round * slots + slot - first_[source];  // of all slots this source ever gets
  const SampleSubset& samples = sources_[source].samples;
  const std::uint64_t epoch = turn / samples.count();
  const Permutation order = permutation_of(samples.count(), seed_, source_stream + source, epoch);
  return {.source = source, .sample = samples.at(order(turn % samples.count())), .epoch = epoch};
}

std::uint32_t SampleOrder::source_holding(std::uint64_t index) const {
  return static_cast<std::uint32_t>(std::ranges::upper_bound(first_, index) - first_.begin() - 1);
}

}  // namespace holdfast::data
