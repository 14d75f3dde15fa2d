#include "runtime/integrity/audit_plan.h"

#include <algorithm>

namespace holdfast::integrity {
namespace {

// Ranks other than the owner; the owner alone where there is no other.
int auditors(int data_ranks) {
  return std::max(1, data_ranks - 1);
}

}  // namespace

std::optional<LaneAudit> audit_at(std::uint64_t step, std::int64_t every_steps, int lanes, int data_ranks,
                                  int retry) {
  if (every_steps <= 0 || step % static_cast<std::uint64_t>(every_steps) != 0) return {};
  const std::uint64_t audit = step / static_cast<std::uint64_t>(every_steps) - 1;
  const auto lane = static_cast<int>(audit % static_cast<std::uint64_t>(lanes));
  const std::uint64_t round = audit / static_cast<std::uint64_t>(lanes) + static_cast<std::uint64_t>(retry);
  const int owner = lane % data_ranks;
  const auto distance = static_cast<int>(round % static_cast<std::uint64_t>(auditors(data_ranks))) + 1;
  return LaneAudit{.lane = lane, .owner = owner, .auditor = (owner + distance) % data_ranks};
}

std::uint64_t last_audit_of(int data_rank, std::uint64_t step, std::int64_t every_steps, int lanes,
                            int data_ranks) {
  if (every_steps <= 0) return 0;
  const auto every = static_cast<std::uint64_t>(every_steps);
  for (std::uint64_t before = (step - 1) / every * every; before > 0; before -= every) {
    const LaneAudit audit = audit_at(before, every_steps, lanes, data_ranks).value();
    if (audit.owner == data_rank || audit.auditor == data_rank) return before;
  }
  return 0;
}

std::uint64_t proved_step(std::uint64_t since, std::uint64_t step, std::int64_t every_steps, int lanes,
                          int data_ranks) {
  std::uint64_t proved = step;
  for (int rank = 0; rank < data_ranks && proved > since; ++rank)
    proved = std::min(proved, last_audit_of(rank, step + 1, every_steps, lanes, data_ranks));
  return proved > since ? proved : 0;
}

std::int64_t affordable_audit_interval(int waves) {
  constexpr std::int64_t steps_of_one_wave = 1334;  // 2 / 0.15 %
  return std::max<std::int64_t>(1, (steps_of_one_wave + waves - 1) / waves);
}

}  // namespace holdfast::integrity
