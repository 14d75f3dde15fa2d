// Steps that are recorded: everything that was done is in the files of the ranks, on any device, and no bit
// is another.
#include <fmt/core.h>

#include "runtime/run/trace_file.h"
#include "tests/support/faulty_env.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

class TraceRecordingTest : public TrainingTest {
 protected:
  TraceRecordingTest() {
    setenv("HOLDFAST_CUDA_MODULE", HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so", 1);
  }
  ~TraceRecordingTest() override { unsetenv("HOLDFAST_CUDA_MODULE"); }

  Launch traced(const std::string& run, const std::vector<std::string>& more = {},
                const std::string& device = "cpu") const {
    Launch launch{.run = run,
                  .ranks = 2,
                  .overrides = {"device=" + device, "training.steps=6", "training.microbatches_per_lane=2",
                                "parallel.pipeline=2", "evaluation.every_steps=3", "evaluation.batches=1"}};
    if (device == "cuda") {  // its threads are fibers
      launch.overrides.emplace_back("training.sequence_length=8");
      launch.overrides.emplace_back("parallel.lanes=2");
    }
    launch.overrides.insert(launch.overrides.end(), more.begin(), more.end());
    return launch;
  }

  RankTrace trace_of(const std::string& run, int rank) const {
    const std::string path = RunPaths{run_directory(run)}.trace(rank);
    const Result<std::string> text = posix_env().read_text(path);
    if (!text.ok()) return {};
    const Result<RankTrace> trace = parse_trace(*text, path);
    EXPECT_TRUE(trace.ok()) << trace.error().message;
    return trace.ok() ? *trace : RankTrace{};
  }

  static std::int64_t count(const RankTrace& trace, SpanKind kind) {
    return std::ranges::count(trace.spans, kind, &Span::kind);
  }
};

TEST_F(TraceRecordingTest, HoldsWhatTheStepsDid) {
  for (const auto& [device, lanes] : {std::pair{"cpu", 4}, std::pair{"cuda", 2}}) {
    ASSERT_EQ(train(traced(fmt::format("plain-{}", device), {}, device)).code, ExitCode::done);
    const std::string run = fmt::format("traced-{}", device);
    ASSERT_EQ(train(traced(run, {"trace.first_step=3", "trace.steps=2"}, device)).code, ExitCode::done);
    EXPECT_EQ(digest(run), digest(fmt::format("plain-{}", device)));
    for (int rank = 0; rank < 2; ++rank) {
      const RankTrace trace = trace_of(run, rank);
      EXPECT_EQ(trace.header.coordinate.pipeline, rank);
      EXPECT_EQ(trace.header.lost, 0u);
      const int microbatches = 2 * lanes * 2;  // of two steps
      EXPECT_EQ(count(trace, SpanKind::forward), microbatches);
      EXPECT_EQ(count(trace, SpanKind::backward), microbatches);
      EXPECT_EQ(count(trace, rank == 0 ? SpanKind::send_activation : SpanKind::receive_activation),
                microbatches);
      EXPECT_EQ(count(trace, rank == 0 ? SpanKind::receive_gradient : SpanKind::send_gradient), microbatches);
      EXPECT_EQ(count(trace, SpanKind::update), 2);
      EXPECT_EQ(count(trace, SpanKind::wait_vote), 2);
      EXPECT_EQ(count(trace, SpanKind::lane_wave), 2 * lanes);
      EXPECT_EQ(count(trace, SpanKind::evaluation), 1);
      EXPECT_EQ(count(trace, SpanKind::save), 0);
      std::int64_t device_free_ns = 0;
      for (const Span& span : trace.spans) {
        EXPECT_GT(span.begin.time_ns, 0) << name_of(span.kind);
        EXPECT_GE(span.end.time_ns, span.begin.time_ns) << name_of(span.kind);
        if (group_of(span.kind) != SpanGroup::compute) continue;
        EXPECT_GE(span.begin.time_ns, device_free_ns) << "a device does one thing at a time";
        EXPECT_GT(span.end.worked_ns, 0);
        device_free_ns = span.end.time_ns;
      }
    }
  }
}

// Device and host read one clock: what the device did in a step lies inside of it.
TEST_F(TraceRecordingTest, StampsOfTheDeviceAreOnTheHostsClock) {
  for (const char* device : {"cpu", "cuda"}) {
    const std::string run = fmt::format("clock-{}", device);
    ASSERT_EQ(train(traced(run, {"trace.first_step=2", "trace.steps=4"}, device)).code, ExitCode::done);
    const RankTrace trace = trace_of(run, 1);
    ASSERT_EQ(count(trace, SpanKind::step), 4);
    constexpr std::int64_t tolerance_ns = 2'000'000;  // a thread that is not let run while it looks
    for (const Span& step : trace.spans) {
      if (step.kind != SpanKind::step) continue;
      for (const Span& span : trace.spans) {
        if (span.step != step.step || group_of(span.kind) != SpanGroup::compute) continue;
        EXPECT_GE(span.begin.time_ns, step.begin.time_ns - tolerance_ns);
        EXPECT_LE(span.end.time_ns, step.end.time_ns + tolerance_ns);
      }
    }
  }
}

TEST_F(TraceRecordingTest, OfARunThatEndsAmongTheSteps) {
  Launch launch = traced("stopped", {"trace.first_step=2", "trace.steps=100"});
  launch.stop_after_steps = 3;
  ASSERT_EQ(train(launch).code, ExitCode::saved);
  EXPECT_EQ(count(trace_of("stopped", 0), SpanKind::step), 2);
  EXPECT_EQ(count(trace_of("stopped", 0), SpanKind::save), 1);
}

TEST_F(TraceRecordingTest, NothingIsRecordedBeforeOrAfterTheSteps) {
  ASSERT_EQ(train(traced("never")).code, ExitCode::done);
  EXPECT_FALSE(posix_env().status(RunPaths{run_directory("never")}.trace())->exists);
  Launch launch = traced("once", {"trace.first_step=1", "trace.steps=1"});
  launch.stop_after_steps = 2;
  ASSERT_EQ(train(launch).code, ExitCode::saved);
  const RankTrace first = trace_of("once", 0);
  launch.stop_after_steps = 0;
  ASSERT_EQ(train(launch).code, ExitCode::done);  // goes on behind the steps that were wanted
  EXPECT_EQ(trace_of("once", 0).header.recording, first.header.recording);
}

TEST_F(TraceRecordingTest, ATraceThatCannotBeWrittenEndsNothing) {
  ASSERT_EQ(train(traced("plain")).code, ExitCode::done);
  FaultyEnv env(posix_env());
  env.inject({.path_contains = "/trace", .for_ever = true, .reason = ENOSPC});
  testing::internal::CaptureStderr();
  EXPECT_EQ(train(traced("full", {"trace.steps=2"}), env).code, ExitCode::done);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("rank 1: the trace of its steps is lost"),
            std::string::npos);
  EXPECT_EQ(digest("full"), digest("plain"));
}

}  // namespace
}  // namespace holdfast::test
