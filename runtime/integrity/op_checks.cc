#include "runtime/integrity/op_checks.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/core/digest.h"

namespace holdfast::integrity {
namespace {

// Number of results for which there is memory: those of hundreds of layers and microbatches.
constexpr std::size_t capacity = std::size_t{1} << 18;

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

CheckedOp checked_op(const OpDigest& digest, std::span<const OpDigest> results, double growth) {
  const auto is_before = [&](const OpDigest& each) {
    return each.scope == digest.scope &&
           std::tie(each.order, each.output) < std::tie(digest.order, digest.output);
  };
  return {.order = digest.order,
          .op = name_of(digest.op),
          .scope = digest.scope,
          .place = std::ranges::count_if(results, is_before),
          .output = digest.output,
          .nonfinite = digest.words.nonfinite,
          .growth = growth};
}

bool is_computed_before(const CheckedOp& one, const CheckedOp& other) {
  return one.scope == other.scope ? one.place < other.place : is_computed_before(one.scope, other.scope);
}

std::string describe(const CheckedOp& op) {
  if (op.scope.pass == OpScope::Pass::none) return op.op + ", of no microbatch";
  return fmt::format("{} in {}, in the {} of lane {}, microbatch {}", op.op, part_name(op.scope),
                     pass_name(op.scope), op.scope.lane, op.scope.microbatch);
}

// A kernel needs no more memory for a longer tensor than this one.
void StepChecks::plan(Device& device) {
  device.launch(TensorDigest{.count = std::numeric_limits<std::int32_t>::max()});
}

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
  if (!std::exchange(inspects_, true)) other_ = device_.inspector();
  device_.inspect_with(&digests_);
}

void StepChecks::end() {
  if (std::exchange(inspects_, false)) device_.inspect_with(std::exchange(other_, nullptr));
}

std::vector<OpDigest> StepChecks::results() {
  device_.synchronize();
  return digests_.list();
}

RankChecks StepChecks::result() {
  const std::vector<OpDigest> results = this->results();
  RankChecks checks{.ops = digests_.ops(),
                    .results = static_cast<std::int64_t>(results.size()),
                    .left_out = digests_.left_out(),
                    .digest = digest_over(results)};
  if (const auto found = first_nonfinite(results)) checks.first_nonfinite = checked_op(*found, results);
  if (const auto found = largest_growth(results))
    checks.largest_growth = checked_op(found->digest, results, found->factor);
  return checks;
}

}  // namespace holdfast::integrity
