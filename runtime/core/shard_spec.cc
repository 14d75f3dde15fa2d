#include "runtime/core/shard_spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace holdfast::core {
namespace {

// Elements [first, end) of one tensor, which existing[index] provides.
struct Segment {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::size_t index = 0;
};

using Key = std::tuple<std::string_view, std::string_view, std::uint32_t>;  // tensor, kind, slice
Key key_of(const ShardSpec& spec) {
  return {spec.tensor, spec.kind, spec.slice};
}
std::string name_of_slice(const ShardSpec& spec) {
  if (spec.slices == 1) return fmt::format("'{}'", spec.tensor);
  return fmt::format("'{}' (slice {} of {})", spec.tensor, spec.slice, spec.slices);
}

Result<void> check_range(const ShardSpec& spec) {
  const std::uint64_t blocks = spec.slice_blocks();
  if (spec.first_block <= blocks && spec.block_count <= blocks - spec.first_block) return {};
  return fail(ExitCode::checkpoint,
              "the piece of tensor '{}' ({}) starts at block {} and has {} blocks, but the tensor of shape "
              "[{}] has {}; "
              "the description is damaged",
              spec.tensor, spec.kind, spec.first_block, spec.block_count, fmt::join(spec.global_shape, ", "),
              blocks);
}

Result<void> check_same_tensor(const ShardSpec& existing, const ShardSpec& wanted) {
  if (existing.slices != wanted.slices) {
    return fail(
        ExitCode::checkpoint,
        "tensor '{}' ({}) exists in {} slices, but {} are wanted; use the parallel.tensor_lanes that the "
        "state was made with",
        wanted.tensor, wanted.kind, existing.slices, wanted.slices);
  }
  if (existing.dtype == wanted.dtype && existing.global_shape == wanted.global_shape) return {};
  return fail(
      ExitCode::checkpoint,
      "tensor '{}' ({}) exists as {} of shape [{}], but {} of shape [{}] is wanted; use the config that the "
      "state was made with",
      wanted.tensor, wanted.kind, name_of(existing.dtype), fmt::join(existing.global_shape, ", "),
      name_of(wanted.dtype), fmt::join(wanted.global_shape, ", "));
}

// Turns pieces that may overlap (copies) into disjoint segments in ascending order. Of pieces that start
// together the longest wins, then the one listed first.
std::vector<Segment> disjoint(std::vector<Segment> pieces) {
  std::ranges::sort(pieces, {}, [](const Segment& piece) {
    return std::tuple(piece.first, std::numeric_limits<std::uint64_t>::max() - piece.end, piece.index);
  });
  std::vector<Segment> segments;
  std::uint64_t covered_end = 0;
  for (const Segment& piece : pieces) {
    const std::uint64_t first = std::max(piece.first, covered_end);
    if (first >= piece.end) continue;
    segments.push_back({.first = first, .end = piece.end, .index = piece.index});
    covered_end = piece.end;
  }
  return segments;
}

Error missing_elements(const ShardSpec& wanted, std::uint64_t element) {
  return fail(
      ExitCode::checkpoint,
      "tensor {} ({}) is wanted from element {} to {}, but no piece holds element {}; the state is not "
      "complete, so it cannot be used",
      name_of_slice(wanted), wanted.kind, wanted.first_element(),
      wanted.first_element() + wanted.element_count(), element);
}

Result<void> append_copies(const std::vector<ShardSpec>& existing, const std::vector<Segment>& segments,
                           const ShardSpec& wanted, std::size_t wanted_index,
                           std::vector<ShardCopy>& copies) {
  const std::uint64_t end = wanted.first_element() + wanted.element_count();
  std::uint64_t next = wanted.first_element();
  auto segment = std::ranges::upper_bound(segments, next, {}, &Segment::end);
  while (next < end) {
    if (segment == segments.end() || segment->first > next) return missing_elements(wanted, next);
    const ShardSpec& source = existing[segment->index];
    HF_TRY_VOID(check_same_tensor(source, wanted));
    const std::uint64_t copy_end = std::min(end, segment->end);
    copies.push_back({.wanted_index = wanted_index,
                      .wanted_offset = next - wanted.first_element(),
                      .existing_index = segment->index,
                      .existing_offset = next - source.first_element(),
                      .element_count = copy_end - next});
    next = copy_end;
    ++segment;
  }
  return {};
}

}  // namespace

std::uint64_t ShardSpec::tensor_elements() const {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : global_shape) {
    // Descriptions come from files: an absurd shape saturates instead of wrapping around to a plausible one.
    if (__builtin_mul_overflow(elements, extent, &elements)) return std::numeric_limits<std::uint64_t>::max();
  }
  return elements;
}

std::uint64_t ShardSpec::slice_elements() const {
  return tensor_elements() / slices;
}

std::uint64_t ShardSpec::slice_blocks() const {
  const std::uint64_t elements = slice_elements();
  return elements / block_elements + (elements % block_elements != 0 ? 1 : 0);
}

std::uint64_t ShardSpec::element_count() const {
  const std::uint64_t blocks = slice_blocks();
  const std::uint64_t first = std::min(first_block, blocks);
  const std::uint64_t end = first + std::min(block_count, blocks - first);
  const std::uint64_t elements = slice_elements();
  const std::uint64_t end_element = end == blocks ? elements : end * block_elements;
  return end_element - std::min(first * block_elements, end_element);
}

std::vector<ShardSpec> whole_slices(const std::vector<ShardSpec>& pieces) {
  std::vector<ShardSpec> slices;
  std::set<Key> seen;
  for (const ShardSpec& piece : pieces) {
    if (!seen.insert({piece.tensor, piece.kind, 0}).second) continue;
    for (std::uint32_t slice = 0; slice < piece.slices; ++slice) {
      ShardSpec& whole = slices.emplace_back(piece);
      whole.slice = slice;
      whole.first_block = 0;
      whole.block_count = whole.slice_blocks();
    }
  }
  return slices;
}

Result<std::vector<ShardCopy>> plan_copies(const std::vector<ShardSpec>& existing,
                                           const std::vector<ShardSpec>& wanted) {
  std::map<Key, std::vector<Segment>> pieces;
  for (std::size_t i = 0; i < existing.size(); ++i) {
    const ShardSpec& spec = existing[i];
    HF_TRY_VOID(check_range(spec));
    if (spec.element_count() == 0) continue;  // nothing is to be had of it
    pieces[key_of(spec)].push_back(
        {.first = spec.first_element(), .end = spec.first_element() + spec.element_count(), .index = i});
  }
  for (auto& [key, list] : pieces) list = disjoint(std::move(list));

  std::vector<ShardCopy> copies;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    HF_TRY_VOID(check_range(wanted[i]));
    if (wanted[i].element_count() == 0) continue;
    const auto found = pieces.find(key_of(wanted[i]));
    if (found == pieces.end()) {
      const auto other = pieces.lower_bound({wanted[i].tensor, wanted[i].kind, 0});
      const bool same_name = other != pieces.end() &&
                             existing[other->second.front().index].tensor == wanted[i].tensor &&
                             existing[other->second.front().index].kind == wanted[i].kind;
      if (same_name) HF_TRY_VOID(check_same_tensor(existing[other->second.front().index], wanted[i]));
      return missing_elements(wanted[i], wanted[i].first_element());
    }
    HF_TRY_VOID(append_copies(existing, found->second, wanted[i], i, copies));
  }
  return copies;
}

}  // namespace holdfast::core
