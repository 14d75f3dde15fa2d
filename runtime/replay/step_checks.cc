#include "runtime/replay/step_checks.h"

#include <utility>
#include <vector>

#include "runtime/core/digest.h"

namespace holdfast::inline replay {
namespace {

// Number of results for which there is memory: those of hundreds of layers and microbatches.
constexpr std::size_t capacity = std::size_t{1} << 18;

CheckedOp checked_op(const OpDigest& digest, double growth = 0.0) {
  return {.order = digest.order,
          .op = name_of(digest.op),
          .output = digest.output,
          .nonfinite = digest.words.nonfinite,
          .growth = growth};
}

std::string digest_over(const std::vector<OpDigest>& results) {
  DigestStream stream;
  for (const OpDigest& each : results) {
    for (const std::uint64_t value :
         {static_cast<std::uint64_t>(each.order), static_cast<std::uint64_t>(each.op),
          static_cast<std::uint64_t>(each.output), each.words.sum, each.words.weighted})
      stream.add(value);
  }
  return to_hex(stream.finish());
}

}  // namespace

Result<std::unique_ptr<StepChecks>> StepChecks::make(Device& device) {
  MemoryPlan plan;
  const MemoryPlan::Slot slot = OpDigests::reserve(plan, capacity);
  HF_TRY(MemoryArena arena, allocate_memory(device, plan));
  return std::unique_ptr<StepChecks>(new StepChecks(device, std::move(arena), slot));
}

StepChecks::StepChecks(Device& device, MemoryArena arena, MemoryPlan::Slot slot)
    : device_(device),
      arena_(std::move(arena)),
      digests_(device, std::span(arena_.at<DigestWords>(slot), capacity)) {}

void StepChecks::begin() {
  digests_.clear();
  device_.inspect_with(&digests_);
}

void StepChecks::end() {
  device_.inspect_with(nullptr);
}

RankChecks StepChecks::result() {
  device_.synchronize();
  const std::vector<OpDigest> results = digests_.list();
  RankChecks checks{.ops = digests_.ops(),
                    .results = static_cast<std::int64_t>(results.size()),
                    .left_out = digests_.left_out(),
                    .digest = digest_over(results)};
  if (const auto found = first_nonfinite(results)) checks.first_nonfinite = checked_op(*found);
  if (const auto found = largest_growth(results))
    checks.largest_growth = checked_op(found->digest, found->factor);
  return checks;
}

}  // namespace holdfast::inline replay
