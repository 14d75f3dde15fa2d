#include "parallel/pipeline/stage_split.h"

#include <algorithm>
#include <numeric>

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

double StageSplit::part_cost(int stage, int chunk, const EndCosts& ends) const {
  return of(stage, chunk).count + (has_embedding(stage, chunk) ? ends.embedding : 0.0) +
         (has_head(stage, chunk) ? ends.head : 0.0);
}

double StageSplit::stage_cost(int stage, const EndCosts& ends) const {
  double cost = 0.0;
  for (int chunk = 0; chunk < chunks; ++chunk) cost += part_cost(stage, chunk, ends);
  return cost;
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

Result<StageSplit> split_as_given(std::span<const std::int64_t> layers_of_part, int layers, int stages,
                                  int chunks) {
  const std::ptrdiff_t part_count = std::ptrdiff_t{stages} * chunks;
  if (std::ssize(layers_of_part) != part_count) {
    return fail(ExitCode::config,
                "parallel.pipeline_layers has {} numbers, expected {}: one for each of the {} chunks of {} "
                "stages; correct the list or leave it out",
                layers_of_part.size(), part_count, chunks, stages);
  }
  for (std::ptrdiff_t part = 0; part < part_count; ++part) {
    const std::int64_t count = layers_of_part[static_cast<std::size_t>(part)];
    const bool has_end = part == 0 || part + 1 == part_count;
    if (count < (has_end ? 0 : 1)) {
      return fail(
          ExitCode::config,
          "parallel.pipeline_layers[{}] = {}, expected at least {}: {}; raise it or leave the list out", part,
          count, has_end ? 0 : 1,
          has_end ? "a part cannot have less than nothing"
                  : "only the first part, with the embedding, and the last, with the head, can do without "
                    "layers");
    }
  }
  const std::int64_t sum = std::accumulate(layers_of_part.begin(), layers_of_part.end(), std::int64_t{0});
  if (sum != layers) {
    return fail(ExitCode::config,
                "parallel.pipeline_layers adds up to {}, expected model.layers = {}: correct the list or "
                "leave it out",
                sum, layers);
  }
  return split_by_counts(stages, chunks, layers_of_part);
}

}  // namespace holdfast::parallel
