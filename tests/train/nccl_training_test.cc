// Whole runs whose ranks exchange the emulated device's memory through NCCL: its double, one for each rank.
// All share one GPU, which NCCL takes from 2.30.3.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "runtime/core/json.h"
#include "runtime/rank/device_choice.h"
#include "tests/parallel/nccl/nccl_double.h"
#include "tests/support/worker_rig.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

using test::NcclDouble;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int modern = 23007;

// Does something to a rank's NCCL before a step, and asks for no stop.
class Meddler final : public StopSource {
 public:
  using Act = std::function<void(NcclDouble&)>;
  Meddler(NcclDouble*& library, int step, Act act) : library_(&library), step_(step), act_(std::move(act)) {}
  bool stop_requested() override {
    if (++asked_ == step_ && act_) act_(**library_);
    return false;
  }

 private:
  NcclDouble** library_;
  int step_;
  Act act_;
  int asked_ = 0;
};

class NcclTraining : public TrainingTest {
 protected:
  NcclTraining() { setenv("HOLDFAST_CUDA_MODULE", HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so", 1); }
  ~NcclTraining() override { unsetenv("HOLDFAST_CUDA_MODULE"); }

  struct Scene {
    std::string run = {};
    int ranks = 2;
    std::vector<int> versions = {};  // of each rank's NCCL, 0: it has none; empty: a modern one everywhere
    std::vector<std::string> overrides = {};
    int meddled_rank = -1;
    Meddler::Act act = {};      // at the beginning of its step 2
    Meddler::Act prepare = {};  // before its NCCL is used
  };

  // How each rank ended. No rule of NCCL is broken.
  std::vector<RunEnd> train_all(const Scene& scene) {
    test::NcclWorld world;
    std::vector<RunEnd> ends(static_cast<std::size_t>(scene.ranks));
    const Result<void> joined = run_local_ranks(scene.ranks, [&](Communicator& communicator) -> Result<void> {
      ends[static_cast<std::size_t>(communicator.rank())] = train_rank(scene, world, communicator);
      return {};
    });
    EXPECT_TRUE(joined.ok());
    EXPECT_THAT(world.violations(), IsEmpty());
    EXPECT_EQ(world.handles_left(), 0) << "of communicators, streams, events and memory";
    return ends;
  }
  void expect_done(const Scene& scene) {
    for (const RunEnd& end : train_all(scene)) ASSERT_EQ(end.code, ExitCode::done) << end.message;
  }

  Json start_event(const std::string& run) const {
    const std::string events = posix_env().read_text(run_directory(run) + "/events.jsonl").value();
    return Json::parse(events.substr(0, events.find('\n')));
  }
  Json finish_event(const std::string& run) const {
    const std::string events = posix_env().read_text(run_directory(run) + "/events.jsonl").value();
    return Json::parse(events.substr(events.rfind('\n', events.size() - 2) + 1));
  }

 private:
  RunEnd train_rank(const Scene& scene, test::NcclWorld& world, Communicator& communicator) {
    const int rank = communicator.rank();
    const int version = scene.versions.empty() ? modern : scene.versions[static_cast<std::size_t>(rank)];
    NcclDouble* library = nullptr;
    FaultPoints faults;
    Meddler meddler(library, 2, rank == scene.meddled_rank ? scene.act : Meddler::Act{});
    std::vector<std::string> arguments = {"--device=cuda",
                                          "--training.steps=3",
                                          "--training.sequence_length=8",
                                          "--training.microbatch_size=1",
                                          "--optimizer.warmup_steps=1",
                                          "--evaluation.every_steps=0"};
    for (const std::string& line : scene.overrides) arguments.push_back("--" + line);
    const Result<LoadedConfig> config = load_config_text(posix_env(), config_text({.run = scene.run}),
                                                         "test.toml", parse_overrides(arguments).value());
    const auto load_nccl = [&]() -> Result<std::unique_ptr<NcclLibrary>> {
      if (version == 0) return fail(ExitCode::config, "the test gives it none");
      auto made = std::make_unique<NcclDouble>(world, version);
      library = made.get();
      if (rank == scene.meddled_rank && scene.prepare) scene.prepare(*made);
      return std::unique_ptr<NcclLibrary>(std::move(made));
    };
    return train_run({{.env = posix_env(), .faults = faults, .communicator = communicator},
                      {.build = "test", .started_ns = posix_env().monotonic_ns(), .load_nccl = load_nccl},
                      meddler,
                      config});
  }
};

// What the ranks' NCCL was asked for, seen at the second step.
TEST_F(NcclTraining, GivesTheBitsOfOneRankAndOfTheHostsExchange) {
  expect_done({.run = "one", .ranks = 1});
  ASSERT_TRUE(digest("one").starts_with("step 3\n")) << digest("one");
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    const std::string nccl = fmt::format("nccl{}", ranks), host = fmt::format("host{}", ranks);
    std::vector<std::string> names;
    int ranks_per_gpu = 0;
    expect_done({.run = nccl, .ranks = ranks, .meddled_rank = 1, .act = [&](NcclDouble& library) {
                   names = library.names();
                   ranks_per_gpu = library.ranks_per_gpu();
                 }});
    EXPECT_THAT(names, ElementsAre("holdfast-e0-data"));
    EXPECT_EQ(ranks_per_gpu, ranks);
    EXPECT_EQ(digest(nccl), digest("one"));
    EXPECT_EQ(start_event(nccl)["exchange"], fmt::format("NCCL 2.30.7, up to {} ranks on one GPU", ranks));
    expect_done({.run = host, .ranks = ranks, .overrides = {"parallel.exchange=host"}});
    EXPECT_EQ(digest(host), digest("one"));
    EXPECT_EQ(start_event(host)["exchange"], "pinned host memory, as parallel.exchange = \"host\" asks");
    for (const char* bytes : {"data_bytes_sent", "data_bytes_received"}) {
      EXPECT_GT(finish_event(host)[bytes], 0);
      EXPECT_EQ(finish_event(nccl)[bytes], finish_event(host)[bytes]) << bytes;
    }
  }
}

TEST_F(NcclTraining, Bf16WithATiedHeadInOneWaveGivesTheSameBits) {
  const std::vector<std::string> what = {"model.style=gpt2", "model.kv_heads=4", "training.precision=bf16",
                                         "parallel.lanes=2", "training.steps=2"};
  expect_done({.run = "one", .ranks = 1, .overrides = what});
  expect_done({.run = "two", .ranks = 2, .overrides = what});
  EXPECT_EQ(digest("two"), digest("one"));
}

// Buckets take turns in a few places, of which NCCL sends and into which it receives.
TEST_F(NcclTraining, ShardedGradientsGiveTheSameBits) {
  const std::vector<std::string> what = {"model.layers=6", "parallel.lanes=4"};
  expect_done({.run = "one", .ranks = 1, .overrides = what});
  Scene scene{.run = "sharded", .ranks = 2, .overrides = what, .meddled_rank = 1};
  scene.overrides.push_back("optimizer.shard_gradients=true");
  scene.act = [](NcclDouble& library) { library.slow_groups(std::chrono::milliseconds(1)); };
  expect_done(scene);
  EXPECT_EQ(digest("sharded"), digest("one"));
}

struct Layout {
  const char* name;
  int ranks;
  std::vector<std::string> overrides;
  int transports_at_once;
  std::vector<std::string> names;  // of the communicators of rank 1, in the order in which it connects them
};

std::vector<Layout> layouts() {
  const std::string data = "holdfast-e0-data", tensor = "holdfast-e0-tensor", tied = "holdfast-e0-tied";
  const auto pair = [](int from, int to) {
    return std::vector{fmt::format("holdfast-e0-activations-{}-{}", from, to),
                       fmt::format("holdfast-e0-gradients-{}-{}", to, from)};
  };
  const auto all_of = [](std::initializer_list<std::vector<std::string>> parts) {
    std::vector<std::string> names;
    for (const auto& part : parts) names.insert(names.end(), part.begin(), part.end());
    return names;
  };
  const std::string zero_bubble = "parallel.pipeline_schedule=zero_bubble", stages2 = "parallel.pipeline=2",
                    slices2 = "parallel.tensor=2", chunks2 = "parallel.pipeline_chunks=2",
                    interleaved = "parallel.pipeline_schedule=interleaved";
  return {
      {"slices", 2, {slices2}, 1, {tensor}},
      {"slices and replicas", 4, {slices2}, 2, {data, tensor}},
      {"stages", 2, {stages2}, 2, all_of({pair(0, 1), {tied}})},
      {"stages and replicas, zero bubble",
       4,
       {stages2, zero_bubble},
       3,
       all_of({{data}, pair(0, 1), {tied}})},
      {"stages and slices", 4, {stages2, slices2}, 3, all_of({{tensor}, pair(0, 1), {tied}})},
      {"stages and slices, zero bubble",
       4,
       {stages2, slices2, zero_bubble},
       3,
       all_of({{tensor}, pair(0, 1), {tied}})},
      {"chunks", 2, {stages2, interleaved, chunks2}, 4, all_of({pair(0, 1), pair(1, 0), {tied}})},
      {"chunks on an odd ring",
       3,
       {"parallel.pipeline=3", interleaved, chunks2},
       4,
       all_of({pair(0, 1), pair(1, 2)})},
      {"chunks, slices and replicas",
       8,
       {stages2, slices2, interleaved, chunks2},
       6,
       all_of({{data, tensor}, pair(0, 1), pair(1, 0), {tied}})},
  };
}

const std::vector<std::string> small = {"model.layers=4",
                                        "model.width=16",
                                        "model.feed_forward=32",
                                        "model.head=tied",
                                        "parallel.lanes=2",
                                        "parallel.tensor_lanes=2",
                                        "training.microbatches_per_lane=2",
                                        "training.steps=2",
                                        "training.sequence_length=4"};

// Every axis goes by NCCL, with a communicator for each direction.
TEST_F(NcclTraining, EveryLayoutGivesTheSameBits) {
  expect_done({.run = "one", .ranks = 1, .overrides = small});
  ASSERT_TRUE(digest("one").starts_with("step 2\n")) << digest("one");
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    Scene scene{.run = layout.name, .ranks = layout.ranks, .overrides = small, .meddled_rank = 1};
    scene.overrides.insert(scene.overrides.end(), layout.overrides.begin(), layout.overrides.end());
    std::vector<std::string> names;
    int transports_at_once = 0;
    scene.act = [&](NcclDouble& library) {
      names = library.names();
      transports_at_once = library.communicators_at_once();
    };
    expect_done(scene);
    EXPECT_EQ(digest(layout.name), digest("one"));
    EXPECT_EQ(names, layout.names);
    EXPECT_EQ(transports_at_once, layout.transports_at_once);
    EXPECT_EQ(start_event(layout.name)["exchange"],
              fmt::format("NCCL 2.30.7, up to {} ranks on one GPU", layout.ranks));
  }
}

TEST_F(NcclTraining, MovesAsManyBytesAsTheHostOnEveryAxis) {
  Scene scene{.run = "nccl", .ranks = 8, .overrides = small};
  scene.overrides.insert(scene.overrides.end(), {"parallel.tensor=2", "parallel.pipeline=2"});
  expect_done(scene);
  scene.run = "host";
  scene.overrides.push_back("parallel.exchange=host");
  expect_done(scene);
  EXPECT_EQ(digest("host"), digest("nccl"));
  for (const char* axis : {"data", "pipeline", "tensor"}) {
    for (const char* what : {"bytes_sent", "bytes_received"}) {
      const std::string field = fmt::format("{}_{}", axis, what);
      EXPECT_GT(finish_event("host")[field], 0) << field;
      EXPECT_EQ(finish_event("nccl")[field], finish_event("host")[field]) << field;
    }
  }
}

// What pinned memory is planned for exchanges: none where NCCL moves them.
TEST_F(NcclTraining, NoPinnedBuffersAreReserved) {
  Config config;
  config.model.layers = 2;
  config.model.heads = 2;
  config.model.width = 32;
  config.model.head = "tied";
  config.training.steps = 2;
  config.training.sequence_length = 8;
  config.parallel.lanes = 2;
  config.parallel.pipeline = config.parallel.tensor = 2;
  const auto emulated_gpu = [] {
    const Result<const CudaModule*> module = find_cuda_module(posix_env());
    HF_CHECK(module.ok());
    return (*module)->make_device({.ordinal = 0}).value();
  };
  const auto buffers_of = [](const Worker& worker) {
    const std::vector<MemoryPlan::Entry>& entries = worker.memory_plan().entries();
    return std::ranges::count(entries, "exchange.buffers", &MemoryPlan::Entry::name);
  };
  test::NcclWorld world;
  test::WorkerRig rig(config, 8);
  rig.run_on(
      emulated_gpu,
      [&](Worker& worker) -> Result<void> {
        EXPECT_EQ(buffers_of(worker), 0);
        return outcome_of(run_step(worker, {}));
      },
      [&] { return std::make_unique<NcclDouble>(world, modern); });
  rig.run_on(emulated_gpu, [&](Worker& worker) -> Result<void> {
    EXPECT_GE(buffers_of(worker), 4) << "data, tensor, both ways to one neighbour";
    return {};
  });
  EXPECT_THAT(world.violations(), IsEmpty());
}

// Returns how often the host of rank 0 waited for the other slices of a layer, in one step of two layers and one
// microbatch. With more of them it would be ahead of an emulated device by more than TensorGroup allows.
std::int64_t waits_for_slices(const std::string& exchange) {
  Config config = two_layers(1);
  config.training.sequence_length = 8;
  config.training.microbatch_size = 1;
  config.parallel.tensor = 2;
  config.parallel.exchange = exchange;
  std::int64_t waits = 0;
  test::NcclWorld world;
  test::WorkerRig rig(config, 2);
  const test::WorkerRig::Nccl nccl = [&] { return std::make_unique<NcclDouble>(world, modern); };
  rig.run_on(
      [] {
        const Result<const CudaModule*> module = find_cuda_module(posix_env());
        HF_CHECK(module.ok());
        return (*module)->make_device({.ordinal = 0}).value();
      },
      [&](Worker& worker) -> Result<void> {
        SpanRecorder& recorder = worker.rank().spans;
        std::vector<Span> spans(4096);
        recorder.record_into(spans);
        Result<void> step = outcome_of(run_step(worker, {}));
        worker.rank().device.synchronize();  // it writes stamps into the spans
        EXPECT_EQ(recorder.lost(), 0U);
        for (std::uint64_t i = 0; worker.rank().communicator.rank() == 0 && i < recorder.kept(); ++i)
          waits += recorder.at(i).kind == SpanKind::wait_slices ? 1 : 0;
        recorder.record_into({});
        return step;
      },
      exchange == "host" ? test::WorkerRig::Nccl{} : nccl);
  EXPECT_THAT(world.violations(), IsEmpty());
  return waits;
}

// The device orders work and exchanges by events. By the host its queue runs empty at 8 exchanges of each layer, and at
// those of embedding and head.
TEST_F(NcclTraining, NoHostWaitsForTheSlicesOfALayer) {
  EXPECT_EQ(waits_for_slices("nccl"), 0);
  EXPECT_GE(waits_for_slices("host"), 2 * 8);
}

// Kernels of all communicators start late on one rank, and NCCL makes their launches later.
TEST_F(NcclTraining, SlowIsNoErrorOnAnyAxis) {
  expect_done({.run = "one", .ranks = 1, .overrides = small});
  for (const char* schedule : {"1f1b", "zero_bubble"}) {
    Scene scene{.run = schedule, .ranks = 8, .overrides = small, .meddled_rank = 2};
    scene.overrides.insert(scene.overrides.end(), {"parallel.tensor=2", "parallel.pipeline=2",
                                                   fmt::format("parallel.pipeline_schedule={}", schedule)});
    scene.act = [](NcclDouble& library) {
      library.slow_groups(std::chrono::milliseconds(2));
      library.slow_launch(3);
    };
    expect_done(scene);
    EXPECT_EQ(digest(schedule), digest("one")) << schedule;
  }
}

// Kernels that start late on one rank, and launches that NCCL makes later: nothing is read before it is
// there.
TEST_F(NcclTraining, SlowIsNoError) {
  expect_done({.run = "one", .ranks = 1});
  expect_done({.run = "slow", .ranks = 3, .meddled_rank = 1, .act = [](NcclDouble& library) {
                 library.slow_groups(std::chrono::milliseconds(5));
                 library.slow_launch(3);
               }});
  EXPECT_EQ(digest("slow"), digest("one"));
}

// Long before the deadline: the rank leaves, the others see it, and nobody waits in NCCL.
TEST_F(NcclTraining, ARankThatFailsInAnExchangeEndsAll) {
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  const std::vector<RunEnd> ends =
      train_all({.run = "failed",
                 .ranks = 3,
                 .overrides = {"parallel.timeout=10m"},
                 .meddled_rank = 1,
                 .act = [](NcclDouble& library) { library.fail_next("ncclSend", 2); }});
  for (const RunEnd& end : ends) EXPECT_EQ(end.code, ExitCode::communication);
  EXPECT_THAT(ends[1].message, AllOf(HasSubstr("NCCL failed on rank 1 of holdfast-e0-data"),
                                     HasSubstr("ncclSend: unhandled system error")));
  EXPECT_THAT(ends[0].message, HasSubstr("rank 0 lost rank"));
  EXPECT_THAT(ends[2].message, HasSubstr("rank 2 lost rank"));
  EXPECT_LT((posix_env().monotonic_ns() - begin_ns) / 1'000'000, 240'000);
  const Json status = Json::parse(posix_env().read_text(run_directory("failed") + "/status.json").value());
  EXPECT_EQ(status["state"], "failed");
  EXPECT_EQ(status["exit_code"], 76);
}

// Its kernels stop where they are, and nobody is told: the deadline is parallel.timeout.
TEST_F(NcclTraining, AnExchangeThatHangsEndsAtTheDeadline) {
  const std::vector<RunEnd> ends = train_all({.run = "hung",
                                              .ranks = 2,
                                              .overrides = {"parallel.timeout=3s"},
                                              .meddled_rank = 1,
                                              .act = [](NcclDouble& library) { library.die(); }});
  std::vector<std::string> messages;
  for (const RunEnd& end : ends) {
    EXPECT_EQ(end.code, ExitCode::communication);
    messages.push_back(end.message);
  }
  // The parameters of the step before travel behind this one's forward, so it may be they that pause for a
  // resize.
  const auto in_reduction = HasSubstr("saw nothing move for 3000 ms in wave 0 of the lane reduction");
  const auto in_gather = HasSubstr("waited 3000 ms for rank");
  EXPECT_THAT(messages, Contains(AnyOf(in_reduction, in_gather)));
  EXPECT_THAT(messages, Each(AnyOf(HasSubstr("saw nothing move"), in_gather, HasSubstr("lost rank"))));
}

// The same where the host waits in the middle of a layer, and where it waits for a neighbour.
TEST_F(NcclTraining, AHangBetweenSlicesOrStagesEndsAtTheDeadline) {
  const std::pair<const char*, const char*> cases[] = {
      {"parallel.tensor=2", "waited 3000 ms for rank 1 in an exchange between the slices of a layer"},
      {"parallel.pipeline=2", "waited 3000 ms in the pipeline, at the "}};
  for (const auto& [layout, sentence] : cases) {
    SCOPED_TRACE(layout);
    const std::vector<RunEnd> ends = train_all({.run = layout,
                                                .ranks = 2,
                                                .overrides = {"parallel.timeout=3s", layout},
                                                .meddled_rank = 1,
                                                .act = [](NcclDouble& library) { library.die(); }});
    for (const RunEnd& end : ends) EXPECT_EQ(end.code, ExitCode::communication);
    std::vector<std::string> messages = {ends[0].message, ends[1].message};
    EXPECT_THAT(messages,
                Contains(AnyOf(HasSubstr(sentence), HasSubstr("waited 3000 ms for rank 0 in an ex"))));
    EXPECT_THAT(messages, Each(AnyOf(HasSubstr("waited 3000 ms"), HasSubstr("lost rank"))));
  }
}

// A rank whose NCCL fails in the middle of an exchange: the others learn it from it, long before the
// deadline.
TEST_F(NcclTraining, AFailureBetweenSlicesEndsAll) {
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  const std::vector<RunEnd> ends =
      train_all({.run = "failed",
                 .ranks = 4,
                 .overrides = {"parallel.timeout=10m", "parallel.tensor=2"},
                 .meddled_rank = 3,
                 .act = [](NcclDouble& library) { library.fail_next("ncclSend", 2); }});
  for (const RunEnd& end : ends) EXPECT_EQ(end.code, ExitCode::communication);
  EXPECT_THAT(ends[3].message, AllOf(HasSubstr("NCCL failed on rank 1 of holdfast-e0-tensor"),
                                     HasSubstr("ncclSend: unhandled system error")));
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(ends[static_cast<std::size_t>(rank)].message,
                HasSubstr(fmt::format("rank {} lost rank", rank)));
  EXPECT_LT((posix_env().monotonic_ns() - begin_ns) / 1'000'000, 240'000);
}

// One of several communicators does not connect: also the ranks that have no part in it say so.
TEST_F(NcclTraining, AnyCommunicatorThatNeverConnectsIsASentence) {
  const std::pair<const char*, const char*> cases[] = {
      {"holdfast-e0-tensor", "NCCL did not connect the 2 ranks of holdfast-e0-tensor within 3000 ms"},
      {"holdfast-e0-gradients-1-0",
       "NCCL did not connect the 2 ranks of holdfast-e0-gradients-1-0 within 30"},
      {"holdfast-e0-tied", "NCCL did not connect the 2 ranks of holdfast-e0-tied within 3000 ms"}};
  for (const auto& [name, sentence] : cases) {
    SCOPED_TRACE(name);
    const std::vector<RunEnd> ends = train_all(
        {.run = name,
         .ranks = 4,
         .overrides = {"parallel.timeout=3s", "parallel.tensor=2", "parallel.pipeline=2", "model.head=tied"},
         .meddled_rank = 0,
         .prepare = [name = name](NcclDouble& library) { library.never_start(name); }});
    for (const RunEnd& end : ends) {
      EXPECT_EQ(end.code, ExitCode::communication);
      EXPECT_THAT(end.message, AllOf(HasSubstr(sentence), HasSubstr("= \"host\" does without NCCL")));
    }
  }
}

TEST_F(NcclTraining, AStartOfNcclThatFailsSaysWhatDoesWithoutIt) {
  const std::vector<RunEnd> ends =
      train_all({.run = "start",
                 .overrides = {"parallel.timeout=2s"},
                 .meddled_rank = 0,
                 .prepare = [](NcclDouble& library) { library.fail_next("ncclCommInitRankConfig", 2); }});
  for (const RunEnd& end : ends) {
    EXPECT_EQ(end.code, ExitCode::communication);
    EXPECT_THAT(end.message, AllOf(HasSubstr("ncclCommInitRankConfig: unhandled system error"),
                                   HasSubstr("parallel.exchange = \"host\" does without NCCL")));
  }
}

TEST_F(NcclTraining, OldVersionsAndMissingOnesGoThroughPinnedMemory) {
  expect_done({.run = "one", .ranks = 1});
  expect_done({.run = "old", .versions = {22809, 22809}});
  EXPECT_EQ(digest("old"), digest("one"));
  EXPECT_THAT(start_event("old")["exchange"].get<std::string>(),
              HasSubstr("pinned host memory, because ranks 0 and 1 share a GPU, which NCCL 2.28.9 refuses"));
  expect_done({.run = "none", .versions = {modern, 0}});
  EXPECT_EQ(digest("none"), digest("one"));
  EXPECT_THAT(start_event("none")["exchange"].get<std::string>(),
              AllOf(HasSubstr("pinned host memory, because rank 1 ("), HasSubstr("the test gives it none")));
}

TEST_F(NcclTraining, NcclThatIsWantedAndNotThereIsASentence) {
  for (const std::vector<int>& versions : {std::vector{22809, 22809}, std::vector{modern, 0}}) {
    const std::vector<RunEnd> ends =
        train_all({.run = "wanted", .versions = versions, .overrides = {"parallel.exchange=nccl"}});
    for (const RunEnd& end : ends) {
      EXPECT_EQ(end.code, ExitCode::config);
      EXPECT_THAT(end.message, HasSubstr("parallel.exchange = \"nccl\", but rank"));
    }
  }
}

}  // namespace
}  // namespace holdfast::test
