// Recorded steps as operations: what is lost to a rank whose delay is known.
#include "runtime/report/timeline_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/report/step_analysis.h"
#include "tests/report/made_up_trace.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t vote_ns = 300;

// Lets every gap before a forward or backward be a wait for its message, and the rest of a step one for the
// vote, which ends on all ranks when the last one has come.
std::vector<RankTrace> with_waits(std::vector<RankTrace> ranks) {
  for (const std::uint64_t step : {7u, 8u}) {
    std::int64_t last_ns = 0;
    for (RankTrace& rank : ranks) {
      std::int64_t free_ns = 1'000'000 * static_cast<std::int64_t>(step);  // its first forward
      std::vector<Span> waits;
      for (const Span& span : rank.spans) {
        if (span.step != step || !is_forward_or_backward(span.kind)) continue;
        if (span.begin.time_ns > free_ns) {
          waits.push_back(
              span_at(span.kind == SpanKind::forward ? SpanKind::wait_activation : SpanKind::wait_gradient,
                      step, free_ns, span.begin.time_ns));
          waits.back().chunk = span.chunk;
          waits.back().microbatch = span.microbatch;
        }
        free_ns = span.end.time_ns;
      }
      for (Span& span : rank.spans) {
        if (span.step == step && span.kind == SpanKind::wait_vote) span.begin.time_ns = free_ns;
      }
      rank.spans.insert(rank.spans.end(), waits.begin(), waits.end());
      last_ns = std::max(last_ns, free_ns);
    }
    for (RankTrace& rank : ranks) {
      for (Span& span : rank.spans) {
        if (span.step == step && (span.kind == SpanKind::wait_vote || span.kind == SpanKind::step))
          span.end.time_ns = last_ns + vote_ns;
      }
    }
  }
  return ranks;
}

// Returns a run of which this rank is from the same run with other durations.
std::vector<RankTrace> with_slow_rank(MadeUpRun run, int data, std::int64_t slow_ns) {
  std::vector<RankTrace> ranks = made_up_ranks(run);
  run.slow_ns = slow_ns;
  const std::vector<RankTrace> slow = made_up_ranks(run);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].header.coordinate.data == data) ranks[i] = slow[i];
  }
  return with_waits(std::move(ranks));
}

WhatIf answer_to(std::vector<RankTrace> ranks) {
  const Result<WhatIf> answer = ask_what_if(job_of(merge_ranks(std::move(ranks)).value()));
  EXPECT_TRUE(answer.ok()) << answer.error().message;
  return answer.ok() ? *answer : WhatIf();
}

double lost_ns(const WhatIf& answer, int rank) {
  return 1e9 * answer.lost[static_cast<std::size_t>(rank)].lost_s;
}

TEST(TimelineOperations, NothingIsLostWhereAllAreEqual) {
  for (const int stages : {1, 2, 4}) {
    const MadeUpRun run{.shape = {.stages = stages, .microbatches_per_lane = 4}, .data = 3};
    const WhatIf answer = answer_to(with_waits(made_up_ranks(run)));
    const double step_ns = 100.0 + (4 + stages - 1) * 3000.0 + vote_ns;
    EXPECT_NEAR(1e9 * answer.original_s, 2 * step_ns, 1e-3) << stages;
    EXPECT_NEAR(1e9 * answer.ideal_s, 2 * step_ns, 1e-3) << stages;
    EXPECT_THAT(answer.blamed, IsEmpty());
    for (int rank = 0; rank < 3 * stages; ++rank) EXPECT_NEAR(lost_ns(answer, rank), 0.0, 1e-3);
  }
}

// Each of its four forwards and backwards takes longer, in two steps.
TEST(TimelineOperations, ASlowReplica) {
  const MadeUpRun run{.shape = {.stages = 1, .microbatches_per_lane = 4}, .data = 4};
  const WhatIf answer = answer_to(with_slow_rank(run, 2, 500));
  EXPECT_NEAR(lost_ns(answer, 2), 2 * 4 * 2 * 500.0, 1e-3);
  EXPECT_NEAR(lost_ns(answer, 0), 0.0, 1e-3);
  EXPECT_THAT(answer.blamed, ElementsAre(2));
  EXPECT_NEAR(answer.worker_share, 1.0, 1e-9);
}

// One stage of three replicas is late by 5 us before its second forward. The stage after it waits for that,
// and all wait for the vote, but nobody else loses anything. Ideal is what the host takes before the first
// forward of a step, 100 ns.
TEST(TimelineOperations, ALateStage) {
  for (const int stage : {0, 1}) {
    const MadeUpRun run{.shape = {.kind = ScheduleKind::gpipe, .stages = 2, .microbatches_per_lane = 4},
                        .data = 3};
    std::vector<RankTrace> ranks = made_up_ranks(run);
    for (RankTrace& rank : ranks) {
      const MeshCoordinate& at = rank.header.coordinate;
      if (at.data != 1) continue;
      for (Span& span : rank.spans) {
        if (!is_forward_or_backward(span.kind) || span.step != 7) continue;
        // From the second forward of the stage on all is later, of the stage before it only the backwards.
        const bool later = at.pipeline >= stage ? span.kind != SpanKind::forward || span.microbatch >= 1
                                                : span.kind != SpanKind::forward;
        if (!later) continue;
        span.begin.time_ns += 5000;
        span.end.time_ns += 5000;
      }
    }
    ranks = with_waits(std::move(ranks));
    for (RankTrace& rank : ranks) {  // on the late rank it was no wait
      if (rank.header.coordinate.data != 1 || rank.header.coordinate.pipeline != stage) continue;
      std::erase_if(rank.spans, [](const Span& span) {
        return span.step == 7 && span.kind == SpanKind::wait_activation && span.microbatch == 1;
      });
    }
    const WhatIf answer = answer_to(std::move(ranks));
    for (int rank = 0; rank < 6; ++rank)
      EXPECT_NEAR(lost_ns(answer, rank), rank == 2 + stage ? 4900.0 : 0.0, 1e-3) << stage << " " << rank;
    EXPECT_THAT(answer.blamed, ElementsAre(2 + stage));
    EXPECT_EQ(answer.lost[static_cast<std::size_t>(2 + stage)].mostly, "host");
  }
}

// MadeUpRank adds spans of one rank's step 7, one after the other.
struct MadeUpRank {
  RankTrace trace = {};
  std::int64_t at_ns = 1000;

  MadeUpRank(int rank, const MeshShape& mesh, const MeshCoordinate& coordinate) {
    trace.header = {.recording = "00ff",
                    .rank = rank,
                    .ranks = mesh.active(),
                    .mesh = mesh,
                    .coordinate = coordinate,
                    .schedule = {.stages = mesh.pipeline, .microbatches_per_lane = 1}};
    trace.spans.push_back(span_at(SpanKind::step, 7, at_ns, at_ns));
  }
  Span& add(SpanKind kind, std::int64_t end_ns) {
    trace.spans.push_back(span_at(kind, 7, at_ns, end_ns));
    at_ns = trace.spans.front().end.time_ns = end_ns;
    return trace.spans.back();
  }
};

// Two ranks share every layer. The second takes 2 us longer before each exchange of slices; the first waits
// for it in the middle of its forward.
TEST(TimelineOperations, SlicesOfALayer) {
  const MeshShape mesh{.data = 2, .pipeline = 1, .tensor = 2};
  std::vector<RankTrace> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    const bool waits_long = rank == 0;
    MadeUpRank made(rank, mesh, {.data = rank / 2, .pipeline = 0, .tensor = rank % 2});
    const std::int64_t late_ns = rank < 2 ? 2000 : 0;  // what the first pair loses at each exchange
    Span forward = span_at(SpanKind::forward, 7, made.at_ns, 0);
    forward.chunk = 0;
    forward.microbatch = 0;
    for (int i = 0; i < 2; ++i) {
      const std::int64_t done_ns = made.at_ns + 3000 + (waits_long ? 0 : late_ns);
      made.at_ns = done_ns;
      made.add(SpanKind::wait_slices, done_ns + (waits_long ? late_ns : 0) + 100).bytes = 64;
    }
    forward.end.time_ns = made.at_ns + 3000;
    made.at_ns = forward.end.time_ns;
    made.trace.spans.push_back(forward);
    made.add(SpanKind::wait_vote, 1000 + 3 * 3000 + 2 * 2100 + vote_ns);
    ranks.push_back(made.trace);
  }
  const WhatIf answer = answer_to(std::move(ranks));
  EXPECT_NEAR(1e9 * answer.original_s, 3 * 3000 + 2 * 2100 + vote_ns, 1e-3);
  EXPECT_NEAR(lost_ns(answer, 1), 4000.0, 1e-3);
  for (const int rank : {0, 2, 3}) EXPECT_NEAR(lost_ns(answer, rank), 0.0, 1e-3) << rank;
  EXPECT_THAT(answer.blamed, ElementsAre(1));
}

// A rank is late at the begin of a step. Another one waits for its parameters, which it has not passed on, a
// third one comes as far as the reduction of gradients.
TEST(TimelineOperations, CollectivesWaitForTheLateRank) {
  const MeshShape mesh{.data = 3, .pipeline = 1, .tensor = 1};
  constexpr std::int64_t late_ns = 50'000;
  std::vector<RankTrace> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    MadeUpRank made(rank, mesh, {.data = rank, .pipeline = 0, .tensor = 0});
    const auto compute = [&](SpanKind kind, std::int64_t duration_ns) {
      Span& span = made.add(kind, made.at_ns + duration_ns);
      span.chunk = 0;
      span.microbatch = 0;
    };
    if (rank == 0) made.at_ns += late_ns;  // asleep
    if (rank == 1) made.add(SpanKind::wait_parameters, 1000 + late_ns - 5);
    if (rank == 1) made.at_ns += 5;
    compute(SpanKind::forward, 1000);
    compute(SpanKind::backward, 2000);
    made.add(SpanKind::wait_lanes, 1000 + late_ns + 3000 + 200).wave = 0;
    made.add(SpanKind::wait_vote, made.at_ns + vote_ns);
    made.at_ns += 5;  // as a host ordinarily takes
    compute(SpanKind::update, 400);
    ranks.push_back(made.trace);
  }
  const WhatIf answer = answer_to(std::move(ranks));
  EXPECT_NEAR(1e9 * answer.original_s, late_ns + 3000 + 200 + vote_ns + 400, 10.0);
  EXPECT_NEAR(lost_ns(answer, 0), static_cast<double>(late_ns), 10.0);
  EXPECT_NEAR(lost_ns(answer, 1), 0.0, 10.0);
  EXPECT_NEAR(lost_ns(answer, 2), 0.0, 10.0);
  EXPECT_THAT(answer.blamed, ElementsAre(0));
}

// The late rank has passed its parameters on before its host notes so, and then waits for the processor in a wait for
// lanes, while the rank that waited for them already computes: neither comes after the other.
TEST(TimelineOperations, ParametersArePassedOnBeforeTheLateRankNotesIt) {
  const MeshShape mesh{.data = 2, .pipeline = 1, .tensor = 1};
  for (const std::int64_t noted_ns :
       {-50, 50}) {  // the end of its sleep, after the end of the wait for its parameters
    constexpr std::int64_t late_ns = 50'000;
    std::vector<RankTrace> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      MadeUpRank made(rank, mesh, {.data = rank, .pipeline = 0, .tensor = 0});
      const auto compute = [&](SpanKind kind, std::int64_t duration_ns) {
        Span& span = made.add(kind, made.at_ns + duration_ns);
        span.chunk = 0;
        span.microbatch = 0;
      };
      if (rank == 0) {
        made.at_ns += late_ns + noted_ns;  // asleep
        made.add(SpanKind::wait_lanes, 1000 + late_ns + 200).wave = 0;
      } else {
        made.add(SpanKind::wait_parameters, 1000 + late_ns);
      }
      compute(SpanKind::forward, 100);
      compute(SpanKind::backward, 2000);
      made.add(SpanKind::wait_lanes, 1000 + late_ns + 2500).wave = 0;
      made.add(SpanKind::wait_vote, made.at_ns + vote_ns);
      made.at_ns += 5;  // as a host ordinarily takes
      compute(SpanKind::update, 400);
      ranks.push_back(made.trace);
    }
    const WhatIf answer = answer_to(std::move(ranks));
    EXPECT_NEAR(lost_ns(answer, 0), static_cast<double>(late_ns), 400.0) << noted_ns;
    EXPECT_NEAR(lost_ns(answer, 1), 0.0, 400.0) << noted_ns;
    EXPECT_THAT(answer.blamed, ElementsAre(0)) << noted_ns;
  }
}

// Two replicas of two lanes each. The first backward of the second lane waits for the sum of the first one,
// for which one replica is late.
TEST(TimelineOperations, ALaneWaitsForTheWaveBefore) {
  const MeshShape mesh{.data = 2, .pipeline = 1, .tensor = 1};
  constexpr std::int64_t late_ns = 20'000;
  std::vector<RankTrace> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    MadeUpRank made(rank, mesh, {.data = rank, .pipeline = 0, .tensor = 0});
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const auto add = [&](SpanKind kind, std::int64_t end_ns) {
        Span& span = made.add(kind, end_ns);
        span.chunk = 0;
        span.microbatch = microbatch;
      };
      made.at_ns += rank == 0 && microbatch == 0 ? late_ns : 10;
      add(SpanKind::forward, made.at_ns + 1000);
      if (microbatch == 1) add(SpanKind::wait_lanes, std::max(made.at_ns, 1000 + late_ns + 3000 + 300));
      add(SpanKind::backward, made.at_ns + 2000);
    }
    made.add(SpanKind::wait_lanes, 1000 + late_ns + 6110).wave = 1;
    made.add(SpanKind::wait_vote, made.at_ns + vote_ns);
    ranks.push_back(made.trace);
  }
  const WhatIf answer = answer_to(std::move(ranks));
  EXPECT_NEAR(lost_ns(answer, 0), static_cast<double>(late_ns), 500.0);
  EXPECT_NEAR(1e9 * answer.lost[1].alone_s, 0.0, 500.0);
  EXPECT_THAT(answer.blamed, ElementsAre(0));
}

}  // namespace
}  // namespace holdfast::test
