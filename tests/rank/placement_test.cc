// Promise 1 over several hosts: who sits where follows from the hosts, and decides no bit.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include "runtime/run/run_layout.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

class PlacementTest : public SameBitsTest {
 protected:
  // The ranks that read samples: those of the first stages.
  std::vector<int> readers(const Launch& launch) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < launch.ranks; ++rank) {
      const std::string ledger = RunPaths{run_directory(launch.run)}.ledger(rank);
      const Result<FileStatus> status = posix_env().status(ledger);
      if (status.ok() && status->exists) ranks.push_back(rank);
    }
    return ranks;
  }
};

std::vector<std::string> split_by_rank(std::string_view letters) {
  std::vector<std::string> hosts;
  for (const char letter : letters) hosts.push_back(fmt::format("host-{}", letter));
  return hosts;
}

TEST_F(PlacementTest, ScatteredHosts) {
  struct Case {
    const char* hosts;  // a letter for each rank's
    int stages;
    std::vector<int> readers;
  };
  const std::vector<Case> cases = {
      {"aaaa", 2, {0, 2}},       {"abab", 2, {0, 1}},
      {"abba", 2, {0, 1}},       {"abcabc", 3, {0, 4}},  // a pipeline of 0 3 1, one of 4 2 5
      {"abab", 1, {0, 1, 2, 3}},
  };
  const std::vector<std::string> what = {"model.layers=3", "model.head=tied", "data.ledger=true"};
  for (const Case& c : cases) {
    const auto ranks = static_cast<int>(std::string_view(c.hosts).size());
    const Launch launch{.run = fmt::format("{}-{}", c.hosts, c.stages),
                        .ranks = ranks,
                        .overrides = {fmt::format("parallel.pipeline={}", c.stages)},
                        .hosts = split_by_rank(c.hosts)};
    expect_same_bits(launch, what);
    EXPECT_THAT(readers(launch), ElementsAreArray(c.readers)) << launch.run;
  }
}

TEST_F(PlacementTest, TensorGroupsOnScatteredHosts) {
  const std::vector<std::string> what = {"parallel.tensor_lanes=2"};
  expect_same_bits(
      {.run = "abab", .ranks = 4, .overrides = {"parallel.tensor=2"}, .hosts = split_by_rank("abab")}, what);
  const RunEnd end = train({.run = "refused",
                            .ranks = 4,
                            .overrides = {"parallel.tensor_lanes=2", "parallel.tensor=2"},
                            .hosts = split_by_rank("abbb")});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_THAT(end.message, HasSubstr("the hosts have room for 1 (host-a has 1 rank)"));
}

// What was saved does not know where it was computed.
TEST_F(PlacementTest, HostsChangeBetweenResumes) {
  const std::vector<std::string> what = {"model.layers=3", "parallel.pipeline=2"};
  for (const char* hosts : {"abab", "aabb", "abba"}) {
    const RunEnd end = train({.run = "changing",
                              .ranks = 4,
                              .stop_after_steps = 5,
                              .overrides = what,
                              .hosts = split_by_rank(hosts)});
    ASSERT_EQ(end.code, ExitCode::saved) << end.message;
  }
  expect_same_bits(
      {.run = "changing", .ranks = 4, .overrides = {"parallel.pipeline=2"}, .hosts = split_by_rank("abcd")},
      {"model.layers=3"});
}

TEST(MeshOf, TensorGroupsAreInsideAHost) {
  Config config;
  config.parallel.pipeline = 1;
  config.parallel.tensor = 2;
  const std::vector<std::string> pairs = split_by_rank("abab");
  const Result<Mesh> mesh = mesh_of(config, pairs);
  ASSERT_TRUE(mesh.ok()) << mesh.error().message;
  EXPECT_EQ(mesh->shape().data, 2);
  EXPECT_THAT(mesh->tensor_group(0), testing::ElementsAre(0, 2));
  EXPECT_THAT(mesh->tensor_group(3), testing::ElementsAre(1, 3));

  const Result<Mesh> none = mesh_of(config, split_by_rank("abbb"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ExitCode::config);
  EXPECT_THAT(none.error().message,
              HasSubstr("the hosts have room for 1 (host-a has 1 rank): start a multiple "
                        "of 2 ranks on every host, or lower parallel.tensor to 1"));
}

}  // namespace
}  // namespace holdfast::test
