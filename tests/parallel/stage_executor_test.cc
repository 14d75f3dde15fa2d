// Every stage of a pipeline as a thread with a device of its own; parts add numbers that say what went
// through them.
#include "parallel/pipeline/stage_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "kernels/elementwise.h"
#include "parallel/group_communicator.h"
#include "parallel/host_exchange.h"
#include "parallel/local/local_communicator.h"

namespace holdfast {
namespace {

constexpr std::int64_t width = 30'000;  // more than a message that is copied when it is sent
using Values = std::vector<float>;

std::size_t index(int value) {
  return static_cast<std::size_t>(value);
}

// Part q adds q + 1 to what comes through it; the last part's output is where the gradient starts, and each
// part adds 100 (q + 1) to it. Everything is a small integer, so the order of sums does not matter.
class CountingStage final : public StageWork {
 public:
  CountingStage(Device& device, const ScheduleShape& shape, int stage, const std::vector<int>& buffers)
      : device_(&device), shape_(shape), stage_(stage) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      const std::size_t places = index(buffers[index(chunk)]);
      inputs_.emplace_back(places + 1, Values(width, -1e6F));
      outputs_.emplace_back(places, Values(width, -1e6F));
      gradients_.emplace_back(places + 1, Values(width, -1e6F));
      const auto number = static_cast<float>(part(chunk) + 1);
      forward_terms_.emplace_back(width, number);
      backward_terms_.emplace_back(width, 100.0F * number);
    }
    for (int i = 0; i < shape.microbatches(); ++i)
      sources_.emplace_back(width, 10'000.0F * static_cast<float>(i));
    results_.resize(index(shape.microbatches()), Values(width));
  }

  Result<void> launch_forward(StagePosition position) override {
    Values& out = place(outputs_, position);
    Values& in = part(position.chunk) == 0 ? sources_[index(position.microbatch)] : place(inputs_, position);
    copy(in, out);
    add(out, forward_terms_[index(position.chunk)]);
    return {};
  }
  Result<void> launch_backward(StagePosition position, bool, bool) override {
    Values& gradient = place(gradients_, position);
    if (part(position.chunk) + 1 == shape_.parts()) copy(place(outputs_, position), gradient);
    add(gradient, backward_terms_[index(position.chunk)]);
    if (part(position.chunk) == 0) copy(gradient, results_[index(position.microbatch)]);
    return {};
  }
  bool can_launch_backward(StagePosition) override { return ++asked_ % 3 != 1; }  // not at the first question
  Error give_up() override { return {.code = ExitCode::communication, .message = "gave up"}; }
  std::span<std::byte> input(StagePosition position) override { return bytes(place(inputs_, position)); }
  std::span<std::byte> output(StagePosition position) override { return bytes(place(outputs_, position)); }
  std::span<std::byte> output_gradient(StagePosition position) override {
    return bytes(place(gradients_, position));
  }
  // Stages before the last look at the network late, so that what is sent to them stays where it lies.
  Result<bool> advance() override {
    if (stage_ + 1 < shape_.stages && ++looks_ % 4 == 0) posix_env().sleep_us(300);
    return false;
  }

  const std::vector<Values>& results() const { return results_; }

 private:
  using Places = std::vector<std::vector<Values>>;
  int part(int chunk) const { return chunk * shape_.stages + stage_; }
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

  Device* device_;
  ScheduleShape shape_;
  int stage_;
  int asked_ = 0, looks_ = 0;
  Places inputs_, outputs_, gradients_;
  std::vector<Values> forward_terms_, backward_terms_, sources_, results_;
};

// A rank's ends of the directions between two ranks.
struct Pair {
  GroupCommunicator group;
  HostExchange exchange{group};
};

std::unique_ptr<Pair> pair(Communicator& c, int from, int to, int tags) {
  return std::unique_ptr<Pair>(new Pair{.group = {c, {from, to}, static_cast<TagGroup>(tags)}});
}

// Rank and stage are the same here. With chunks the stages are a ring.
Result<void> run_stage(Communicator& c, const ScheduleShape& shape, int runs) {
  const int stages = shape.stages, stage = c.rank();
  const bool ring = shape.chunks > 1 && stages > 1;
  const int before = (stage + stages - 1) % stages, after = (stage + 1) % stages;
  std::unique_ptr<Pair> in, out, back_in, back_out;
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
  const auto exchange = [](const std::unique_ptr<Pair>& p) { return p == nullptr ? nullptr : &p->exchange; };
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  const Waiter waiter(posix_env(), 30'000);
  const std::vector<Action> actions = actions_of_stage(shape, stage);
  const std::vector<int> buffers = activation_buffers(shape, actions);
  CountingStage work(*device, shape, stage, buffers);
  StageExecutor executor(work, *device,
                         {.activations_in = exchange(in),
                          .activations_out = exchange(out),
                          .gradients_in = exchange(back_in),
                          .gradients_out = exchange(back_out)},
                         waiter, actions, buffers);
  for (int run = 0; run < runs; ++run) {
    HF_TRY_VOID(executor.run());
    device->synchronize();
    if (stage != 0) continue;
    const int parts = shape.parts();
    const auto through_all = static_cast<float>(parts * (parts + 1) / 2 * 101);
    for (int i = 0; i < shape.microbatches(); ++i) {
      const Values expected(width, 10'000.0F * static_cast<float>(i) + through_all);
      EXPECT_EQ(work.results()[index(i)], expected) << "microbatch " << i;
    }
  }
  return {};
}

TEST(StageExecutor, RunsEverySchedule) {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_forward_one_backward, ScheduleKind::interleaved}) {
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
          SCOPED_TRACE(fmt::format("{} {} stages {} microbatches {} waves", name_of(kind), stages,
                                   microbatches, waves));
          const Result<void> outcome =
              run_local_ranks(stages, [&](Communicator& c) { return run_stage(c, shape, 2); });
          ASSERT_TRUE(outcome.ok()) << outcome.error().message;
        }
      }
    }
  }
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
    const std::unique_ptr<Pair> out = pair(c, 0, 1, 1), back_in = pair(c, 0, 1, 2);
    const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
    const std::vector<Action> actions = actions_of_stage(shape, 0);
    const std::vector<int> buffers = activation_buffers(shape, actions);
    CountingStage work(*device, shape, 0, buffers);
    StageExecutor executor(work, *device,
                           {.activations_out = &out->exchange, .gradients_in = &back_in->exchange},
                           Waiter(posix_env(), 200), actions, buffers);
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
}  // namespace holdfast
