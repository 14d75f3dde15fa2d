#include "runtime/report/step_analysis.h"

#include <algorithm>
#include <limits>

#include "parallel/pipeline/schedule_time.h"
#include "runtime/core/median.h"

namespace holdfast::report {

namespace {

std::vector<Span> spans_of(const RankTrace& rank, std::uint64_t step, SpanGroup group) {
  std::vector<Span> spans;
  std::ranges::copy_if(rank.spans, std::back_inserter(spans),
                       [&](const Span& span) { return span.step == step && group_of(span.kind) == group; });
  std::ranges::sort(spans, {}, [](const Span& span) { return span.begin.time_ns; });
  return spans;
}

// The gap between two computations, cut at the waits in it.
void cut_gap(const Interval& gap, const std::vector<Span>& waits, std::vector<Idle>& idle) {
  std::int64_t at = gap.begin_ns;
  const auto add = [&](std::int64_t end_ns, bool waiting, SpanKind kind) {
    if (end_ns > at) idle.push_back({{at, end_ns}, waiting, kind});
    at = std::max(at, end_ns);
  };
  for (const Span& wait : waits) {
    if (wait.end.time_ns <= at) continue;
    if (wait.begin.time_ns >= gap.end_ns) break;
    add(std::max(at, wait.begin.time_ns), false, SpanKind::step);
    add(std::min(gap.end_ns, wait.end.time_ns), true, wait.kind);
  }
  add(gap.end_ns, false, SpanKind::step);
}

// Returns the medians by part number; an action that a part never did costs nothing.
std::vector<PartDurations> median_parts(const PipelineTimes& times) {
  std::vector<PartDurations> parts(static_cast<std::size_t>(times.schedule.parts()));
  for (std::size_t number = 0; number < parts.size(); ++number) {
    const int stages = times.schedule.stages;
    const int stage = static_cast<int>(number) % stages, chunk = static_cast<int>(number) / stages;
    const auto worked = [&](SpanKind kind) {
      std::vector<double> durations;
      for (const PipelineStep& step : times.steps) {
        for (const RankStep& rank : step.stages) {
          if (rank.coordinate.pipeline != stage) continue;
          for (const Span& span : rank.compute) {
            if (span.kind == kind && span.chunk == chunk)
              durations.push_back(static_cast<double>(span.end.worked_ns - span.begin.worked_ns));
          }
        }
      }
      return median(std::move(durations));
    };
    parts[number] = {.forward = worked(SpanKind::forward),
                     .backward_input = worked(SpanKind::backward) + worked(SpanKind::backward_input),
                     .backward_weight = worked(SpanKind::backward_weight)};
  }
  return parts;
}

template <typename Number>
Number sum_of_forward_backward(const std::array<Number, span_kinds>& by_kind) {
  Number sum{};
  for (std::size_t kind = 0; kind < span_kinds; ++kind) {
    if (is_forward_or_backward(static_cast<SpanKind>(kind))) sum += by_kind[kind];
  }
  return sum;
}

PipelineStep analyse_pipeline(const std::vector<const RankTrace*>& ranks, std::uint64_t number) {
  PipelineStep step{.step = number, .stages = {}};
  step.window = {std::numeric_limits<std::int64_t>::max(), 0};
  std::int64_t busy_ns = 0;
  for (const RankTrace* rank : ranks) {
    step.stages.push_back(analyse_rank(*rank, number));
    for (const Span& span : step.stages.back().compute) {
      if (!is_forward_or_backward(span.kind)) continue;
      step.window.begin_ns = std::min(step.window.begin_ns, span.begin.time_ns);
      step.window.end_ns = std::max(step.window.end_ns, span.end.time_ns);
    }
    busy_ns += step.stages.back().forward_backward_ns();
  }
  if (step.window.end_ns == 0) step.window = {};  // nothing was computed
  const double all_ns = static_cast<double>(step.window.duration_ns()) * static_cast<double>(ranks.size());
  step.bubble_share = all_ns > 0.0 ? 1.0 - static_cast<double>(busy_ns) / all_ns : 0.0;
  return step;
}

}  // namespace

bool is_forward_or_backward(SpanKind kind) {
  return group_of(kind) == SpanGroup::compute && kind != SpanKind::update;
}

std::int64_t RankStep::forward_backward_ns() const {
  return sum_of_forward_backward(spent_ns);
}

double RankShares::forward_backward() const {
  return sum_of_forward_backward(spent);
}

std::vector<RankShares> rank_shares(const PipelineTimes& times) {
  std::vector<RankShares> ranks;
  for (std::size_t i = 0; i < times.steps.front().stages.size(); ++i) {
    RankShares shares{.rank = times.steps.front().stages[i].rank,
                      .coordinate = times.steps.front().stages[i].coordinate};
    std::int64_t all_ns = 0;
    for (const PipelineStep& step : times.steps) all_ns += step.stages[i].step.duration_ns();
    const auto share_of = [&](std::int64_t spent_ns) {
      return static_cast<double>(spent_ns) / static_cast<double>(std::max<std::int64_t>(1, all_ns));
    };
    for (const PipelineStep& step : times.steps) {
      for (std::size_t kind = 0; kind < span_kinds; ++kind)
        shares.spent[kind] += share_of(step.stages[i].spent_ns[kind]);
      shares.other += share_of(step.stages[i].other_ns);
    }
    ranks.push_back(shares);
  }
  return ranks;
}

std::vector<SpanKind> waits_of(const std::vector<RankShares>& ranks) {
  std::vector<SpanKind> waits;
  for (std::size_t kind = 0; kind < span_kinds; ++kind) {
    const bool seen =
        std::ranges::any_of(ranks, [&](const RankShares& rank) { return rank.spent[kind] >= 0.001; });
    if (seen && group_of(static_cast<SpanKind>(kind)) == SpanGroup::wait)
      waits.push_back(static_cast<SpanKind>(kind));
  }
  return waits;
}

double PipelineTimes::measured_share() const {
  std::vector<double> shares;
  for (const PipelineStep& step : steps) shares.push_back(step.bubble_share);
  return median(std::move(shares));
}

double PipelineTimes::host_share() const {
  std::vector<double> shares;
  for (const PipelineStep& step : steps) {
    double host = 0.0, compute = 0.0;
    for (const RankStep& rank : step.stages) {
      host += static_cast<double>(rank.host_worked_ns);
      for (const Span& span : rank.compute) {
        if (is_forward_or_backward(span.kind))
          compute += static_cast<double>(span.end.worked_ns - span.begin.worked_ns);
      }
    }
    if (compute > 0.0) shares.push_back(host / compute);
  }
  return median(std::move(shares));
}

RankStep analyse_rank(const RankTrace& rank, std::uint64_t step) {
  RankStep result{.rank = rank.header.rank, .coordinate = rank.header.coordinate};
  for (const Span& span : spans_of(rank, step, SpanGroup::phase)) {
    if (span.kind != SpanKind::step) continue;
    result.step = {span.begin.time_ns, span.end.time_ns};
    result.host_worked_ns = span.end.worked_ns - span.begin.worked_ns;
  }
  result.compute = spans_of(rank, step, SpanGroup::compute);
  const std::vector<Span> waits = spans_of(rank, step, SpanGroup::wait);
  std::int64_t free_ns = result.step.begin_ns;
  for (const Span& span : result.compute) {
    cut_gap({free_ns, span.begin.time_ns}, waits, result.idle);
    free_ns = span.end.time_ns;
    result.spent_ns[static_cast<std::size_t>(span.kind)] += span.end.time_ns - span.begin.time_ns;
  }
  cut_gap({free_ns, result.step.end_ns}, waits, result.idle);
  for (const Idle& idle : result.idle) {
    (idle.waits ? result.spent_ns[static_cast<std::size_t>(idle.kind)] : result.other_ns) +=
        idle.duration_ns();
  }
  return result;
}

std::vector<PipelineTimes> analyse(const Timeline& timeline) {
  std::vector<PipelineTimes> all;
  for (int data = 0; data < timeline.ranks.front().header.mesh.data; ++data) {
    std::vector<const RankTrace*> ranks;
    for (const RankTrace& rank : timeline.ranks) {
      if (rank.header.coordinate.data == data) ranks.push_back(&rank);
    }
    if (ranks.empty()) continue;
    std::ranges::stable_sort(ranks, {}, [](const RankTrace* rank) {
      return std::pair(rank->header.coordinate.pipeline, rank->header.coordinate.tensor);
    });
    PipelineTimes times{.data = data, .schedule = ranks.front()->header.schedule, .steps = {}};
    for (const std::uint64_t step : timeline.steps) times.steps.push_back(analyse_pipeline(ranks, step));
    const Schedule schedule = make_schedule(times.schedule);
    const std::vector<PartDurations> equal(static_cast<std::size_t>(times.schedule.parts()), {1.0, 1.0, 1.0});
    times.formula_share = schedule_time(schedule, equal, 0.0).bubble_share();
    times.replayed_share = schedule_time(schedule, median_parts(times), 0.0).bubble_share();
    all.push_back(std::move(times));
  }
  return all;
}

}  // namespace holdfast::report
