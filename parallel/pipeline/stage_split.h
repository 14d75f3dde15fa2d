// A stage split assigns layers to every part of a pipeline (schedule.h numbers the parts). The embedding goes
// with the first part, the final norm, the head and the cross-entropy with the last; either may be a part
// without layers. Pure: ranks, planner and checkpoints compute the same split. A split moves work, never a
// bit.
#pragma once

#include <vector>

namespace holdfast::parallel {

// Costs of the ends of the model, in units of one layer, for one microbatch forward and backward.
struct EndCosts {
  double embedding = 0.0;
  double head = 0.0;
};

struct PartLayers {
  int first = 0;
  int count = 0;
  int end() const { return first + count; }
  bool operator==(const PartLayers&) const = default;
};

struct StageSplit {
  int stages = 1;
  int chunks = 1;                 // per stage
  std::vector<PartLayers> parts;  // [chunk * stages + stage], in the order of layers
  const PartLayers& of(int stage, int chunk) const;
  bool has_embedding(int stage, int chunk) const { return stage == 0 && chunk == 0; }
  bool has_head(int stage, int chunk) const { return stage == stages - 1 && chunk == chunks - 1; }
};

// Returns the split with the lowest cost of the most expensive stage, and among those the one with the lowest
// cost of the most expensive part on each stage. Exact: layers cost the same, so neither stages nor parts
// compete for particular ones, and giving one layer after another to the cheapest stage is optimal. Of
// equally cheap stages the later one gets it, because it keeps fewer activations in 1f1b. Requires at least 1
// layer and stages * chunks <= layers + 2 (layout.h).
StageSplit split_layers(int layers, int stages, int chunks, const EndCosts& ends);

}  // namespace holdfast::parallel
