// Traces of ranks that never ran: every action of a schedule at the time that schedule_time() gives it.
#pragma once

#include <cmath>
#include <vector>

#include "parallel/pipeline/schedule_time.h"
#include "runtime/report/timeline.h"

namespace holdfast::test {

struct MadeUpRun {
  ScheduleShape shape = {};
  int data = 1;
  std::int64_t forward_ns = 1000, backward_ns = 2000;  // of one part
  std::int64_t slow_ns = 0;  // that every action takes longer than it works: something else has the processor
};

inline SpanKind kind_of(Work work) {
  switch (work) {
    case Work::forward:
      return SpanKind::forward;
    case Work::backward:
      return SpanKind::backward;
    case Work::backward_input:
      return SpanKind::backward_input;
    case Work::backward_weight:
      break;
  }
  return SpanKind::backward_weight;
}

inline Span span_at(SpanKind kind, std::uint64_t step, std::int64_t begin_ns, std::int64_t end_ns) {
  Span span{.kind = kind, .step = step};
  span.begin = {.time_ns = begin_ns, .worked_ns = 0};
  span.end = {.time_ns = end_ns, .worked_ns = end_ns - begin_ns};
  return span;
}

// Steps 7 and 8; each begins 100 ns before its first forward and lasts until 300 ns after its last backward,
// which the host waits for the vote.
inline std::vector<RankTrace> made_up_ranks(const MadeUpRun& run) {
  const Schedule schedule = make_schedule(run.shape);
  const double forward = static_cast<double>(run.forward_ns + run.slow_ns),
               backward = static_cast<double>(run.backward_ns + run.slow_ns) / 2;
  const std::vector<PartDurations> parts(static_cast<std::size_t>(run.shape.parts()),
                                         {forward, backward, backward});
  const ScheduleTime time = schedule_time(schedule, parts, 0.0);
  const auto length_ns = std::llround(time.duration);
  std::vector<RankTrace> ranks;
  for (int data = 0; data < run.data; ++data) {
    for (int stage = 0; stage < run.shape.stages; ++stage) {
      RankTrace rank;
      rank.header = {.recording = "00ff",
                     .rank = data * run.shape.stages + stage,
                     .ranks = run.data * run.shape.stages,
                     .host = "here",
                     .device = "cpu",
                     .mesh = {.data = run.data, .pipeline = run.shape.stages},
                     .coordinate = {.data = data, .pipeline = stage},
                     .schedule = run.shape};
      const auto& actions = schedule.actions[static_cast<std::size_t>(stage)];
      for (std::uint64_t step = 7; step <= 8; ++step) {
        const std::int64_t begin_ns = 1'000'000 * static_cast<std::int64_t>(step);
        rank.spans.push_back(span_at(SpanKind::step, step, begin_ns - 100, begin_ns + length_ns + 300));
        for (std::size_t i = 0; i < actions.size(); ++i) {
          const ScheduleTime::Span at = time.actions[static_cast<std::size_t>(stage)][i];
          Span span = span_at(kind_of(actions[i].work), step, begin_ns + std::llround(at.begin),
                              begin_ns + std::llround(at.end));
          span.end.worked_ns -= run.slow_ns;
          span.chunk = static_cast<std::int16_t>(actions[i].chunk);
          span.microbatch = actions[i].microbatch;
          rank.spans.push_back(span);
        }
        rank.spans.push_back(
            span_at(SpanKind::wait_vote, step, begin_ns + length_ns, begin_ns + length_ns + 300));
      }
      ranks.push_back(std::move(rank));
    }
  }
  return ranks;
}

}  // namespace holdfast::test
