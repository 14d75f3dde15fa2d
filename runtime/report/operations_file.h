// Operations file: what the ranks of any trainer did and when, as text: tab-separated columns, of which the
// first line has the names, and a line for each operation.
//
//   step  rank  replica  stage  chunk  kind             begin_s   duration_s
//   12    0     0        0      0      forward-compute  3.071250  0.014125
//
// Other columns are allowed and mean nothing. Kinds are those of Megatron-style trainers, as ByteDance's
// published traces have them (docs/timeline.md lists them); chunk is that of the stage, or -1 where an
// operation is of no chunk. Times are seconds of one clock. Of ranks that act as one (tensor parallelism), the
// file has one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/report/what_if.h"

namespace holdfast::report {

enum class TracedKind {
  forward_compute,
  backward_compute,
  forward_send,
  forward_receive,
  backward_send,
  backward_receive,
  gather_parameters,
  reduce_gradients,
  reduce_norm_gradients,
  reduce_embedding_gradients,
  reduce_separate_gradients,
  clip_gradients,
  optimizer,
  collect_garbage,
  count
};

struct TracedOperation {
  std::uint64_t step = 0;
  int rank = 0, replica = 0, stage = 0;
  int chunk = -1;
  TracedKind kind = TracedKind::forward_compute;
  double begin_s = 0.0, end_s = 0.0;
};

// ExitCode::data when the text is no such file; `path` is for the sentence.
Result<std::vector<TracedOperation>> parse_operations(std::string_view text, const std::string& path);

// Puts the operations of a job in their order: those of a rank by its streams (computation, each direction of
// the pipeline's messages, data-parallel communication) and by what they need of each other; sends meet
// receives, collectives meet over their ranks. Ideal are the mean of what computes, because microbatches
// differ, and the median of what communicates, which may have waited for something unknown. ExitCode::data
// when an operation has no other end, or a rank changes its place.
Result<TracedJob> job_of(std::vector<TracedOperation> operations, const std::string& path);

}  // namespace holdfast::report
