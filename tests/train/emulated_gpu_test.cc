// Whole runs on the CUDA device, emulated (tests/cuda_emulator): device memory that the host touches ends the
// test.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <cstdlib>

#include "runtime/core/json.h"
#include "runtime/os/machine_facts.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

class EmulatedGpu : public TrainingTest {
 protected:
  EmulatedGpu() { setenv("HOLDFAST_CUDA_MODULE", HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so", 1); }
  ~EmulatedGpu() override { unsetenv("HOLDFAST_CUDA_MODULE"); }

  // Fewer steps and shorter sequences than on the CPU: each thread of a GPU is a fiber here.
  RunEnd train_small(Launch launch, const std::string& device = "cuda") {
    std::vector<std::string> overrides = {"device=" + device,           "training.steps=4",
                                          "training.sequence_length=8", "optimizer.warmup_steps=2",
                                          "evaluation.every_steps=4",   "evaluation.batches=1"};
    overrides.insert(overrides.end(), launch.overrides.begin(), launch.overrides.end());
    launch.overrides = overrides;
    return train(launch);
  }
  void expect_done(const Launch& launch) {
    const RunEnd end = train_small(launch);
    ASSERT_EQ(end.code, ExitCode::done) << end.message;
  }
  // Of all lines of events.jsonl that have one.
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> values;
    const std::string events = posix_env().read_text(run_directory(run) + "/events.jsonl").value();
    for (std::size_t begin = 0; begin < events.size(); begin = events.find('\n', begin) + 1) {
      const Json event = Json::parse(events.substr(begin, events.find('\n', begin) - begin));
      if (event.contains("loss")) values.push_back(event["loss"]);
    }
    return values;
  }
};

TEST_F(EmulatedGpu, GivesTheSameBitsTwiceAndWhenItIsResumed) {
  expect_done({.run = "one"});
  ASSERT_TRUE(digest("one").starts_with("step 4\n")) << digest("one");
  expect_done({.run = "two"});
  EXPECT_EQ(digest("two"), digest("one"));
  ASSERT_EQ(train_small({.run = "parts", .stop_after_steps = 2}).code, ExitCode::saved);
  expect_done({.run = "parts"});
  EXPECT_EQ(digest("parts"), digest("one"));
}

// The copy of a snapshot is made behind the update, and its checksums are of what was copied: what changed in between is
// found by the digests that the update left, when the snapshot is read.
TEST_F(EmulatedGpu, AWeightThatChangedBeforeItWasCopiedIsFound) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  expect_done({.run = "one"});
  Launch launch{.run = "changed",
                .ranks = 2,
                .overrides = {"checkpoint.ram_every_steps=1"},
                .faults = "step.begin@3=sleep:300,step.end@3:1=flip:weights:22:7,step.begin@4=sleep:300",
                .data_ends_in_step = 4};
  ASSERT_EQ(train_small(launch).code, ExitCode::communication);
  launch.faults.clear();
  launch.data_ends_in_step = 0;
  testing::internal::CaptureStderr();
  EXPECT_EQ(train_small(launch).code, ExitCode::done);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("RAM snapshot skipped: .*the RAM snapshot of step 3 is damaged: .*"
                                     "not what the update of that step wrote"));
  EXPECT_EQ(digest("changed"), digest("one"));
}

TEST_F(EmulatedGpu, AnyNumberOfRanksGivesTheSameBits) {
  expect_done({.run = "one"});
  for (const int ranks : {2, 3}) {
    const std::string run = fmt::format("ranks{}", ranks);
    expect_done({.run = run, .ranks = ranks});
    EXPECT_EQ(digest(run), digest("one")) << ranks << " ranks";
  }
}

TEST_F(EmulatedGpu, AnyNumberOfRanksInBf16WithATiedHead) {
  const std::vector<std::string> what = {"model.style=gpt2", "model.kv_heads=4", "training.precision=bf16",
                                         "training.microbatches_per_lane=2", "training.steps=2"};
  expect_done({.run = "one", .overrides = what});
  expect_done({.run = "two", .ranks = 2, .overrides = what});
  EXPECT_EQ(digest("two"), digest("one"));
}

TEST_F(EmulatedGpu, BFloat16MomentsHaveTheSameBitsOnAnyRanksAndResumed) {
  const std::vector<std::string> what = {"optimizer.moments=bf16"};
  expect_done({.run = "one", .overrides = what});
  expect_done({.run = "two", .ranks = 2, .overrides = what});
  EXPECT_EQ(digest("two"), digest("one"));
  ASSERT_EQ(train_small({.run = "parts", .ranks = 2, .stop_after_steps = 2, .overrides = what}).code,
            ExitCode::saved);
  expect_done({.run = "parts", .overrides = what});
  EXPECT_EQ(digest("parts"), digest("one"));
  expect_done({.run = "wide"});
  EXPECT_NE(digest("wide"), digest("one"));
}

// Activations and gradients go through pinned buffers, whose copies stand in the queue of an asynchronous
// device.
TEST_F(EmulatedGpu, PipelinesGiveTheSameBits) {
  const std::vector<std::string> what = {
      "model.head=tied",  "training.microbatches_per_lane=3", "parallel.lanes=2",
      "training.steps=2", "training.sequence_length=8",       "evaluation.every_steps=1"};
  expect_done({.run = "one", .overrides = what});
  const std::vector<std::vector<std::string>> layouts = {
      {"parallel.pipeline=2"},
      {"parallel.pipeline=2", "training.cuda_graphs=true", "training.recompute=full"},
      {"parallel.pipeline=2", "parallel.pipeline_chunks=2", "parallel.pipeline_schedule=interleaved"},
      {"parallel.pipeline=2", "training.cuda_graphs=true", "parallel.pipeline_schedule=zero_bubble"}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const std::string run = fmt::format("pipeline{}", i);
    std::vector<std::string> overrides = what;
    overrides.insert(overrides.end(), layouts[i].begin(), layouts[i].end());
    expect_done({.run = run, .ranks = i == 0 ? 4 : 2, .overrides = overrides});
    EXPECT_EQ(digest(run), digest("one")) << run;
    EXPECT_EQ(losses(run), losses("one")) << run;
  }
}

// Rows and parts of sums go through pinned buffers in the middle of a forward.
TEST_F(EmulatedGpu, SlicesGiveTheSameBitsOnAnyRanks) {
  const std::vector<std::string> what = {"model.kv_heads=4",
                                         "parallel.tensor_lanes=4",
                                         "training.steps=2",
                                         "training.sequence_length=8",
                                         "training.microbatches_per_lane=2",
                                         "evaluation.every_steps=1",
                                         "training.cuda_graphs=true",
                                         "parallel.lanes=2"};
  expect_done({.run = "one", .overrides = what});
  struct Layout {
    int data, stages;
  };
  for (const auto [data, stages] : {Layout{1, 1}, Layout{2, 1}, Layout{1, 2}}) {
    const std::string run = fmt::format("d{}p{}", data, stages);
    std::vector<std::string> overrides = what;
    overrides.insert(overrides.end(), {"parallel.tensor=2", fmt::format("parallel.pipeline={}", stages)});
    expect_done({.run = run, .ranks = 2 * data * stages, .overrides = overrides});
    EXPECT_EQ(digest(run), digest("one")) << run;
    EXPECT_EQ(losses(run), losses("one")) << run;
  }
}

TEST_F(EmulatedGpu, NormsOfHeadsGiveTheSameBitsOnAnyRanks) {
  const std::vector<std::string> what = {"model.style=qwen3",         "model.head_size=12",
                                         "model.rope_scaling=llama3", "model.rope_factor=4",
                                         "parallel.tensor_lanes=2",   "model.rope_original_positions=16",
                                         "training.steps=2",          "training.sequence_length=8",
                                         "training.cuda_graphs=true", "parallel.lanes=2"};
  expect_done({.run = "one", .overrides = what});
  std::vector<std::string> overrides = what;
  overrides.emplace_back("parallel.tensor=2");
  expect_done({.run = "two", .ranks = 2, .overrides = overrides});
  EXPECT_EQ(digest("two"), digest("one"));
}

// With other ranks all microbatches of a lane but the last, alone all of them.
TEST_F(EmulatedGpu, GraphsOfMicrobatchesGiveTheSameBits) {
  const std::vector<std::string> what = {
      "model.style=gpt2",       "model.kv_heads=4", "training.microbatches_per_lane=3",
      "parallel.lanes=2",       "training.steps=2", "training.sequence_length=8",
      "training.recompute=full"};
  std::vector<std::string> graphs = what;
  graphs.emplace_back("training.cuda_graphs=true");
  expect_done({.run = "plain", .overrides = what});
  for (const int ranks : {1, 2}) {
    const std::string run = fmt::format("graphs{}", ranks);
    expect_done({.run = run, .ranks = ranks, .overrides = graphs});
    EXPECT_EQ(digest(run), digest("plain")) << ranks << " ranks";
  }
}

TEST_F(EmulatedGpu, FrozenLayersGiveTheSameBits) {
  const std::vector<std::string> what = {"model.head=tied",
                                         "training.microbatches_per_lane=2",
                                         "parallel.lanes=2",
                                         "training.steps=2",
                                         "training.sequence_length=8",
                                         "training.precision=bf16",
                                         "model.freeze=[\"embedding\", \"layer 0\"]"};
  expect_done({.run = "one", .overrides = what});
  for (const char* how : {"parallel.pipeline=1", "parallel.pipeline=2"}) {
    std::vector<std::string> overrides = what;
    overrides.insert(overrides.end(), {how, "training.cuda_graphs=true"});
    expect_done({.run = how, .ranks = 2, .overrides = overrides});
    EXPECT_EQ(digest(how), digest("one")) << how;
    EXPECT_EQ(losses(how), losses("one")) << how;
  }
}

TEST_F(EmulatedGpu, AdaptersGiveTheSameBitsAndTheLossesOfTheCpu) {
  const std::vector<std::string> what = {"parallel.lanes=2", "training.steps=3", "training.sequence_length=8",
                                         "lora.rank=4", "lora.alpha=8"};
  expect_done({.run = "one", .overrides = what});
  expect_done({.run = "two", .ranks = 2, .overrides = what});
  EXPECT_EQ(digest("two"), digest("one"));
  const RunEnd end = train_small({.run = "cpu", .overrides = what}, "cpu");
  ASSERT_EQ(end.code, ExitCode::done) << end.message;
  const std::vector<double> gpu = losses("one"), cpu = losses("cpu");
  ASSERT_EQ(gpu.size(), cpu.size());
  for (std::size_t i = 0; i < gpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 1e-4 * cpu[i]);
}

TEST_F(EmulatedGpu, LossesAreThoseOfTheCpu) {
  expect_done({.run = "gpu"});
  const RunEnd end = train_small({.run = "cpu"}, "cpu");
  ASSERT_EQ(end.code, ExitCode::done) << end.message;
  const std::vector<double> gpu = losses("gpu"), cpu = losses("cpu");
  ASSERT_EQ(gpu.size(), 5U) << "four steps and an evaluation";
  ASSERT_EQ(cpu.size(), gpu.size());
  EXPECT_NEAR(gpu[0], cpu[0], 1e-6 * cpu[0]) << "of the same initial weights";
  for (std::size_t i = 1; i < gpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 1e-4 * cpu[i]);
}

// The device digests the parameters of every rank, and those of one have changed.
TEST_F(EmulatedGpu, ParametersThatChangedAreFoundByAnAudit) {
  for (const char* const precision : {"fp32", "bf16"}) {
    const std::string whole = fmt::format("whole-{}", precision),
                      changed = fmt::format("changed-{}", precision);
    const std::vector<std::string> what = {"verdict.audit_every_steps=3",
                                           fmt::format("training.precision={}", precision)};
    expect_done({.run = whole, .ranks = 2, .overrides = what});
    // Rank 0 owns element 0.
    expect_done(
        {.run = changed, .ranks = 2, .overrides = what, .faults = "step.begin@3:1=flip:parameters:0:0"});
    EXPECT_EQ(digest(changed), digest(whole)) << precision;
    const std::string events = posix_env().read_text(run_directory(changed) + "/events.jsonl").value();
    EXPECT_NE(events.find("computed with parameters that had changed in its memory: "), std::string::npos)
        << events;
  }
}

// Tensors longer than the buffer through which the host fills, saves and loads them.
TEST_F(EmulatedGpu, StateLongerThanTheHostsBuffer) {
  const std::vector<std::string> what = {"model.vocabulary=70000",     "model.layers=1",
                                         "parallel.lanes=2",           "training.sequence_length=4",
                                         "training.microbatch_size=1", "training.steps=2",
                                         "evaluation.every_steps=0"};
  expect_done({.run = "whole", .overrides = what});
  ASSERT_EQ(train_small({.run = "parts", .stop_after_steps = 1, .overrides = what}).code, ExitCode::saved);
  expect_done({.run = "parts", .overrides = what});
  EXPECT_EQ(digest("parts"), digest("whole"));
  ASSERT_EQ(train_small({.run = "initial", .stop_after_steps = 1, .overrides = what}, "cpu").code,
            ExitCode::saved);
  EXPECT_NEAR(losses("initial").front(), losses("whole").front(), 1e-5) << "of the same initial weights";
}

// The digests of what is sent and received are made on the device, which alone sees it.
TEST_F(EmulatedGpu, GradientsThatChangedOnTheirWayAreSentAgain) {
  const std::vector<std::string> what = {"verdict.audit_every_steps=1", "training.steps=3"};
  expect_done({.run = "clean", .ranks = 2, .overrides = what});
  expect_done(
      {.run = "changed", .ranks = 2, .overrides = what, .faults = "reduce.received@9:1=flip:gradients:20:3"});
  EXPECT_EQ(digest("changed"), digest("clean"));
  const auto verdicts = [&](const std::string& run) {
    const std::string events = posix_env().read_text(run_directory(run) + "/events.jsonl").value();
    int count = 0;
    for (std::size_t at = 0; (at = events.find("the link from rank 0", at)) != std::string::npos; ++at)
      ++count;
    return count;
  };
  EXPECT_EQ(verdicts("clean"), 0);
  EXPECT_EQ(verdicts("changed"), 1);
}

TEST_F(EmulatedGpu, TheDeviceOfARunStays) {
  ASSERT_EQ(train_small({.run = "cpu", .stop_after_steps = 1}, "cpu").code, ExitCode::saved);
  const RunEnd other = train_small({.run = "cpu"}, "cuda");
  EXPECT_EQ(other.code, ExitCode::config);
  EXPECT_NE(other.message.find("device: \"cpu\" -> \"cuda\"  (forbidden)"), std::string::npos)
      << other.message;
  const RunEnd same = train_small({.run = "cpu"}, "auto");
  EXPECT_EQ(same.code, ExitCode::done) << same.message;

  const RunEnd chosen = train_small({.run = "auto"}, "auto");
  ASSERT_EQ(chosen.code, ExitCode::done) << chosen.message;
  const std::string config = posix_env().read_text(run_directory("auto") + "/config.toml").value();
  EXPECT_NE(config.find("device = \"cuda\""), std::string::npos) << config;
}

TEST_F(EmulatedGpu, KernelsAreThoseOfTheDevice) {
  const RunEnd end = train_small({.run = "avx2", .overrides = {"kernels.gelu_forward=avx2"}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_NE(end.message.find("there is no such implementation"), std::string::npos) << end.message;
  EXPECT_NE(end.message.find("cuda"), std::string::npos) << end.message;
}

}  // namespace
}  // namespace holdfast::test
