#include "runtime/integrity/state_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "parallel/comm/device_wait.h"
#include "parallel/comm/rank_sum.h"
#include "runtime/integrity/parameter_check.h"

namespace holdfast::integrity {
namespace {

std::string describe(const CheckRecord<HeldState>& record, bool holds_other_run_state) {
  const HeldState& held = record.found;
  if (held.blocks == 0 && holds_other_run_state) {
    return fmt::format("{}: {}", record.name(),
                       held.run_state.is_at
                           ? "the step, the position in the data, or the numbers of the last steps"
                           : "the step or the position in the data");
  }
  if (held.blocks == 0) {
    return fmt::format("{}: the learning rate was {:.6g}, expected {:.6g}", record.name(), held.used_rate,
                       held.right_rate);
  }
  return fmt::format("{}: {}{}, elements {} to {}{}", record.name(),
                     held.is_of_gradients ? "gradient of " : "", held.tensor, held.first_element,
                     held.first_element + held.elements - 1,
                     held.blocks > 1 ? fmt::format(" and {} more blocks", held.blocks - 1) : "");
}

// Returns the newest step whose state is right. The update of step n has read the state of step n - 1, and that of
// step n - 2 was read, and found right, by the update before. Frozen tensors that were right at step n may have
// changed while the state of step n was saved. What was loaded was right.
std::uint64_t trusted_step(std::uint64_t read_by, const StateRecords& records, std::uint64_t loaded) {
  std::uint64_t trusted = read_by > 2 ? read_by - 2 : 0;
  for (const CheckRecord<HeldState>& record : records) {
    if (record.found.has_frozen)
      trusted = std::min(trusted, std::max<std::uint64_t>(1, record.found.frozen_verified_step) - 1);
  }
  return std::max(trusted, loaded);
}

// CorruptionSum is what ranks sum to learn whether some of them have found corruption.
struct CorruptionSum {
  std::int64_t ranks = 0;
  Digest run_state = {};  // of run_state_term()

  static constexpr void visit_words(auto& self, auto&& visit) {
    visit(self.ranks);
    visit(self.run_state);
  }
};

Result<std::optional<CheckedStep>> check_sum(const StepAccess& step, const Attempt& attempt,
                                             std::uint64_t steps_ahead) {
  const Communicator& all = step.rank.communicator;
  const HeldState held = step.state();
  Digest run_state;
  HF_CHECK(from_hex(held.run_state.digest, run_state));
  CorruptionSum sum{.ranks = held.blocks > 0 || held.is_of_update ? 1 : 0,
                    .run_state = run_state_term(run_state, held.run_state.is_at, all.rank(), all.size())};
  HF_TRY_VOID(sum_over_ranks(step.rank.communicator, step.rank.waiter, sum));
  if (sum.ranks == 0 && sum.run_state == Digest{}) return std::optional<CheckedStep>();
  HF_TRY(CheckedStep found, check_found_state(step, attempt, steps_ahead));
  return std::optional(std::move(found));
}

}  // namespace

Digest run_state_term(const Digest& digest, bool is_at, int rank, int ranks) {
  constexpr std::uint64_t group = 0x72756e5f73746174;  // another one than those of parameters
  Digest term = agreement_term({.group = group, .member = rank, .members = ranks}, digest);
  if (!is_at) term += {.high = 1, .low = 1};
  return term;
}

RunStateSuspects attribute(std::span<const HeldRunState> ranks) {
  RunStateSuspects suspects{.step = ranks.front().step};
  std::map<std::string, std::vector<int>> holders;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    suspects.step = std::min(suspects.step, ranks[rank].step);
    if (ranks[rank].is_at) {
      holders[ranks[rank].digest].push_back(static_cast<int>(rank));
    } else {
      suspects.ranks.push_back(static_cast<int>(rank));
    }
  }
  const std::size_t alike = ranks.size() - suspects.ranks.size();
  const auto has_most = [&](const auto& each) { return 2 * each.second.size() > alike; };
  suspects.is_known = holders.empty() || std::ranges::any_of(holders, has_most);
  for (const auto& each : holders)
    if (!has_most(each)) suspects.ranks.insert(suspects.ranks.end(), each.second.begin(), each.second.end());
  std::ranges::sort(suspects.ranks);
  return suspects;
}

Finding attribute(const StateRecords& records, std::uint64_t steps_ahead, std::uint64_t first_step) {
  std::vector<HeldRunState> run_states;
  for (const CheckRecord<HeldState>& each : records) run_states.push_back(each.found.run_state);
  const RunStateSuspects others = attribute(run_states);
  const std::uint64_t read_by = others.step + steps_ahead;  // the step of one rank may be what has changed
  Finding finding{.of = VerdictSubject::update,
                  .hardware = HardwareState::corrupted,
                  .verified_step = trusted_step(read_by, records, first_step),
                  .notes_last = true,
                  .report = {.step = read_by}};
  std::vector<std::string> found;
  bool of_tensors = false, of_gradients = false;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const HeldState& held = records[rank].found;
    const bool holds_other =
        others.is_known && std::ranges::binary_search(others.ranks, static_cast<int>(rank));
    const bool is_of_memory = held.blocks > 0 || holds_other;
    if (!is_of_memory && !held.is_of_update) continue;
    if (is_of_memory) finding.of = VerdictSubject::state;
    (held.is_of_gradients ? of_gradients : of_tensors) |= held.blocks > 0;
    finding.suspects.push_back({.index = static_cast<int>(rank),
                                .record = records[rank],
                                .kind = is_of_memory ? finding_kinds::memory : finding_kinds::once,
                                .may_leave = others.is_known});
    found.push_back(describe(records[rank], holds_other));
  }
  if (!others.is_known) {
    finding.of = VerdictSubject::state;
    found.emplace_back(
        "the step, the position in the data, or the numbers of the last steps, it is not known of which "
        "rank");
  }
  finding.evicted = fmt::format("the run goes back to step {} or before, without {}", finding.verified_step,
                                finding.suspects.size() == 1 ? "that rank" : "those ranks");
  finding.report.differing_ranks = static_cast<int>(finding.suspects.size());
  finding.report.reason =
      fmt::format("step {}: {}: {}", read_by,
                  finding.of == VerdictSubject::update ? "an update was not the one that its step has"
                  : of_tensors                         ? "weights or optimizer state changed in memory"
                  : of_gradients ? "sums of gradients changed in memory before the update"
                                 : "what the run knows of its steps changed in memory",
                  fmt::join(found, "; "));
  return finding;
}

Result<CheckedStep> check_found_state(const StepAccess& step, const Attempt& attempt,
                                      std::uint64_t steps_ahead) {
  HF_TRY(const StateRecords records, gather_records(step.rank, step.verified_step, step.state()));
  return follow(step.rank, attempt, attribute(records, steps_ahead, step.first_step));
}

Result<std::optional<CheckedStep>> check_state(const StepAccess& step, const Attempt& attempt) {
  wait_for_device(step.rank.device, step.rank.communicator);
  step.check_state();
  return check_sum(step, attempt, 1);
}

Result<std::optional<CheckedStep>> check_state_to_save(const StepAccess& step, bool update_follows) {
  wait_for_device(step.rank.device, step.rank.communicator);
  step.check_frozen();
  HF_TRY(std::optional<CheckedStep> found, check_sum(step, {}, 0));
  if (found.has_value() || update_follows) return found;
  return check_state(step, {});
}

}  // namespace holdfast::integrity
