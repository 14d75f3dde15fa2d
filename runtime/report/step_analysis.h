// Step analysis: where the time of a step went. For every rank, what its device computed, and what its host
// waited for while the device had nothing to do; for every pipeline, its bubble. Pure.
//
// The bubble share of a pipeline in a step is the quantity of the schedule's formula (schedule_time.h): the
// share of the time from the first forward to the end of the last backward, on all its stages together, in
// which no forward or backward is computed. Three numbers are compared:
//   measured   from the times as they are: with all waiting, for transfers and other programs, too;
//   replayed   from the schedule, each part with the median work of its actions (Stamp::worked_ns):
//              what is left when transfers cost nothing and every rank has its processors for itself, so the
//              effect of uneven parts on the formula;
//   formula    from the schedule with equal parts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/report/timeline.h"

namespace holdfast::report {

struct Interval {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t duration_ns() const { return end_ns - begin_ns; }
};

inline constexpr std::size_t span_kinds = static_cast<std::size_t>(SpanKind::count);

// Time in which the device of a rank did nothing; the host was waiting for `kind`, or for nothing that was
// recorded: it launched, or another process had the processor.
struct Idle : Interval {
  bool waits = false;
  SpanKind kind = SpanKind::step;
};

struct RankStep {
  int rank = 0;
  MeshCoordinate coordinate = {};
  Interval step = {};
  std::vector<Span> compute = {};                   // the update too; in order
  std::vector<Idle> idle = {};                      // all of the rest of the step, in order
  std::array<std::int64_t, span_kinds> spent_ns{};  // by kind: computing it, or idle and waiting for it
  std::int64_t other_ns = 0;                        // idle without a known wait
  std::int64_t host_worked_ns = 0;                  // processor time of the host's thread in the step
  std::int64_t forward_backward_ns() const;
};

struct PipelineStep {
  std::uint64_t step = 0;
  std::vector<RankStep> stages = {};  // in their order, the ranks of a tensor group side by side
  Interval window = {};               // from the first forward to the end of the last backward
  double bubble_share = 0.0;          // measured
};

// One replica of the model.
struct PipelineTimes {
  int data = 0;  // which copy
  ScheduleShape schedule = {};
  std::vector<PipelineStep> steps = {};
  double measured_share() const;  // the median of the steps
  // Processor time of the host's threads for each of forward and backward, of all stages: what it costs to
  // run the schedule, the exchanges and the vote. The median of the steps.
  double host_share() const;
  double replayed_share = 0.0;
  double formula_share = 0.0;
};

// Shares of its steps' duration that a rank spent on each activity, on average.
struct RankShares {
  int rank = 0;
  MeshCoordinate coordinate = {};
  std::array<double, span_kinds> spent{};  // by kind, as RankStep::spent_ns
  double other = 0.0;
  double forward_backward() const;
};
std::vector<RankShares> rank_shares(const PipelineTimes& times);
// Returns the waits that take a thousandth of some rank's steps, in the order of kinds.
std::vector<SpanKind> waits_of(const std::vector<RankShares>& ranks);

RankStep analyse_rank(const RankTrace& rank, std::uint64_t step);
std::vector<PipelineTimes> analyse(const Timeline& timeline);

// Returns whether it is a forward or some backward.
bool is_forward_or_backward(SpanKind kind);

}  // namespace holdfast::report
