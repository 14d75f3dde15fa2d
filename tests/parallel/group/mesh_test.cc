#include "parallel/group/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/parallel/hosts.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> ranks_in_coordinate_order(const Mesh& mesh) {
  for (int rank = 0; rank < mesh.shape().ranks(); ++rank) {
    if (!mesh.is_spare(rank)) return mesh.group(rank, {.data = true, .pipeline = true, .tensor = true});
  }
  return {};
}

TEST(Mesh, TensorIsInnermostAndDataOutermost) {
  const Mesh mesh({.data = 2, .pipeline = 3, .tensor = 2, .spares = 1});
  EXPECT_EQ(mesh.coordinate_of(0), (MeshCoordinate{0, 0, 0}));
  EXPECT_EQ(mesh.coordinate_of(1), (MeshCoordinate{0, 0, 1}));
  EXPECT_EQ(mesh.coordinate_of(2), (MeshCoordinate{0, 1, 0}));
  EXPECT_EQ(mesh.coordinate_of(6), (MeshCoordinate{1, 0, 0}));
  EXPECT_EQ(mesh.coordinate_of(11), (MeshCoordinate{1, 2, 1}));
  EXPECT_TRUE(mesh.is_spare(12));
  EXPECT_THAT(mesh.spares(), ElementsAre(12));
}

TEST(Mesh, GroupsOfARank) {
  const Mesh mesh({.data = 2, .pipeline = 3, .tensor = 2});
  EXPECT_THAT(mesh.tensor_group(9), ElementsAre(8, 9));
  EXPECT_THAT(mesh.pipeline_line(9), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.data_group(9), ElementsAre(3, 9));
  EXPECT_THAT(mesh.replica(9), ElementsAre(6, 7, 8, 9, 10, 11));
}

// For all shapes of up to 5 x 5 x 8 and all axes: coordinates and ranks are one to one, and the groups of an
// axis part the active ranks.
TEST(Mesh, GroupsPartTheRanks) {
  for (int data = 1; data <= 5; ++data) {
    for (int pipeline = 1; pipeline <= 5; ++pipeline) {
      for (int tensor = 1; tensor <= 8; tensor *= 2) {
        const Mesh mesh({.data = data, .pipeline = pipeline, .tensor = tensor, .spares = 2});
        for (int axes = 0; axes < 8; ++axes) {
          const MeshAxes varying{
              .data = (axes & 1) != 0, .pipeline = (axes & 2) != 0, .tensor = (axes & 4) != 0};
          const int size =
              (varying.data ? data : 1) * (varying.pipeline ? pipeline : 1) * (varying.tensor ? tensor : 1);
          std::set<std::vector<int>> groups;
          for (int rank = 0; rank < mesh.shape().active(); ++rank) {
            ASSERT_EQ(mesh.rank_at(mesh.coordinate_of(rank)), rank);
            const std::vector<int> group = mesh.group(rank, varying);
            ASSERT_EQ(std::ssize(group), size);
            ASSERT_THAT(group, testing::Contains(rank));
            groups.insert(group);
          }
          ASSERT_EQ(std::ssize(groups) * size, mesh.shape().active());
        }
      }
    }
  }
}

TEST(Mesh, PlacementKeepsTensorGroupsInsideAHost) {
  struct Case {
    const char* hosts;  // of each rank
    MeshShape shape;
    std::vector<int> active;  // ranks in the order of coordinates
    std::vector<int> spares;
  };
  const std::vector<Case> cases = {
      {"aaaa", {.data = 2, .tensor = 2}, {0, 1, 2, 3}, {}},
      {"aabb", {.pipeline = 2, .tensor = 2}, {0, 1, 2, 3}, {}},
      // Ranks dealt out host by host, as mpirun --map-by node does: neighbours in the mesh share a host all
      // the same.
      {"abab", {.data = 2, .tensor = 2}, {0, 2, 1, 3}, {}},
      {"abab", {.data = 2, .pipeline = 2}, {0, 2, 1, 3}, {}},
      // Spares are the last ranks, unless a host has ranks that make no group.
      {"aaaabb", {.data = 2, .tensor = 2, .spares = 2}, {0, 1, 2, 3}, {4, 5}},
      {"aaabbb", {.data = 2, .tensor = 2, .spares = 2}, {0, 1, 3, 4}, {2, 5}},
      {"aaabb", {.data = 2, .tensor = 2, .spares = 1}, {0, 1, 3, 4}, {2}},
      {"abbbb", {.data = 1, .tensor = 4, .spares = 1}, {1, 2, 3, 4}, {0}},
      // Neither a pipeline nor the data axis is kept inside a host.
      {"aabb", {.data = 1, .pipeline = 4}, {0, 1, 2, 3}, {}},
  };
  for (const Case& c : cases) {
    const Result<Mesh> mesh = Mesh::placed(c.shape, hosts(c.hosts));
    ASSERT_TRUE(mesh.ok()) << c.hosts << ": " << mesh.error().message;
    EXPECT_EQ(ranks_in_coordinate_order(*mesh), c.active) << c.hosts;
    EXPECT_EQ(mesh->spares(), c.spares) << c.hosts;
  }
}

TEST(Mesh, AGroupThatNoHostHoldsIsRefused) {
  struct Case {
    const char* hosts;
    MeshShape shape;
    const char* sentence;
  };
  const std::vector<Case> cases = {
      {"ab",
       {.tensor = 2},
       "room for 0 (a has 1 rank): start a multiple of 2 ranks on every host, or lower parallel.tensor to 1"},
      {"aabb", {.tensor = 4}, "parallel.tensor = 4 needs 1 group of 4 ranks, each inside one host"},
      {"aabb",
       {.tensor = 4},
       "room for 0 (a has 2 ranks): start a multiple of 4 ranks on every host, or lower parallel.tensor to "
       "2"},
      {"aaabbb",
       {.data = 3, .tensor = 2},
       "needs 3 groups of 2 ranks, each inside one host, but the hosts have room for 2 (a has 3 ranks)"},
      {"aaaaaabb", {.data = 1, .pipeline = 2, .tensor = 4}, "room for 1 (a has 6 ranks)"},
  };
  for (const Case& c : cases) {
    const Result<Mesh> mesh = Mesh::placed(c.shape, hosts(c.hosts));
    ASSERT_FALSE(mesh.ok()) << c.hosts;
    EXPECT_EQ(mesh.error().code, ExitCode::config);
    EXPECT_THAT(mesh.error().message, HasSubstr(c.sentence));
  }
}

}  // namespace
}  // namespace holdfast::test
