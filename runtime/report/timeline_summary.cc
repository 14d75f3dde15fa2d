#include "runtime/report/timeline_output.h"

#include <fmt/core.h>

#include <algorithm>

namespace holdfast::report {
namespace {

constexpr std::size_t ranks_shown = 64;

// Heads of columns: the words that tell the waits apart.
const char* column_of(SpanKind wait) {
  switch (wait) {
    case SpanKind::wait_activation:
      return "activation";
    case SpanKind::wait_gradient:
      return "gradient";
    case SpanKind::wait_send:
      return "send";
    case SpanKind::wait_lanes:
      return "lanes";
    case SpanKind::wait_data:
      return "data";
    case SpanKind::wait_vote:
      return "vote";
    case SpanKind::wait_parameters:
      return "parameters";
    case SpanKind::wait_tied_weight:
      return "tied weight";
    case SpanKind::wait_snapshot:
      return "snapshot";
    case SpanKind::wait_slices:
      return "slices";
    default:
      return "device";
  }
}

std::string shares_text(const std::vector<RankShares>& ranks) {
  const std::vector<SpanKind> waits = waits_of(ranks);
  std::string text = fmt::format("{:>5} {:>5} {:>9} {:>9}", "rank", "stage", "computing", "optimizer");
  for (const SpanKind wait : waits) text += fmt::format(" {:>11}", column_of(wait));
  text += fmt::format(" {:>9}\n", "other");
  for (const RankShares& rank : std::span(ranks).first(std::min(ranks.size(), ranks_shown))) {
    text += fmt::format("{:>5} {:>5} {:>7.1f} % {:>7.1f} %", rank.rank, rank.coordinate.pipeline,
                        100.0 * rank.forward_backward(),
                        100.0 * rank.spent[static_cast<std::size_t>(SpanKind::update)]);
    for (const SpanKind wait : waits)
      text += fmt::format(" {:>9.1f} %", 100.0 * rank.spent[static_cast<std::size_t>(wait)]);
    text += fmt::format(" {:>7.1f} %\n", 100.0 * rank.other);
  }
  if (ranks.size() > ranks_shown)
    text += fmt::format("  ... and {} ranks more\n", ranks.size() - ranks_shown);
  return text;
}

double median_step_ms(const PipelineTimes& pipeline) {
  std::vector<std::int64_t> durations;
  for (const PipelineStep& step : pipeline.steps) {
    std::int64_t longest = 0;
    for (const RankStep& rank : step.stages) longest = std::max(longest, rank.step.duration_ns());
    durations.push_back(longest);
  }
  std::ranges::sort(durations);
  return durations.empty() ? 0.0 : static_cast<double>(durations[durations.size() / 2]) / 1e6;
}

std::string describe_timeline(const Timeline& timeline, const PipelineTimes& pipeline) {
  const TraceHeader& header = timeline.ranks.front().header;
  const ScheduleShape& schedule = pipeline.schedule;
  std::string text = timeline.steps.size() == 1
                         ? fmt::format("step {}", timeline.steps.front())
                         : fmt::format("steps {} to {}", timeline.steps.front(), timeline.steps.back());
  text += fmt::format(" of {} rank{} x {} thread{}: ", header.ranks, header.ranks == 1 ? "" : "s",
                      header.threads, header.threads == 1 ? "" : "s");
  if (header.mesh.data > 1) text += fmt::format("{} copies of ", header.mesh.data);
  if (schedule.stages > 1) text += fmt::format("{} in ", name_of(schedule.kind));
  text += fmt::format("{} stage{}", schedule.stages, schedule.stages == 1 ? "" : "s");
  if (schedule.chunks > 1) text += fmt::format(" of {} chunks", schedule.chunks);
  text += fmt::format(", {} microbatch{}", schedule.microbatches(), schedule.microbatches() == 1 ? "" : "es");
  if (header.runs > 1) text += fmt::format(", {} times over", header.runs);
  text += fmt::format("; {}", header.device);
  if (timeline.clock_error_ns > 0)
    text += fmt::format("; clocks of hosts agree to {:.3f} ms",
                        static_cast<double>(timeline.clock_error_ns) / 1e6);
  return text;
}

}  // namespace

std::string timeline_summary(const Timeline& timeline, const std::vector<PipelineTimes>& pipelines) {
  std::string text = describe_timeline(timeline, pipelines.front()) + "\n\n";
  std::vector<RankShares> ranks;
  for (const PipelineTimes& pipeline : pipelines) {
    const std::vector<RankShares> more = rank_shares(pipeline);
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  std::ranges::sort(ranks, {}, &RankShares::rank);
  text += shares_text(ranks) + "\n";
  for (const PipelineTimes& pipeline : pipelines) {
    const std::string copy = pipelines.size() > 1 ? fmt::format(" of copy {}", pipeline.data) : "";
    text += fmt::format(
        "step {:.4g} ms; bubble{}: measured {:.1f} %, replayed with the measured parts {:.1f} %, formula "
        "{:.1f} %\n"
        "processor time of the hosts{}: {:.1f} % of that of forward and backward\n",
        median_step_ms(pipeline), copy, 100.0 * pipeline.measured_share(), 100.0 * pipeline.replayed_share,
        100.0 * pipeline.formula_share, copy, 100.0 * pipeline.host_share());
  }
  std::uint64_t lost = 0;
  for (const RankTrace& rank : timeline.ranks) lost += rank.header.lost;
  if (lost > 0) text += fmt::format("{} spans had no room and are not shown; record fewer steps\n", lost);
  return text;
}

}  // namespace holdfast::report
