// The rules of a layout: which combinations of ranks, degrees and shapes a run can have, all in one place.
// Pure; the trainer refuses a start with the sentences, a planner leaves out the layouts that have any.
//
// Degrees (data, pipeline, tensor) say where a run executes; lanes and tensor lanes are its logical shape and
// decide its bits (DESIGN: "Lanes"). The model comes as numbers, because this layer knows no models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/group/mesh.h"
#include "parallel/pipeline/schedule.h"

namespace holdfast::inline parallel {

// What is asked for, as the config has it.
struct Layout {
  std::int64_t ranks = 1;  // at hand
  std::int64_t data = 0;   // 0: as many copies of the model as there are ranks for
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t spares = 0;
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;
  std::int64_t chunks = 1;  // of a stage
};

// Of the run: every number is at least 1.
struct LayoutFacts {
  std::int64_t layers = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t feed_forward = 1;
  std::int64_t vocabulary = 1;  // rows of the embedding, padding included
  std::int64_t sequence_length = 1;
  std::int64_t lanes = 1;
  std::int64_t tensor_lanes = 1;
};

struct LayoutProblem {
  std::string key;       // that the sentence asks to change first; "" for the number of ranks
  std::string sentence;  // what, where, what was expected, what to do
};

// Every rule that is broken, in the order of this list; none: the layout can run.
//   - the tensor degree and the tensor lanes K are powers of two, and the degree divides K
//   - K divides everything that is split: heads, key/value heads, feed-forward width, vocabulary and
//     sequence length
//   - every part of the pipeline (a chunk of a stage) has a layer, the embedding or the head: at most
//     layers + 2 parts; several chunks only when interleaved, and of several stages
//   - ranks without spares are data x pipeline x tensor
//   - every data-parallel rank has a lane, and they fit into one exchange
std::vector<LayoutProblem> layout_problems(const Layout& layout, const LayoutFacts& facts);

// Of a layout without problems.
MeshShape mesh_shape(const Layout& layout);

}  // namespace holdfast::inline parallel
