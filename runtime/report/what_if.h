// What-if analysis: how long a job would have taken had some of its operations taken as long as such
// operations ideally do, and so the seconds that are lost to each of its ranks. Pure.
//
// A job is a graph of operations. One begins when all that it comes after have ended; those that meet, as the
// members of a collective or a send and its receive do, end only after all of them have begun. Each has a
// duration of its own, in which it waits for nobody. A replay adds these durations up along the graph, of
// some operations the ideal ones: the mean or the median of all operations of the same kind.
//
// The quantities are those of Lin et al. 2025, "Understanding Stragglers in Large Model Training Using
// What-if Analysis" (OSDI'25, arXiv 2505.05713), with T the replayed duration:
//   S    slowdown                T as it was / T with all operations ideal
//   S_w  slowdown by a worker    T with all operations ideal but its own / T with all ideal; taken as the
//                                smaller one of those by its replica and by its stage, as the paper does
//   S_t  slowdown by a kind      the same for the operations of that kind
//   M_W  share of the workers    how much of T as it was - T with all ideal is gone when the operations of the
//                                slowest 3 % of the workers, by S_w, are ideal
//   M_S  share of the last stage the same for the operations of all workers of the last stage
// A job straggles from S = 1.1 on, and workers are to blame for it from M_W = 0.5 on.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::report {

// Returns the number of a worker, kind, operation or meeting as an index.
inline std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

enum class IdealDuration { mean, median };

struct OperationKind {
  std::string name = {};  // kinds of one name count as one in S_t
  IdealDuration ideal = IdealDuration::median;
};

// One rank of the job; of a tensor group that acts as one, one rank stands for all.
struct JobWorker {
  int rank = 0;
  int replica =
      0;  // ranks of one replica pass microbatches on to each other; tensor slices count as replicas
  int stage = 0;
};

struct Operation {
  int worker = 0;           // index into TracedJob::workers
  int kind = 0;             // index into TracedJob::kinds
  int section = 0;          // operations of different sections have nothing to do with each other
  int meeting = -1;         // number of those that it meets, below TracedJob::meetings; -1: none
  double duration_s = 0.0;  // of its own, at least 0
};

struct TracedJob {
  std::vector<JobWorker> workers = {};
  std::vector<OperationKind> kinds = {};
  std::vector<Operation> operations = {};
  std::vector<std::pair<int, int>> order = {};  // the second operation comes after the first
  int meetings = 0;
  int sections = 1;  // T is the sum of theirs, each from its first begin to its last end
  int steps = 1;     // for the text
};

// LostTime is what the job loses to a worker.
struct LostTime {
  int worker = 0;
  double lost_s = 0.0;   // T as it was - T with its operations ideal: what another rank in its place saves
  double alone_s = 0.0;  // T with all ideal but its own - T with all ideal: what it costs by itself
  std::string mostly =
      {};  // name of the kind of its operations to which most is lost; empty: nothing is lost
};

struct WhatIf {
  double original_s = 0.0;                                          // T as it was
  double ideal_s = 0.0;                                             // T with all operations ideal
  double slowdown = 1.0;                                            // S
  double worker_share = 0.0;                                        // M_W
  double last_stage_share = 0.0;                                    // M_S; 0 where there is one stage
  std::vector<double> worker_slowdowns = {};                        // S_w, by worker
  std::vector<std::pair<std::string, double>> kind_slowdowns = {};  // S_t, by name; the largest first
  std::vector<int> slowest = {};                                    // workers of M_W, the slowest first
  // The fewest of the slowest workers that explain half of what is lost; empty: none is to blame.
  std::vector<int> blamed = {};
  std::vector<LostTime> lost = {};  // of the 64 slowest workers, by rank
};

// Replays the job once for each replica, stage and kind, and twice for each of at most 64 workers; each time
// takes as long as there are operations and pairs in their order.
// ExitCode::data when operations wait for each other in a circle.
Result<WhatIf> ask_what_if(const TracedJob& job);

// Returns several lines for a console: how much was lost and to whom, and a table of the ranks.
std::string what_if_summary(const TracedJob& job, const WhatIf& answer);
// Returns one JSON object with all of the answer.
std::string what_if_json(const TracedJob& job, const WhatIf& answer);

}  // namespace holdfast::report
