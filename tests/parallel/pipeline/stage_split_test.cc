#include "parallel/pipeline/stage_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

namespace holdfast::test {
namespace {

std::vector<int> counts_of(const StageSplit& split) {
  std::vector<int> counts;
  for (const PartLayers& part : split.parts) counts.push_back(part.count);
  return counts;
}

// Returns the cost of the most expensive stage, from the layers of all parts.
double dearest_stage(const std::vector<int>& counts, int stages, const EndCosts& ends) {
  std::vector<double> costs(static_cast<std::size_t>(stages));
  for (std::size_t part = 0; part < counts.size(); ++part) costs[part % costs.size()] += counts[part];
  costs.front() += ends.embedding;
  costs.back() += ends.head;
  return std::ranges::max(costs);
}

TEST(StageSplit, LayersByCost) {
  struct Case {
    int layers, stages, chunks;
    EndCosts ends;
    std::vector<int> counts;
  };
  const std::vector<Case> cases = {
      {12, 1, 1, {}, {12}},
      {12, 4, 1, {}, {3, 3, 3, 3}},
      {13, 4, 1, {}, {3, 3, 3, 4}},  // later stages keep fewer activations
      {13, 4, 1, {.head = 0.1}, {3, 3, 4, 3}},
      {12, 4, 1, {.embedding = 0.1, .head = 2.0}, {3, 3, 4, 2}},
      {12, 4, 1, {.head = 5.4}, {4, 4, 4, 0}},  // GPT-2's head on a stage of its own
      {2, 4, 1, {.embedding = 0.1, .head = 1.0}, {0, 1, 1, 0}},
      {1, 1, 3, {}, {0, 1, 0}},
      {8, 2, 2, {}, {2, 2, 2, 2}},
      {10, 4, 2, {}, {1, 1, 1, 1, 1, 1, 2, 2}},  // 2, 2, 3 and 3 layers on the stages
      {9, 2, 2, {.head = 2.0}, {2, 3, 3, 1}},
  };
  for (const Case& c : cases) {
    const StageSplit split = split_layers(c.layers, c.stages, c.chunks, c.ends);
    EXPECT_EQ(counts_of(split), c.counts) << c.layers << " layers on " << c.stages << " x " << c.chunks;
    int next = 0;
    for (const PartLayers& part : split.parts) {
      EXPECT_EQ(part.first, next);
      next = part.end();
    }
    EXPECT_EQ(next, c.layers);
  }
}

TEST(StageSplit, PartsOfAStage) {
  const StageSplit split = split_layers(10, 2, 2, {.embedding = 0.5, .head = 1.5});
  EXPECT_EQ(counts_of(split), (std::vector<int>{2, 3, 3, 2}));
  EXPECT_EQ(split.of(0, 1), (PartLayers{.first = 5, .count = 3}));
  EXPECT_TRUE(split.has_embedding(0, 0) && split.has_head(1, 1));
  EXPECT_FALSE(split.has_embedding(0, 1) || split.has_embedding(1, 0) || split.has_head(1, 0) ||
               split.has_head(0, 1));
  EXPECT_DOUBLE_EQ(dearest_stage(counts_of(split), 2, {.embedding = 0.5, .head = 1.5}), 6.5);
}

// Against all splits that there are.
TEST(StageSplit, NoSplitHasACheaperDearestStage) {
  for (int layers = 1; layers <= 9; ++layers) {
    for (int stages = 1; stages <= 4; ++stages) {
      for (int chunks = 1; chunks <= 2; ++chunks) {
        if (stages * chunks > layers + 2) continue;
        for (const EndCosts& ends :
             {EndCosts{}, EndCosts{0.3, 1.7}, EndCosts{2.5, 0.0}, EndCosts{0.1, 6.0}}) {
          double best = std::numeric_limits<double>::infinity();
          std::vector<int> counts;
          const std::function<void(int)> search = [&](int left) {
            if (std::ssize(counts) == stages * chunks) {
              const bool has_empty_part =
                  counts.size() > 2 && std::find(counts.begin() + 1, counts.end() - 1, 0) != counts.end() - 1;
              if (left == 0 && !has_empty_part) best = std::min(best, dearest_stage(counts, stages, ends));
              return;
            }
            for (int count = 0; count <= left; ++count) {
              counts.push_back(count);
              search(left - count);
              counts.pop_back();
            }
          };
          search(layers);
          EXPECT_DOUBLE_EQ(dearest_stage(counts_of(split_layers(layers, stages, chunks, ends)), stages, ends),
                           best)
              << layers << " layers on " << stages << " x " << chunks << ", head " << ends.head;
        }
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::test
