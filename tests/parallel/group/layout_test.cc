#include "parallel/group/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;

// A model that up to 4 tensor lanes can split.
constexpr LayoutFacts small = {.layers = 4,
                               .heads = 8,
                               .kv_heads = 4,
                               .feed_forward = 192,
                               .vocabulary = 256,
                               .sequence_length = 64,
                               .lanes = 8,
                               .tensor_lanes = 4};

TEST(Layout, LayoutsThatCanRun) {
  struct Case {
    Layout layout;
    MeshShape shape;
  };
  const std::vector<Case> cases = {
      {{}, {}},
      {{.ranks = 8}, {.data = 8}},
      {{.ranks = 8, .data = 2, .pipeline = 2, .tensor = 2}, {.data = 2, .pipeline = 2, .tensor = 2}},
      {{.ranks = 13, .pipeline = 3, .tensor = 4, .spares = 1}, {.pipeline = 3, .tensor = 4, .spares = 1}},
      {{.ranks = 6, .pipeline = 6}, {.pipeline = 6}},  // embedding, four layers, head
      {{.ranks = 2, .pipeline = 2, .schedule = ScheduleKind::interleaved, .chunks = 3}, {.pipeline = 2}},
      {{.ranks = 3, .data = 3}, {.data = 3}},  // does not divide the lanes
      {{.ranks = 9, .spares = 1}, {.data = 8, .spares = 1}},
  };
  for (const Case& c : cases) {
    const std::vector<LayoutProblem> problems = layout_problems(c.layout, small);
    EXPECT_TRUE(problems.empty()) << problems.front().sentence;
    const MeshShape shape = mesh_shape(c.layout);
    EXPECT_EQ(shape.data, c.shape.data);
    EXPECT_EQ(shape.pipeline, c.shape.pipeline);
    EXPECT_EQ(shape.tensor, c.shape.tensor);
    EXPECT_EQ(shape.spares, c.shape.spares);
    EXPECT_EQ(shape.ranks(), c.layout.ranks);
  }
}

struct Refused {
  Layout layout;
  LayoutFacts facts;
  const char* key;
  const char* sentence;
};

// Breaks one rule and no other.
void expect_refused(const std::vector<Refused>& cases) {
  for (const Refused& c : cases) {
    const std::vector<LayoutProblem> problems = layout_problems(c.layout, c.facts);
    ASSERT_EQ(problems.size(), 1U) << c.sentence;
    EXPECT_EQ(problems[0].key, c.key);
    EXPECT_THAT(problems[0].sentence, HasSubstr(c.sentence));
  }
}

LayoutFacts with(void (*change)(LayoutFacts&)) {
  LayoutFacts facts = small;
  change(facts);
  return facts;
}

TEST(Layout, TensorLanesSplitEverythingEvenly) {
  expect_refused({
      {{.ranks = 3, .tensor = 3},
       small,
       "parallel.tensor",
       "parallel.tensor = 3 is no power of two: every rank holds one subtree of the slices; set it to 2"},
      {{.ranks = 8, .tensor = 8},
       small,
       "parallel.tensor",
       "parallel.tensor = 8 does not divide parallel.tensor_lanes = 4: every rank needs a slice; lower "
       "parallel.tensor to 4, or give more parallel.tensor_lanes (a run that is resumed is then cut anew)"},
      {{},
       with([](LayoutFacts& facts) { facts.tensor_lanes = 6; }),
       "parallel.tensor_lanes",
       "parallel.tensor_lanes = 6 is no power of two: slices are added as a binary tree; give 4"},
      {{},
       with([](LayoutFacts& facts) { facts.heads = 6; }),
       "parallel.tensor_lanes",
       "parallel.tensor_lanes = 4 (left out, it is parallel.tensor) does not divide model.heads = 6: every "
       "slice has the same number of heads; give at most 2 tensor lanes"},
      {{},
       with([](LayoutFacts& facts) { facts.kv_heads = 1; }),
       "parallel.tensor_lanes",
       "parallel.tensor_lanes = 4 (left out, it is parallel.tensor) does not divide model.kv_heads = 1: "
       "every slice has the key/value heads of its heads; give at most 1 tensor lane"},
      {{},
       with([](LayoutFacts& facts) { facts.feed_forward = 190; }),
       "parallel.tensor_lanes",
       "does not divide model.feed_forward = 190"},
      {{},
       with([](LayoutFacts& facts) { facts.vocabulary = 50; }),
       "parallel.tensor_lanes",
       "does not divide model.vocabulary = 50 (with padding)"},
      {{},
       with([](LayoutFacts& facts) { facts.sequence_length = 62; }),
       "parallel.tensor_lanes",
       "does not divide training.sequence_length = 62"},
  });
}

TEST(Layout, LanesAreWholeBlocks) {
  expect_refused(
      {{{},
        with([](LayoutFacts& facts) { facts.lanes = 8, facts.lane_block = 6; }),
        "parallel.lane_block",
        "parallel.lane_block = 6 does not divide parallel.lanes = 8: every block has as many lanes; "
        "give 2, or leave it out"}});
}

TEST(Layout, EveryPartOfThePipelineHasSomething) {
  expect_refused({
      {{.ranks = 7, .pipeline = 7},
       small,
       "parallel.pipeline",
       "parallel.pipeline = 7 is more than model.layers = 4 + 2: every stage needs a layer, the embedding or "
       "the head; lower parallel.pipeline to at most 6"},
      {{.ranks = 2, .pipeline = 2, .chunks = 2},
       small,
       "parallel.pipeline_chunks",
       "parallel.pipeline_chunks = 2 needs parallel.pipeline_schedule = interleaved, got 1f1b"},
      {{.ranks = 2, .pipeline = 2, .schedule = ScheduleKind::interleaved, .chunks = 4},
       small,
       "parallel.pipeline_chunks",
       "parallel.pipeline x pipeline_chunks = 2 x 4 is more than model.layers = 4 + 2: every chunk needs a "
       "layer, the embedding or the head; lower parallel.pipeline_chunks to at most 3"},
      {{.chunks = 0}, small, "parallel.pipeline_chunks", "parallel.pipeline_chunks = 0 must be at least 1"},
  });
}

TEST(Layout, EveryRankHasItsPlace) {
  expect_refused({
      {{.pipeline = 0}, small, "parallel.pipeline", "parallel.pipeline = 0 must be at least 1"},
      {{.tensor = -1}, small, "parallel.tensor", "parallel.tensor = -1 must be at least 1"},
      {{.data = -1}, small, "parallel.data", "parallel.data = -1 must be at least 0"},
      {{.spares = -1}, small, "elastic.spares", "elastic.spares = -1 must be at least 0"},
      {{.ranks = 2, .spares = 2},
       small,
       "elastic.spares",
       "2 ranks were started, 2 of them spares (elastic.spares): none is left to compute; start at least 3, "
       "or lower elastic.spares"},
      {{.ranks = 2, .data = 1},
       small,
       "parallel.data",
       "2 ranks were started, but parallel.data x tensor x pipeline = 1 x 1 x 1 = 1: start with mpirun -np "
       "1, or leave parallel.data out"},
      {{.ranks = 8, .data = 2, .pipeline = 3, .spares = 1},
       small,
       "parallel.data",
       "8 ranks were started, 1 of them a spare (elastic.spares), but parallel.data x tensor x pipeline = 2 "
       "x 1 x 3 = 6: start with mpirun -np 7, or leave parallel.data out"},
      {{.ranks = 3, .pipeline = 2},
       small,
       "",
       "3 ranks were started, which is no multiple of parallel.tensor x pipeline = 1 x 2 = 2: start with "
       "mpirun -np and a multiple of 2"},
      {{.ranks = 1, .pipeline = 2}, small, "", "1 rank was started, which is no multiple of"},
      {{.ranks = 6, .pipeline = 2, .spares = 1},
       small,
       "",
       "start with mpirun -np and a multiple of 2 + 1 spare"},
      {{.ranks = 9},
       small,
       "",
       "9 ranks were started, but parallel.lanes = 8: every data-parallel rank needs a lane; start at most 8 "
       "ranks (mpirun -np 8), or give more parallel.lanes (a run that is resumed is then cut anew)"},
      {{.ranks = 20, .pipeline = 2, .spares = 2}, small, "", "start at most 18 ranks (mpirun -np 18)"},
      {{.ranks = 2 * 16385, .pipeline = 2},
       with([](LayoutFacts& facts) { facts.lanes = 32768; }),
       "",
       "32770 ranks were started, which is 16385 data-parallel ranks; this version takes at most 16384: "
       "start "
       "with mpirun -np 32768, and give each rank more threads"},
  });
}

TEST(Layout, EveryBrokenRuleIsNamedAtOnce) {
  LayoutFacts facts = small;
  facts.heads = 6;
  facts.kv_heads = 3;
  const std::vector<LayoutProblem> problems =
      layout_problems({.ranks = 22, .pipeline = 7, .tensor = 3}, facts);
  std::vector<std::string> keys;
  for (const LayoutProblem& problem : problems) keys.push_back(problem.key);
  EXPECT_THAT(keys, testing::ElementsAre("parallel.tensor", "parallel.tensor_lanes", "parallel.tensor_lanes",
                                         "parallel.pipeline", ""));
}

}  // namespace
}  // namespace holdfast::test
