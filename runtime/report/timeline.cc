#include "runtime/report/timeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "runtime/os/foreign_text.h"

namespace holdfast::report {
namespace {

bool is_over(const Span& span) {
  return span.begin.time_ns > 0 && span.end.time_ns >= span.begin.time_ns;
}

// The span of a step is the first that is opened in it, so where it is all others are, too.
std::set<std::uint64_t> whole_steps(const RankTrace& rank) {
  std::set<std::uint64_t> steps;
  for (const Span& span : rank.spans) {
    if (span.kind == SpanKind::step) steps.insert(span.step);
  }
  return steps;
}

void keep_steps(Timeline& timeline) {
  for (RankTrace& rank : timeline.ranks) {
    std::erase_if(rank.spans,
                  [&](const Span& span) { return !std::ranges::binary_search(timeline.steps, span.step); });
  }
}

std::string shown_steps(const std::vector<std::uint64_t>& steps) {
  return steps.size() == 1 ? fmt::format("step {}", steps.front())
                           : fmt::format("steps {} to {}", steps.front(), steps.back());
}

Result<void> check_belong_together(const std::vector<RankTrace>& ranks) {
  const TraceHeader& first = ranks.front().header;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const TraceHeader& header = ranks[i].header;
    if (header.rank == static_cast<int>(i) && header.recording == first.recording &&
        header.ranks == static_cast<int>(ranks.size()) && header.mesh.active() <= header.ranks)
      continue;
    return fail(ExitCode::data,
                "the trace of rank {} is of rank {} of another recording than that of rank 0: a start of the "
                "run did not write all of its files; record the steps again (trace.first_step, trace.steps)",
                i, header.rank);
  }
  return {};
}

Result<std::uint64_t> parse_step(std::string_view text, const std::string& whole) {
  std::uint64_t step = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error == std::errc() && rest == text.data() + text.size() && step > 0) return step;
  return fail(ExitCode::config, "--steps must be a step or a range such as 3..5, got \"{}\"", whole);
}

using Direction = std::tuple<SpanKind, int, int>;  // what, from, to
using Messages = std::map<Direction, std::vector<Span>>;

SpanKind sent_as(SpanKind received) {
  return received == SpanKind::receive_activation ? SpanKind::send_activation : SpanKind::send_gradient;
}

}  // namespace

Result<StepRange> parse_step_range(const std::string& text) {
  const std::size_t dots = text.find("..");
  StepRange range;
  HF_TRY(range.first, parse_step(std::string_view(text).substr(0, dots), text));
  range.last = range.first;
  if (dots != std::string::npos) {
    HF_TRY(range.last, parse_step(std::string_view(text).substr(dots + 2), text));
  }
  if (range.first <= range.last) return range;
  return fail(ExitCode::config, "--steps {} ends before it begins; write {}..{}", text, range.last,
              range.first);
}

Result<Timeline> merge_ranks(std::vector<RankTrace> ranks) {
  HF_TRY_VOID(check_belong_together(ranks));
  Timeline timeline{.ranks = std::move(ranks), .steps = {}};
  std::map<std::uint64_t, std::size_t> ranks_with;
  for (RankTrace& rank : timeline.ranks) {
    std::erase_if(rank.spans, [](const Span& span) { return !is_over(span); });
    for (Span& span : rank.spans) {
      span.begin.time_ns += rank.header.clock.offset_ns;
      span.end.time_ns += rank.header.clock.offset_ns;
    }
    timeline.clock_error_ns = std::max(timeline.clock_error_ns, rank.header.clock.error_ns);
    for (const std::uint64_t step : whole_steps(rank)) ++ranks_with[step];
  }
  for (const auto& [step, count] : ranks_with) {
    if (count == timeline.ranks.size()) timeline.steps.push_back(step);
  }
  if (timeline.steps.empty()) {
    return fail(
        ExitCode::data,
        "no step was recorded whole on all ranks: the run ended in the first, or there was no room for "
        "so many spans; record fewer or other steps (trace.first_step, trace.steps)");
  }
  keep_steps(timeline);
  return timeline;
}

Result<Timeline> select_steps(Timeline timeline, const StepRange& range) {
  const std::string recorded = shown_steps(timeline.steps);
  std::erase_if(timeline.steps, [&](std::uint64_t step) { return step < range.first || step > range.last; });
  if (timeline.steps.empty()) {
    return fail(ExitCode::config, "--steps {}..{}: none of them was recorded, the trace has {}", range.first,
                range.last, recorded);
  }
  keep_steps(timeline);
  return timeline;
}

Result<Timeline> read_timeline(Env& env, const RunPaths& paths) {
  const auto read_rank = [&](int rank) -> Result<RankTrace> {
    HF_TRY(const FileStatus file, env.status(paths.trace(rank)));
    if (!file.exists) {
      return fail(
          ExitCode::data,
          "{} is missing: that rank did not write its trace, or wrote it on the disk of its host; bring "
          "the files of all hosts together",
          paths.trace(rank));
    }
    HF_TRY(const std::string text, read_text_within(env, paths.trace(rank), text_limits::trace));
    return parse_trace(text, paths.trace(rank));
  };
  HF_TRY(const FileStatus directory, env.status(paths.trace()));
  if (!directory.exists) {
    return fail(
        ExitCode::config,
        "{} holds no trace. Train with --trace.steps=3 to record three steps, from trace.first_step on; "
        "any number of ranks, on this run or a new one",
        paths.directory);
  }
  std::vector<RankTrace> ranks;
  HF_TRY(ranks.emplace_back(), read_rank(0));
  for (int rank = 1; rank < ranks.front().header.ranks; ++rank) {
    HF_TRY(RankTrace trace, read_rank(rank));
    ranks.push_back(std::move(trace));
  }
  return merge_ranks(std::move(ranks));
}

std::vector<Transfer> transfers_of(const Timeline& timeline, std::uint64_t step) {
  Messages sent, received;
  for (const RankTrace& rank : timeline.ranks) {
    for (const Span& span : rank.spans) {
      if (span.step != step) continue;
      if (span.kind == SpanKind::send_activation || span.kind == SpanKind::send_gradient)
        sent[{span.kind, rank.header.rank, span.peer}].push_back(span);
      if (span.kind == SpanKind::receive_activation || span.kind == SpanKind::receive_gradient)
        received[{sent_as(span.kind), span.peer, rank.header.rank}].push_back(span);
    }
  }
  std::vector<Transfer> transfers;
  for (const auto& [direction, messages] : sent) {
    const std::vector<Span>& arrived = received[direction];
    for (std::size_t i = 0; i < std::min(messages.size(), arrived.size()); ++i) {
      transfers.push_back({.source = std::get<1>(direction),
                           .target = std::get<2>(direction),
                           .sent = messages[i],
                           .received = arrived[i]});
    }
  }
  return transfers;
}

}  // namespace holdfast::report
