// Layout: checks which combinations of ranks, degrees and shapes a run can have; all rules are here. The
// functions are pure. The trainer refuses to start with the problems as its message; a planner skips the
// layouts that have any.
//
// Degrees (data, pipeline, tensor) say where a run executes; lanes and tensor lanes are its logical shape and
// decide its bits (DESIGN: "Lanes"). The model is passed as numbers, because this layer does not know models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/group/mesh.h"
#include "parallel/pipeline/schedule.h"

namespace holdfast::parallel {

// Requested layout, as in the config.
struct Layout {
  std::int64_t ranks = 1;  // available ranks, spares included
  std::int64_t data = 0;   // copies of the model; 0: as many as there are ranks for
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t spares = 0;
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;
  std::int64_t chunks = 1;  // chunks of a stage
};

// Facts of the run that the rules need; every number is at least 1.
struct LayoutFacts {
  std::int64_t layers = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t feed_forward = 1;
  std::int64_t vocabulary = 1;  // rows of the embedding, padding included
  std::int64_t sequence_length = 1;
  std::int64_t lanes = 1;
  std::int64_t lane_block = 1;
  std::int64_t tensor_lanes = 1;
};

struct LayoutProblem {
  std::string key;       // key to change first; "" for the number of ranks
  std::string sentence;  // says what is wrong, where, what was expected and what to do
};

// Returns every rule that is broken, in the order of this list; none: the layout can run.
//   - the tensor degree and the tensor lanes K are powers of two, and the degree divides K
//   - K divides everything that is split: heads, key/value heads, feed-forward width, vocabulary and
//     sequence length
//   - every part of the pipeline (a chunk of a stage) has a layer, the embedding or the head: at most
//     layers + 2 parts; several chunks only when interleaved, and of several stages
//   - ranks without spares are data x pipeline x tensor
//   - the lanes are whole blocks of lanes
//   - every data-parallel rank has a lane, and they fit into one exchange
std::vector<LayoutProblem> layout_problems(const Layout& layout, const LayoutFacts& facts);

// Returns the mesh shape of a layout without problems.
MeshShape mesh_shape(const Layout& layout);

}  // namespace holdfast::parallel
