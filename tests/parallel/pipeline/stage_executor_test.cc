// Every stage of a pipeline as a thread with a device of its own; parts add numbers that say what went
// through them.
#include "parallel/pipeline/stage_executor.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "kernels/elementwise.h"
#include "parallel/comm/group_communicator.h"
#include "parallel/comm/host_transport.h"
#include "parallel/local/local_communicator.h"
#include "runtime/core/random.h"
#include "tests/support/schedule_check.h"

namespace holdfast::test {
namespace {

constexpr std::int64_t width = 30'000;  // more than a message that is copied when it is sent
using Values = std::vector<float>;

std::size_t index(int value) {
  return static_cast<std::size_t>(value);
}

// Part q adds q + 1 to what comes through it; the last part's output is where the gradient starts, and each
// part adds 100 (q + 1) to it. Its weight gradient of a microbatch is its input plus the gradient of its
// output. Everything is a small integer, so the order of sums does not matter.
class CountingStage final : public StageWork {
 public:
  CountingStage(Device& device, const ScheduleShape& shape, int stage, const std::vector<int>& buffers)
      : device_(&device),
        shape_(shape),
        stage_(stage),
        random_(1, static_cast<std::uint64_t>(stage)),
        split_(shape.kind == ScheduleKind::zero_bubble) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      const std::size_t places = index(buffers[index(chunk)]);
      inputs_.emplace_back(places + 1, Values(width, -1e6F));
      outputs_.emplace_back(places, Values(width, -1e6F));
      gradients_.emplace_back(places + 1, Values(width, -1e6F));
      if (split_) input_gradients_.emplace_back(places + 1, Values(width, -1e6F));
      const auto number = static_cast<float>(part(chunk) + 1);
      forward_terms_.emplace_back(width, number);
      backward_terms_.emplace_back(width, 100.0F * number);
    }
    for (int i = 0; i < shape.microbatches(); ++i)
      sources_.emplace_back(width, 10'000.0F * static_cast<float>(i));
    results_.resize(index(shape.microbatches()), Values(width));
    weight_gradients_.resize(index(shape.chunks), std::vector<Values>(results_.size(), Values(width)));
  }

  Result<void> launch_forward(StagePosition position) override {
    Values& out = place(outputs_, position);
    copy(input_of(position), out);
    add(out, forward_terms_[index(position.chunk)]);
    return {};
  }
  Result<void> launch_backward(StagePosition position, const BackwardLaunch& launch) override {
    if (launch.work != Work::backward_weight && part(position.chunk) + 1 == shape_.parts())
      copy(place(outputs_, position), place(gradients_, position));
    if (launch.work != Work::backward_input) {
      Values& weight_gradient = weight_gradients_[index(position.chunk)][index(position.microbatch)];
      copy(input_of(position), weight_gradient);
      add(weight_gradient, place(gradients_, position));
    }
    if (launch.work == Work::backward_weight) return {};
    if (split_) copy(place(gradients_, position), place(input_gradients_, position));
    Values& gradient = place(split_ ? input_gradients_ : gradients_, position);
    add(gradient, backward_terms_[index(position.chunk)]);
    if (part(position.chunk) == 0) copy(gradient, results_[index(position.microbatch)]);
    return {};
  }
  bool can_write_weight_gradients(StagePosition) override { return random() < 0.6; }
  Error give_up() override { return {.code = ExitCode::communication, .message = "gave up"}; }
  std::span<std::byte> input(StagePosition position) override { return bytes(place(inputs_, position)); }
  std::span<std::byte> output(StagePosition position) override { return bytes(place(outputs_, position)); }
  std::span<std::byte> output_gradient(StagePosition position) override {
    return bytes(place(gradients_, position));
  }
  std::span<std::byte> input_gradient(StagePosition position) override {
    return bytes(place(split_ ? input_gradients_ : gradients_, position));
  }
  // Stages before the last look at the network late, so that what is sent to them stays where it lies.
  Result<bool> advance() override {
    if (stage_ + 1 < shape_.stages && random() < 0.25) posix_env().sleep_us(300);
    return false;
  }

  void expect_counts() const {
    const int parts = shape_.parts();
    const auto sum = [](int first, int end) { return (end * (end + 1) - first * (first + 1)) / 2; };
    const auto all = [](int microbatch, int rest) {
      return Values(width, 10'000.0F * static_cast<float>(microbatch) + static_cast<float>(rest));
    };
    for (int i = 0; i < shape_.microbatches(); ++i) {
      if (stage_ == 0) {
        EXPECT_EQ(results_[index(i)], all(i, 101 * sum(0, parts))) << "microbatch " << i;
      }
      for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
        const int here = part(chunk);
        EXPECT_EQ(weight_gradients_[index(chunk)][index(i)],
                  all(2 * i, sum(0, here) + sum(0, parts) + 100 * sum(here + 1, parts)))
            << "microbatch " << i << ", chunk " << chunk << " of stage " << stage_;
      }
    }
  }

 private:
  using Places = std::vector<std::vector<Values>>;
  int part(int chunk) const { return chunk * shape_.stages + stage_; }
  Values& input_of(StagePosition position) {
    return part(position.chunk) == 0 ? sources_[index(position.microbatch)] : place(inputs_, position);
  }
  static Values& place(Places& places, StagePosition position) {
    std::vector<Values>& ring = places[index(position.chunk)];
    return ring[index(position.microbatch) % ring.size()];
  }
  static std::span<std::byte> bytes(Values& values) { return std::as_writable_bytes(std::span(values)); }
  void copy(const Values& from, Values& to) {
    device_->launch(Copy{.source = from.data(), .target = to.data(), .bytes = width * 4});
  }
  void add(Values& to, const Values& term) {
    device_->launch(Accumulate{.target = to.data(), .source = term.data(), .count = width});
  }

  double random() { return random_.uniform(questions_++); }

  Device* device_;
  ScheduleShape shape_;
  int stage_;
  RandomStream random_;
  std::uint64_t questions_ = 0;
  bool split_;  // backwards, so that they do not work in place
  Places inputs_, outputs_, gradients_, input_gradients_;
  std::vector<Values> forward_terms_, backward_terms_, sources_, results_;
  Places weight_gradients_;  // [chunk][microbatch]
};

// A rank's ends of the directions between two ranks.
struct Pair {
  GroupCommunicator group;
  HostTransport transport{group};
};

std::unique_ptr<Pair> pair(Communicator& c, int from, int to, int tags) {
  return std::unique_ptr<Pair>(new Pair{.group = {c, {from, to}, static_cast<TagGroup>(tags)}});
}

// The links of a stage; rank and stage are the same here. With chunks the stages are a ring.
struct Links {
  Links(Communicator& c, const ScheduleShape& shape) {
    const int stages = shape.stages, stage = c.rank();
    const bool ring = shape.chunks > 1 && stages > 1;
    const int before = (stage + stages - 1) % stages, after = (stage + 1) % stages;
    // The wrap-around has tags of its own, or a ring of two would meet itself.
    const auto tags = [&](int from, int first) { return from + 1 == stages ? first + 1 : first; };
    if (stage > 0 || ring) {
      in = pair(c, before, stage, tags(before, 10));
      back_out = pair(c, before, stage, tags(before, 20));
    }
    if (stage + 1 < stages || ring) {
      out = pair(c, stage, after, tags(stage, 10));
      back_in = pair(c, stage, after, tags(stage, 20));
    }
  }
  StageLinks links() const {
    const auto transport = [](const std::unique_ptr<Pair>& p) {
      return p == nullptr ? nullptr : &p->transport;
    };
    return {.activations_in = transport(in),
            .activations_out = transport(out),
            .gradients_in = transport(back_in),
            .gradients_out = transport(back_out)};
  }
  std::unique_ptr<Pair> in, out, back_in, back_out;
};

Result<void> run_stage(Communicator& c, const Schedule& schedule, int runs) {
  const Links links(c, schedule.shape);
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  const Waiter waiter(posix_env(), 30'000);
  const std::vector<Action>& actions = schedule.actions[index(c.rank())];
  const std::vector<int> buffers = activation_buffers(schedule.shape, actions);
  CountingStage work(*device, schedule.shape, c.rank(), buffers);
  StageExecutor executor(work, *device, links.links(), waiter, actions, buffers);
  for (int run = 0; run < runs; ++run) {
    HF_TRY_VOID(executor.run());
    device->synchronize();
    work.expect_counts();
  }
  return {};
}

void expect_runs(const Schedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  SCOPED_TRACE(fmt::format("{} {} stages {} microbatches {} waves", name_of(shape.kind), shape.stages,
                           shape.microbatches_per_lane, shape.waves));
  const Result<void> outcome =
      run_local_ranks(shape.stages, [&](Communicator& c) { return run_stage(c, schedule, 2); });
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
}

TEST(StageExecutor, RunsEverySchedule) {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_forward_one_backward,
                                  ScheduleKind::interleaved, ScheduleKind::zero_bubble}) {
    for (const int stages : {1, 2, 3, 4}) {
      for (const int microbatches : {1, 4, 7}) {
        for (const int waves : {1, 3}) {
          ScheduleShape shape{.kind = kind,
                              .stages = stages,
                              .microbatches_per_lane = microbatches,
                              .waves = waves,
                              .lanes = waves};
          if (kind == ScheduleKind::interleaved) {
            if (stages == 1) continue;  // nothing to interleave
            shape.chunks = 3;
          }
          expect_runs(make_schedule(shape));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Weight parts anywhere between their input parts and where zero_bubble has them.
TEST(StageExecutor, RunsWeightPartsInAnyPlace) {
  const RandomStream random(2, 0);
  std::uint64_t draws = 0;
  for (int round = 0; round < 20; ++round) {
    const int stages = 2 + static_cast<int>(random.bits(draws++) % 3);
    const ScheduleShape shape{.kind = ScheduleKind::zero_bubble,
                              .stages = stages,
                              .microbatches_per_lane = 1 + static_cast<int>(random.bits(draws++) % 8)};
    Schedule schedule = make_schedule(shape);
    for (std::vector<Action>& actions : schedule.actions) {
      for (std::size_t i = 1; i < actions.size(); ++i) {
        // Moves it forward past what is not of its microbatch, and so not past another weight part's either.
        for (std::size_t at = i;
             actions[at].work == Work::backward_weight && actions[at - 1].work != Work::backward_weight &&
             actions[at - 1].microbatch != actions[at].microbatch && random.uniform(draws++) < 0.7;
             --at)
          std::swap(actions[at - 1], actions[at]);
      }
    }
    ASSERT_TRUE(schedule_problems(schedule).empty()) << schedule_problems(schedule).front();
    expect_runs(schedule);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Weight parts of the last stage wait until the first one has the gradient of the same microbatch.
class WaitingWeights final : public StageWork {
 public:
  WaitingWeights(CountingStage& stage, int rank, std::atomic<int>& arrived)
      : stage_(&stage), rank_(rank), arrived_(&arrived) {}
  Result<void> launch_forward(StagePosition position) override { return stage_->launch_forward(position); }
  Result<void> launch_backward(StagePosition position, const BackwardLaunch& launch) override {
    if (rank_ == 0 && launch.work == Work::backward_input) ++*arrived_;
    return stage_->launch_backward(position, launch);
  }
  bool can_write_weight_gradients(StagePosition position) override {
    return rank_ == 0 || *arrived_ > position.microbatch;
  }
  Error give_up() override { return stage_->give_up(); }
  std::span<std::byte> input(StagePosition position) override { return stage_->input(position); }
  std::span<std::byte> output(StagePosition position) override { return stage_->output(position); }
  std::span<std::byte> output_gradient(StagePosition position) override {
    return stage_->output_gradient(position);
  }
  std::span<std::byte> input_gradient(StagePosition position) override {
    return stage_->input_gradient(position);
  }
  Result<bool> advance() override { return stage_->advance(); }

 private:
  CountingStage* stage_;
  int rank_;
  std::atomic<int>* arrived_;
};

TEST(StageExecutor, SendsAGradientBeforeTheWeightPart) {
  const ScheduleShape shape{.kind = ScheduleKind::zero_bubble, .stages = 2, .microbatches_per_lane = 5};
  Schedule schedule = make_schedule(shape);
  // Every weight part stands right behind its input part.
  std::ranges::stable_sort(schedule.actions[1], {}, [](const Action& action) { return action.microbatch; });
  ASSERT_TRUE(schedule_problems(schedule).empty()) << schedule_problems(schedule).front();
  std::atomic<int> arrived = 0;
  const Result<void> outcome = run_local_ranks(2, [&](Communicator& c) -> Result<void> {
    const Links links(c, shape);
    const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
    const std::vector<Action>& actions = schedule.actions[index(c.rank())];
    const std::vector<int> buffers = activation_buffers(shape, actions);
    CountingStage counting(*device, shape, c.rank(), buffers);
    WaitingWeights work(counting, c.rank(), arrived);
    StageExecutor executor(work, *device, links.links(), Waiter(posix_env(), 10'000), actions, buffers);
    const Result<void> run = executor.run();
    device->synchronize();
    if (run.ok()) counting.expect_counts();
    return run;
  });
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
}

TEST(StageExecutor, NamesTheNeighbourThatDoesNotAnswer) {
  const ScheduleShape shape{.stages = 2, .microbatches_per_lane = 2};
  std::string sentence;
  std::atomic<bool> gave_up = false;
  const Result<void> outcome = run_local_ranks(2, [&](Communicator& c) -> Result<void> {
    if (c.rank() == 1) {  // sends nothing, but is there
      while (!gave_up) posix_env().sleep_us(1000);
      return {};
    }
    const Links links(c, shape);
    const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
    const std::vector<Action> actions = actions_of_stage(shape, 0);
    const std::vector<int> buffers = activation_buffers(shape, actions);
    CountingStage work(*device, shape, 0, buffers);
    StageExecutor executor(work, *device, links.links(), Waiter(posix_env(), 200), actions, buffers);
    const Result<void> run = executor.run();
    device->synchronize();
    EXPECT_FALSE(run.ok());
    if (!run.ok()) sentence = run.error().message;
    gave_up = true;
    return {};
  });
  EXPECT_NE(sentence.find("rank 0 waited 200 ms in the pipeline, at the backward of microbatch 0: rank 1"),
            std::string::npos)
      << sentence;
}

}  // namespace
}  // namespace holdfast::test
