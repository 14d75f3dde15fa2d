// Runs the lane reduction of made-up gradients, and says what a sequential sum gives; shared by the tests
// over local ranks and over MPI.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "parallel/data/lane_reduction.h"
#include "parallel/data/parameter_gather.h"
#include "runtime/device/device.h"

namespace holdfast::test {

// Buckets with tensors around the edges of blocks, one with fewer blocks than ranks, and a shadow.
inline std::vector<Bucket> uneven_buckets() {
  const auto tensor = [](const char* name, std::vector<std::uint64_t> shape) {
    return BucketTensor{.name = name, .shape = std::move(shape)};
  };
  std::vector<Bucket> buckets(5);
  buckets[0].tensors = {tensor("head", {3, 4099})};
  buckets[1].tensors = {tensor("b.norm", {1}), tensor("b.weight", {5, 4096}), tensor("b.bias", {17})};
  buckets[2].tensors = {tensor("a.weight", {4097}), tensor("a.bias", {4095})};
  buckets[3].tensors = {tensor("scale", {1})};
  buckets[4].tensors = {tensor("embedding", {3, 4099})};
  buckets[4].tied_to = 0;
  return buckets;
}

// Many of them, so that places of the receive staging are used again and again.
inline std::vector<Bucket> many_buckets() {
  std::vector<Bucket> buckets;
  for (int round = 0; round < 3; ++round) {
    for (Bucket& bucket : uneven_buckets()) {
      if (bucket.tied_to >= 0) continue;
      for (BucketTensor& tensor : bucket.tensors) tensor.name += std::to_string(round);
      buckets.push_back(std::move(bucket));
    }
  }
  return buckets;
}

// Gradients whose sums depend on the order: magnitudes over 2^48, both signs, exact cancellation, and zeros
// of both signs.
inline float lane_gradient(int step, int lane, std::uint64_t index) {
  std::uint64_t z =
      (static_cast<std::uint64_t>(step) * 64 + static_cast<std::uint64_t>(lane)) * 0x9e3779b97f4a7c15U +
      index * 0xd1b54a32d192ed03U;
  for (const std::uint64_t factor : {0xbf58476d1ce4e5b9U, 0x94d049bb133111ebU}) z = (z ^ (z >> 29)) * factor;
  if (index % 97 == 5) return -0.0F;
  if (index % 101 == 7) return lane % 2 == 0 ? 1e20F : -1e20F;
  const float mantissa = 1.0F + static_cast<float>((z >> 8) & 0xffffff) * 0x1p-24F;
  return std::ldexp((z & 1) != 0 ? mantissa : -mantissa, static_cast<int>((z >> 40) % 48) - 24);
}

// The gradients of one lane of a plan; padding is zero.
inline std::vector<float> lane_gradients(const BucketPlan& plan, int step, int lane) {
  std::vector<float> values(plan.gradient_elements());
  for (const Bucket& bucket : plan.buckets()) {
    for (const BucketTensor& tensor : bucket.tensors) {
      for (std::uint64_t i = 0; i < tensor.elements(); ++i) {
        const std::uint64_t index = tensor.gradient_offset + i;
        values[index] = lane_gradient(step, lane, index);
      }
    }
  }
  return values;
}

// The sum over lanes in the given order, of every gradient element; shadows not yet added.
inline std::vector<float> sequential_sum(const BucketPlan& plan, int step, const std::vector<int>& lanes) {
  std::vector<float> sum = lane_gradients(plan, step, lanes.front());
  for (std::size_t i = 1; i < lanes.size(); ++i) {
    const std::vector<float> lane = lane_gradients(plan, step, lanes[i]);
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += lane[k];
  }
  return sum;
}

inline std::vector<int> lanes_in_order(int count) {
  std::vector<int> lanes;
  for (int lane = 0; lane < count; ++lane) lanes.push_back(lane);
  return lanes;
}

// The sum over blocks of so many lanes of their sums, each in order. It knows nothing of ranks and waves.
inline std::vector<float> block_sum(const BucketPlan& plan, int step, int lane_count, int block) {
  std::vector<float> sum;
  for (int first = 0; first < lane_count; first += block) {
    std::vector<int> lanes = lanes_in_order(block);
    for (int& lane : lanes) lane += first;
    const std::vector<float> of_block = sequential_sum(plan, step, lanes);
    if (first == 0) {
      sum = of_block;
    } else {
      for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += of_block[k];
    }
  }
  return sum;
}

// Describes a run's lanes and their sum.
struct LaneShape {
  int lanes = 1;
  int block = 1;
  int gradient_slots = 0;
  std::vector<int> hosts = {};  // of ranks
  std::uint64_t staging_bytes = staging_bytes_max;
};

// A rank with its device and buffers, to run whole steps of lane reduction.
class ReducingRank {
 public:
  ReducingRank(Transport& transport, const Waiter& waiter, const LaneShape& shape,
               std::vector<Bucket> buckets, const CpuDeviceOptions& options = {})
      : rank_(transport.rank()),
        schedule_(shape.lanes, transport.size(), shape.block),
        plan_(buckets, transport.size(), 0, shape.block),
        places_(std::move(buckets), transport.size(), shape.gradient_slots, shape.block),
        device_(make_cpu_device(options)),
        reduction_(places_, LaneExchange(places_, schedule_, transport.rank(), shape.hosts), transport,
                   *device_, waiter, memory_, /*digests_sums=*/true, shape.staging_bytes) {
    gradients_slot_ =
        memory_.reserve("gradients", MemoryClass::gradients, places_.gradient_elements() * sizeof(float));
    Result<MemoryArena> arena = MemoryArena::allocate(memory_);
    HF_CHECK(arena.ok());
    arena_ = std::move(arena).value();
    gradients_ = arena_.at<float>(gradients_slot_);
    reduction_.bind(arena_, gradients_);
  }

  // With a place for each bucket's gradients, as those of a lane are given here.
  const BucketPlan& plan() const { return plan_; }
  LaneReduction& reduction() { return reduction_; }
  Device& device() { return *device_; }

  // Launches what a backward would: each bucket's gradients appear in the gradient buffer, in bucket order.
  Result<void> launch_backward(const std::vector<float>& lane) {
    for (std::size_t b = 0; b < plan_.buckets().size(); ++b) {
      HF_TRY_VOID(reduction_.wait_for_slot(static_cast<int>(b)));
      for (std::size_t t = 0; t < plan_.buckets()[b].tensors.size(); ++t) {
        const BucketTensor& tensor = plan_.buckets()[b].tensors[t];
        device_->launch(Copy{.source = lane.data() + tensor.gradient_offset,
                             .target = gradients_ + places_.buckets()[b].tensors[t].gradient_offset,
                             .bytes = static_cast<std::int64_t>(tensor.elements() * sizeof(float))});
      }
      reduction_.bucket_launched(static_cast<int>(b), device_->ticket());
    }
    reduction_.backward_launched();
    return {};
  }

  // lanes[w]: the gradients of this rank's lane in wave w, empty where it has none.
  Result<void> step(const std::vector<std::vector<float>>& lanes, bool digests_links = false) {
    const Result<void> outcome = launch_step(lanes, digests_links);
    device_->synchronize();  // after an error, too: what was launched still reads `lanes`
    return outcome;
  }

  std::vector<std::vector<float>> my_lanes(int step) const {
    std::vector<std::vector<float>> lanes;
    for (int wave = 0; wave < schedule_.waves(); ++wave) {
      const int lane = schedule_.lane_of(wave, rank_);
      lanes.push_back(lane < 0 ? std::vector<float>() : lane_gradients(plan_, step, lane));
    }
    return lanes;
  }

  // Whether this rank's segments hold the given sums (over all gradient elements, shadows not yet added), bit
  // for bit, and the block sums and digests are of them.
  void expect_reduced(const std::vector<float>& sums) const {
    std::size_t first_sum = 0;
    const std::vector<Segment> lying = places_.segments(rank_);
    for (std::size_t s = 0; s < lying.size(); ++s) {
      const Segment segment = plan_.segments(rank_)[s];
      std::vector<float> expected(
          sums.begin() + static_cast<std::ptrdiff_t>(segment.gradient_offset),
          sums.begin() + static_cast<std::ptrdiff_t>(segment.gradient_offset + segment.elements));
      for (const Bucket& bucket : plan_.buckets()) {
        if (bucket.tied_to != segment.bucket) continue;
        const std::uint64_t offset =
            bucket.tensors[static_cast<std::size_t>(segment.tensor)].gradient_offset +
            segment.first_block * block_elements;
        for (std::uint64_t i = 0; i < segment.elements; ++i) expected[i] += sums[offset + i];
      }
      EXPECT_EQ(
          std::memcmp(reduction_.reduced().of(lying[s]), expected.data(), segment.elements * sizeof(float)),
          0)
          << "bucket " << segment.bucket << ", tensor " << segment.tensor;
      std::vector<double> squares(segment.block_count);
      std::vector<std::uint64_t> digests(segment.block_count);
      reference(SquareSum{.values = expected.data(),
                          .count = static_cast<std::int64_t>(segment.elements),
                          .sums = squares.data(),
                          .digests = digests.data()});
      for (std::size_t block = 0; block < squares.size(); ++block) {
        EXPECT_NEAR(reduction_.square_sums()[first_sum + block] / squares[block], 1.0, 1e-14);
        EXPECT_EQ(reduction_.reduced().digests[first_sum + block], digests[block]);
      }
      first_sum += squares.size();
    }
    EXPECT_EQ(first_sum, reduction_.square_sums().size());
  }
  std::uint64_t gradient_bytes() const { return memory_.total_bytes(MemoryClass::gradients); }

 private:
  Result<void> launch_step(const std::vector<std::vector<float>>& lanes, bool digests_links) {
    reduction_.begin_step(digests_links);
    for (int wave = 0; wave < schedule_.waves(); ++wave) {
      HF_TRY_VOID(reduction_.begin_wave(wave));
      if (schedule_.lane_of(wave, rank_) >= 0)
        HF_TRY_VOID(launch_backward(lanes[static_cast<std::size_t>(wave)]));
      HF_TRY_VOID(reduction_.finish_wave());
    }
    reduction_.finish_step();
    device_->synchronize();
    return {};
  }

  int rank_;
  LaneSchedule schedule_;
  BucketPlan plan_, places_;
  MemoryPlan memory_;
  std::unique_ptr<Device> device_;
  LaneReduction reduction_;
  MemoryPlan::Slot gradients_slot_;
  MemoryArena arena_;
  float* gradients_ = nullptr;
};

// Two steps with all bits compared, and the counts of bytes and buckets.
inline Result<void> check_lane_reduction(Transport& transport, const Waiter& waiter, const LaneShape& shape,
                                         std::vector<Bucket> buckets_reduced = uneven_buckets()) {
  const int rank = transport.rank(), ranks = transport.size(), lanes = shape.lanes;
  ReducingRank reducing(transport, waiter, shape, std::move(buckets_reduced));
  for (int step = 0; step < 2; ++step) {
    HF_TRY_VOID(reducing.step(reducing.my_lanes(step)));
    const std::vector<float> sums = block_sum(reducing.plan(), step, lanes, shape.block);
    SCOPED_TRACE("step " + std::to_string(step) + ", " + std::to_string(lanes) + " lanes in blocks of " +
                 std::to_string(shape.block) + ", rank " + std::to_string(rank) + " of " +
                 std::to_string(ranks));
    reducing.expect_reduced(sums);
  }
  const LaneSchedule schedule(lanes, ranks, shape.block);
  const std::size_t bucket_count = reducing.plan().buckets().size();
  const LaneExchange exchange(reducing.plan(), schedule, rank, shape.hosts);
  std::uint64_t bytes = 0, to_other_hosts = 0, buckets = 0;
  for (int wave = 0; wave < schedule.waves(); ++wave) {
    if (schedule.lane_of(wave, rank) < 0 || ranks == 1) continue;
    buckets += bucket_count;
    for (int position = 0; position < exchange.count(wave); ++position) {
      std::vector<LaneExchange::Message> messages;
      exchange.outgoing(wave, exchange.at(wave, position), messages);
      for (const LaneExchange::Message& message : messages) {
        bytes += message.range.size() * sizeof(float);
        if (!exchange.same_host(message.peer)) to_other_hosts += message.range.size() * sizeof(float);
      }
    }
  }
  EXPECT_EQ(reducing.reduction().counts().bytes_sent, 2 * bytes);
  EXPECT_EQ(reducing.reduction().counts().bytes_sent_to_other_hosts, 2 * to_other_hosts);
  EXPECT_EQ(reducing.reduction().counts().buckets_sent, 2 * buckets);
  return {};
}

// Every rank's own ranges reach all ranks, and nothing else is written.
inline Result<void> check_gather_parameters(Transport& transport, const Waiter& waiter,
                                            std::vector<Bucket> buckets = uneven_buckets(), int block = 1,
                                            const std::vector<int>& hosts = {}) {
  const int rank = transport.rank(), ranks = transport.size();
  const BucketPlan plan(std::move(buckets), ranks, 0, block);
  const LaneExchange lanes(plan, LaneSchedule(ranks * block, ranks, block), rank, hosts);
  std::vector<std::uint16_t> parameters(plan.parameter_elements(), 0xffff), expected = parameters;
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    if (plan.buckets()[static_cast<std::size_t>(b)].tied_to >= 0) continue;
    for (int owner = 0; owner < ranks; ++owner) {
      const ElementRange range = plan.parameter_range(b, owner);
      for (std::uint64_t i = range.begin; i < range.end; ++i) {
        expected[i] = static_cast<std::uint16_t>(i * 7 + static_cast<std::uint64_t>(owner));
        if (owner == rank) parameters[i] = expected[i];
      }
    }
  }
  const std::unique_ptr<Device> device = make_cpu_device({});
  ParameterGather gather(plan, lanes, transport, *device, waiter, sizeof(std::uint16_t));
  gather.bind(std::as_writable_bytes(std::span(parameters)).data());
  HF_TRY_VOID(gather.begin(ParameterGather::Which::trained));
  HF_TRY_VOID(gather.finish());
  EXPECT_EQ(parameters, expected) << "rank " << rank << " of " << ranks << ", blocks of " << block;
  return {};
}

}  // namespace holdfast::test
