#include "parallel/pipeline/stage_split.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/core/check.h"

namespace holdfast::parallel {
namespace {

// Something that gets layers: a stage, or a part of one.
struct Share {
  double ends = 0.0;  // cost of what it has beside layers
  int layers = 0;
  double cost() const { return ends + layers; }
};

// One after another to the cheapest, of equals to the last.
void deal_out(int layers, std::vector<Share>& shares) {
  for (int layer = 0; layer < layers; ++layer) {
    Share* cheapest = &shares.front();
    for (Share& share : shares) {
      if (share.cost() <= cheapest->cost()) cheapest = &share;
    }
    ++cheapest->layers;
  }
}

StageSplit split_by_counts(int stages, int chunks, std::span<const std::int64_t> counts) {
  StageSplit split{.stages = stages, .chunks = chunks, .parts = {}};
  int first = 0;
  for (const std::int64_t count : counts) {
    split.parts.push_back({.first = first, .count = static_cast<int>(count)});
    first = split.parts.back().end();
  }
  return split;
}

}  // namespace

const PartLayers& StageSplit::of(int stage, int chunk) const {
  HF_CHECK(0 <= stage && stage < stages && 0 <= chunk && chunk < chunks);
  return parts[static_cast<std::size_t>(chunk * stages + stage)];
}

StageSplit split_layers(int layers, int stages, int chunks, const EndCosts& ends) {
  const int part_count = stages * chunks;
  HF_CHECK(layers >= 1 && stages >= 1 && chunks >= 1 && part_count <= layers + 2);
  HF_CHECK(ends.embedding >= 0.0 && ends.head >= 0.0);
  std::vector<Share> parts(static_cast<std::size_t>(part_count), Share{.layers = 1});
  parts.front() = {.ends = ends.embedding};
  parts.back().layers = 0;
  parts.back().ends += ends.head;

  std::vector<Share> shares(static_cast<std::size_t>(stages));
  int left = layers;
  for (int part = 0; part < part_count; ++part) {
    const Share& least = parts[static_cast<std::size_t>(part)];
    Share& stage = shares[static_cast<std::size_t>(part % stages)];
    stage.ends += least.ends;
    stage.layers += least.layers;
    left -= least.layers;
  }
  deal_out(left, shares);

  std::vector<std::int64_t> counts(parts.size());
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<Share> own;
    int more = shares[static_cast<std::size_t>(stage)].layers;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      own.push_back(parts[static_cast<std::size_t>(chunk * stages + stage)]);
      more -= own.back().layers;
    }
    deal_out(more, own);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      counts[static_cast<std::size_t>(chunk * stages + stage)] = own[static_cast<std::size_t>(chunk)].layers;
    }
  }
  return split_by_counts(stages, chunks, counts);
}

}  // namespace holdfast::parallel
