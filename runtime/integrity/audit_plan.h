// Plans lane audits: at some steps one lane is computed by two ranks, which compare the bits of its gradients.
// All pairs of lane and second rank come up in turn. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

namespace holdfast::integrity {

// LaneAudit says which lane of a step is computed twice, and by which data-parallel ranks. With one of them,
// it computes the lane twice itself.
struct LaneAudit {
  int lane = 0;
  int owner = 0;    // rank that runs the lane in any case
  int auditor = 0;  // rank that computes it once more
  bool operator==(const LaneAudit&) const = default;
};

// Returns the audit of a step, or none. `every_steps`: interval between audits; 0: there are none. `retry`:
// number of the attempt at the step, from 0 on; with three ranks or more each has another auditor.
std::optional<LaneAudit> audit_at(std::uint64_t step, std::int64_t every_steps, int lanes, int data_ranks,
                                  int retry = 0);

// Returns the last step before `step` at whose first attempt the rank took part in an audit; 0: none.
std::uint64_t last_audit_of(int data_rank, std::uint64_t step, std::int64_t every_steps, int lanes,
                            int data_ranks);

// Returns the newest step from which on all ranks have taken part in an audit after `since`, the step at which
// they began, up to `step`; 0: some rank has not.
std::uint64_t proved_step(std::uint64_t since, std::uint64_t step, std::int64_t every_steps, int lanes,
                          int data_ranks);

// Returns the interval at which audits take at most 0.15 % of the time of steps with so many waves of lanes:
// the lane and the known products of an audit (runtime/integrity/product_test.h) take the time of up to two waves, and
// the digests of parameters a few hundredths of one.
std::int64_t affordable_audit_interval(int waves);

}  // namespace holdfast::integrity
