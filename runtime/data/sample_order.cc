#include "runtime/data/sample_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
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

void SampleOrder::count(std::uint64_t begin, std::uint64_t end, std::uint64_t by,
                        std::span<std::uint64_t> counts) const {
  const std::uint64_t stream = has_weights(sources_) ? slot_stream : list_stream;
  while (begin < end) {
    const std::uint64_t first = begin - begin % period();
    const Permutation order = permutation_of(period(), seed_, stream, begin / period());
    for (const std::uint64_t last = std::min(end - first, period()); begin - first < last; ++begin)
      counts[source_holding(order(begin - first))] += by;
  }
}

SourceCounts::SourceCounts(SampleOrder order)
    : order_(std::move(order)),
      counts_(order_.source_count()),
      left_counts_(order_.source_count()),
      used_(order_.source_count()) {}

// Brings counts_ to a position, or by `positions` nearer to it. Returns whether they are there.
bool SourceCounts::go_to(std::uint64_t position, std::uint64_t positions) {
  constexpr std::uint64_t once = 1, back = ~std::uint64_t{0};  // back: takes one away
  if (order_.source_count() == 1) {
    counts_.front() = position;
    return true;
  }
  const std::uint64_t length = order_.period(), inside = position % length, first = position - inside;
  const std::uint64_t way = position > position_ ? position - position_ : position_ - position;
  if (std::min(inside, length - inside) < way) {
    const bool from_end = length - inside < inside;
    for (std::size_t i = 0; i < counts_.size(); ++i)
      counts_[i] = (position / length + (from_end ? 1 : 0)) * order_.samples_per_period(i);
    position_ = from_end ? first + length : first;
  }
  const std::uint64_t from = position_;
  position_ = position > from ? std::min(position, from + positions)
                              : std::max(position, from - std::min(from, positions));
  order_.count(std::min(from, position_), std::max(from, position_), position > from ? once : back, counts_);
  return position_ == position;
}

std::span<const std::uint64_t> SourceCounts::used_before(std::uint64_t position,
                                                         std::span<const PositionRange> left_out,
                                                         std::uint64_t positions) {
  if (!std::ranges::equal(left_out, left_out_)) {
    left_out_.assign(left_out.begin(), left_out.end());
    std::ranges::fill(left_counts_, 0);
    for (const PositionRange& range : left_out_) order_.count(range.begin, range.end, 1, left_counts_);
  }
  if (!go_to(position, positions)) return {};
  std::ranges::transform(counts_, left_counts_, used_.begin(), std::minus<>());
  return used_;
}

namespace {

// Any function will do for a bijection; this one spreads every input bit over the low half.
std::uint64_t round_function(std::uint64_t half, std::uint64_t key) {
  std::uint64_t x = half ^ key;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

}  // namespace

Permutation::Permutation(std::uint64_t length, std::uint64_t key) : length_(length) {
  HF_CHECK(length >= 1);
  // The bits of the largest index, not of the length: 4^k indices need exactly 2k bits, 4^k + 1 need two
  // more.
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(length - 1)) + 1) / 2);
  half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] = mix64(key, i);
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & half_mask_;
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t mixed =
        left ^ (round_function(right, keys_[static_cast<std::size_t>(i)]) & half_mask_);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

// Cycle walking: the cipher permutes 4^half_bits values; following it until it is back below the length
// permutes those.
std::uint64_t Permutation::operator()(std::uint64_t index) const {
  HF_CHECK(index < length_);
  std::uint64_t value = encrypt(index);
  while (value >= length_) value = encrypt(value);
  return value;
}

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
