// The planned traffic of a step against what run_step() hands to its communicator, message by message.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "runtime/train/ballot.h"
#include "runtime/train/worker_access.h"
#include "tests/plan/planned_traffic.h"
#include "tests/support/worker_rig.h"

namespace holdfast::parallel {

// For the messages of failed expectations.
static void PrintTo(const Traffic& traffic, std::ostream* out) {
  *out << traffic.bytes_sent << " bytes in " << traffic.messages_sent << " messages out, "
       << traffic.bytes_received << " bytes in " << traffic.messages_received << " messages in";
}

}  // namespace holdfast::parallel

namespace holdfast::test {
namespace {

// Counts by the group that a message belongs to; -1: all ranks. What arrives is zero, so that votes are.
class CountingPeers final : public AbsentPeers {
 public:
  using AbsentPeers::AbsentPeers;
  Result<Request> send(std::span<const std::byte> source, int, int tag) override {
    Traffic& traffic = traffic_[group_of(tag)];
    traffic.bytes_sent += source.size();
    ++traffic.messages_sent;
    return Request{0};
  }
  Result<Request> receive(std::span<std::byte> target, int, int tag) override {
    Traffic& traffic = traffic_[group_of(tag)];
    traffic.bytes_received += target.size();
    ++traffic.messages_received;
    std::ranges::fill(target, std::byte{0});
    if (rank() == 0 && target.size() == ballot_words * sizeof(std::int64_t) && !std::exchange(voted_, true)) {
      const std::array<std::uint64_t, 2> opposite = {0 - run_state_.high, 0 - run_state_.low};
      std::ranges::copy(std::as_bytes(std::span(opposite)), target.end() - sizeof(opposite));
    }
    return Request{0};
  }
  Traffic of(std::initializer_list<TagGroup> groups) {
    Traffic sum;
    for (const TagGroup group : groups) sum += traffic_[static_cast<int>(group)];
    return sum;
  }
  Traffic of_all_ranks() { return traffic_[0]; }
  // Lets the first vote that rank 0 receives say that the others hold the same state of the run: their terms are the
  // last words of a ballot.
  void agree_with(const Digest& run_state) { run_state_ = run_state; }

 private:
  static int group_of(int tag) { return tag >> 13; }
  std::map<int, Traffic> traffic_;
  Digest run_state_ = {};
  bool voted_ = false;
};

struct TrafficCase {
  const char* name;
  int ranks;
  void (*change)(Config& config);
  int on_host = 0;  // ranks; 0: all
};

constexpr std::array traffic_cases = {
    TrafficCase{"Alone", 1, [](Config&) {}},
    TrafficCase{"Replicas", 4, [](Config&) {}},
    TrafficCase{"ManyReplicasOfLittle", 6, [](Config& config) { config.model.width = 16; }},
    TrafficCase{"OneWaveInBf16", 6, [](Config& config) { config.training.precision = "bf16"; }},
    TrafficCase{"BlocksOfLanesOnTheirHosts", 6, [](Config& config) { config.parallel.lane_block = 3; }, 3},
    TrafficCase{"BlocksOfLanesOverWaves", 4, [](Config& config) { config.parallel.lane_block = 2; }, 3},
    TrafficCase{"Stages", 3, [](Config& config) { config.parallel.pipeline = 3; }},
    TrafficCase{"TiedEndsAndReplicasInBf16", 8,
                [](Config& config) {
                  config.training.precision = "bf16";
                  config.model.head = "tied";
                  config.parallel.pipeline = 2;
                }},
    TrafficCase{"SlicesInStagesWithoutBubbles", 8,
                [](Config& config) {
                  config.training.recompute = "selective";
                  config.parallel.tensor = 2;
                  config.parallel.pipeline = 2;
                  config.parallel.pipeline_schedule = "zero_bubble";
                }},
    TrafficCase{"SlicesOfGpt2InStagesThatRecomputeAll", 4,
                [](Config& config) {
                  config.model.style = "gpt2";
                  config.training.recompute = "full";
                  config.parallel.tensor = 2;
                  config.parallel.pipeline = 2;
                }},
    TrafficCase{"SlicesInChunks", 8,
                [](Config& config) {
                  config.training.precision = "bf16";
                  config.parallel.tensor = 2;
                  config.parallel.pipeline = 2;
                  config.parallel.pipeline_schedule = "interleaved";
                  config.parallel.pipeline_chunks = 2;
                }},
    TrafficCase{"ChunksInTurn", 4,
                [](Config& config) {
                  config.model.head = "tied";
                  config.parallel.pipeline = 2;
                  config.parallel.pipeline_schedule = "interleaved";
                  config.parallel.pipeline_chunks = 2;
                }},
    TrafficCase{"FrozenLayersInSlicesAndStages", 8,
                [](Config& config) {
                  config.training.recompute = "selective";
                  config.parallel.tensor = 2;
                  config.parallel.pipeline = 2;
                  config.model.freeze = {"embedding", "layers 0-2"};
                }},
    TrafficCase{"FrozenTiedEndsAndReplicas", 4,
                [](Config& config) {
                  config.model.head = "tied";
                  config.parallel.pipeline = 2;
                  config.model.freeze = {"embedding", "layer 2"};
                }},
    TrafficCase{"FrozenMatrices", 2,
                [](Config& config) {
                  config.parallel.tensor = 2;
                  config.model.freeze = {"all but biases and norms"};
                }},
};

Config traffic_config() {
  Config config;
  config.model.layers = 4;
  config.model.heads = 2;
  config.model.width = 64;
  config.training.steps = 10;
  config.training.sequence_length = 8;
  config.training.microbatch_size = 2;
  config.training.microbatches_per_lane = 2;
  config.parallel.lanes = 6;
  return config;
}

class SentTraffic : public testing::Test {
 protected:
  // Runs a step of one rank without its peers, which must send what was planned.
  static void expect_sent(const Config& config, int ranks, int rank, int on_host,
                          const StepTraffic& planned) {
    CountingPeers peers(rank, ranks);
    PlannedDevice device({.host_sees_memory = true});
    FaultPoints faults;
    const Result<std::shared_ptr<DataSet>> data =
        DataSet::open(posix_env(), config.data.sources, config.training.sequence_length);
    ASSERT_TRUE(data.ok());
    const Result<std::unique_ptr<Worker>> worker =
        Worker::plan({.rank = {{.env = posix_env(), .faults = faults, .communicator = peers},
                               device,
                               config,
                               planned_mesh(config, ranks, on_host)},
                      .data = *data});
    ASSERT_TRUE(worker.ok()) << worker.error().message;
    ASSERT_TRUE((*worker)->start_loader().ok());
    peers.agree_with(run_state_term(**worker));
    const Result<StepOutcome> outcome = run_step(**worker, {});
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    ASSERT_TRUE((*worker)->parameter_gather().finish().ok());
    EXPECT_EQ(peers.of({TagGroup::data}), planned.data()) << "data, rank " << rank;
    EXPECT_EQ((*worker)->reduction().counts().bytes_sent_to_other_hosts,
              planned.gradients_between_hosts.bytes_sent);
    EXPECT_EQ((*worker)->parameter_gather().counts().bytes_sent_to_other_hosts,
              planned.parameters_between_hosts.bytes_sent);
    EXPECT_EQ(peers.of({TagGroup::activations, TagGroup::gradients, TagGroup::wrapped_activations,
                        TagGroup::wrapped_gradients}),
              planned.boundaries)
        << "boundaries, rank " << rank;
    EXPECT_EQ(peers.of({TagGroup::tied_weights}), planned.tied) << "tied, rank " << rank;
    EXPECT_EQ(peers.of({TagGroup::tensor}), planned.slices) << "tensor, rank " << rank;
    EXPECT_EQ(peers.of_all_ranks(), planned.votes) << "votes, rank " << rank;
  }
};

class StepTrafficTest : public SentTraffic, public testing::WithParamInterface<TrafficCase> {};

TEST_P(StepTrafficTest, IsWhatAStepSends) {
  Config config = traffic_config();
  GetParam().change(config);
  const WorkerRig rig(config, GetParam().ranks);  // resolves the config and writes its data
  Traffic all;
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const int on_host = GetParam().on_host;
    const StepTraffic planned = planned_traffic(rig.config(), GetParam().ranks, rank, true, on_host);
    expect_sent(rig.config(), GetParam().ranks, rank, on_host, planned);
    EXPECT_EQ(planned_traffic(rig.config(), GetParam().ranks, rank, false, on_host).slices, planned.slices)
        << "through memory of a GPU";
    all += planned.all();
  }
  EXPECT_EQ(all.bytes_sent, all.bytes_received);
  EXPECT_EQ(all.messages_sent, all.messages_received);
  EXPECT_EQ(all.messages_sent > 0, GetParam().ranks > 1);
}

// Flat, a rank has a message for each of the others; in blocks, for those of its place and of its block.
TEST_F(SentTraffic, OfThousandsOfReplicas) {
  constexpr int ranks = 2048, on_host = 8;
  Config config = traffic_config();
  config.parallel.lanes = ranks;
  config.training.microbatches_per_lane = 1;
  config.model.width = 512;              // so that every rank owns some of it
  std::vector<double> from_other_hosts;  // parameters, by block
  for (const int block : {1, on_host}) {
    config.parallel.lane_block = block;
    const WorkerRig rig(config, ranks);
    for (const int rank : {0, ranks - 1}) {
      const StepTraffic planned = planned_traffic(rig.config(), ranks, rank, true, on_host);
      expect_sent(rig.config(), ranks, rank, on_host, planned);
      from_other_hosts.push_back(static_cast<double>(planned.parameters_between_hosts.bytes_received));
    }
  }
  for (const std::size_t rank : {0U, 1U})
    EXPECT_NEAR(from_other_hosts[rank] / from_other_hosts[2 + rank], on_host, 0.5) << "each arrives once";
}

INSTANTIATE_TEST_SUITE_P(Layouts, StepTrafficTest, testing::ValuesIn(traffic_cases),
                         [](const testing::TestParamInfo<TrafficCase>& each) { return each.param.name; });

}  // namespace

}  // namespace holdfast::test
