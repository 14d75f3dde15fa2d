// Calls that were captured are made again with the same bits, whatever the op; and watching a device changes nothing.
#include "tools/kernel_kit/call_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/optimizer.h"
#include "kernels/registry.h"
#include "kernels/visit_op.h"
#include "parallel/local/local_communicator.h"
#include "runtime/core/digest.h"
#include "runtime/device/cpu/call_watch.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/measure/call_key.h"
#include "runtime/os/env.h"
#include "runtime/replay/step_session.h"
#include "tools/bench_native/synthetic_run.h"
#include "tools/kernel_kit/call_states.h"
#include "tools/kernel_kit/checked_memory.h"
#include "tools/kernel_kit/kernel_check.h"
#include "tools/kernel_kit/kernel_runner.h"
#include "tools/kernel_kit/trace_capture.h"

namespace holdfast::test {
namespace {

namespace kit = bench::kernel_kit;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::unique_ptr<bench::ScratchDirectory> scratch() {
  return std::move(bench::ScratchDirectory::make(posix_env())).value();
}

// Captures a call of random numbers, as it is made by a kernel.
kit::TracedCall captured(const kit::CheckShape& shape, const Implementation& kernel) {
  return visit_op(shape.call.id(), shape.call.arguments(), [&](const auto& unbound) {
    kit::CheckedMemory memory({.seed = 5, .contents = shape.contents});
    const auto op = memory.bind(unbound);
    kit::KernelRunner runner(1);
    kit::TracedCall call = kit::begin_call(shape.call.id(), &op, shape.contents.tokens_below);
    EXPECT_THAT(runner.run(kernel, &op, std::byte{0}), IsEmpty());
    kit::end_call(call, shape.call.id(), &op, shape.contents.tokens_below);
    return call;
  });
}

class EveryOpTraced : public testing::TestWithParam<std::size_t> {};

// Returns calls of the op in the states that its contract allows, of small models in fp32 and bf16.
std::vector<kit::CheckShape> small_calls(OpId op) {
  static const std::vector<bench::OpSample> samples = [] {
    auto all = bench::op_samples(posix_env(), DType::fp32, bench::SampleSizes::toy).value();
    const auto more = bench::op_samples(posix_env(), DType::bf16, bench::SampleSizes::toy).value();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  constexpr std::size_t most = 40;
  std::set<measure::CallKey> seen;
  std::vector<kit::CheckShape> calls;
  for (const bench::OpSample& sample : samples) {
    if (sample.shape.id() != op) continue;
    visit_op(op, sample.shape.arguments(), [&](const auto& base) {
      kit::visit_states(base, [&](const auto& state) {
        if (calls.size() < most && seen.insert(measure::call_key(op, &state)).second)
          calls.push_back({.use = sample.use,
                           .call = bench::OpCall(state),
                           .contents = sample.contents,
                           .lists = sample.lists});
      });
    });
  }
  return calls;
}

// Through the files, in every state that the contract allows.
TEST_P(EveryOpTraced, IsMadeAgainWithItsBits) {
  const auto op = static_cast<OpId>(GetParam());
  const Implementation* const kernel = kernel_registry().find(op, "portable", CpuIsa::portable);
  const std::vector<kit::CheckShape> shapes = small_calls(op);
  ASSERT_THAT(shapes, Not(IsEmpty()));
  const auto folder = scratch();
  const std::string path = folder->file("trace");
  auto writer = kit::TraceWriter::make(posix_env(), path);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  kit::CallTrace trace;
  std::uint64_t bytes = 0;
  for (const kit::CheckShape& shape : shapes) {
    kit::CallsOfShape& calls = trace.shapes.emplace_back();
    calls = {.op = op, .definition = "shape_" + std::to_string(trace.shapes.size()), .calls = {3, 4}};
    ASSERT_TRUE((*writer)->add(calls, {.uuid = "one", .step = 1, .call = captured(shape, *kernel)}).ok());
    bytes += kit::bytes_of_arrays(op, shape.call.arguments(), shape.contents.tokens_below);
    EXPECT_EQ((*writer)->bytes(), bytes) << "what is announced is what is written";
  }
  ASSERT_TRUE((*writer)->finish(trace).ok());
  const Result<kit::CallTrace> read = kit::open_trace(posix_env(), path);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read->shapes.size(), shapes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    SCOPED_TRACE(measure::call_text(op, shapes[i].call.arguments()));
    // The models have several vocabularies, and a trace that of its run.
    const std::int64_t vocabulary = shapes[i].contents.tokens_below;
    const Result<kit::TracedCalls> again = kit::load_calls(
        posix_env(), {.folder = path, .facts = {.vocabulary = vocabulary}, .shapes = {read->shapes[i]}}, op);
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(measure::call_key(op, again->checked.front().call.arguments()),
              measure::call_key(op, shapes[i].call.arguments()));
    EXPECT_EQ(again->measured.front().calls, 4) << "the mean of 3 and 4, rounded up";
    const Result<std::string> difference =
        kit::difference_when_repeated(again->kept->front().call, vocabulary, *kernel, 1);
    ASSERT_TRUE(difference.ok()) << difference.error().message;
    EXPECT_THAT(*difference, IsEmpty());
  }
}

std::string op_name(const testing::TestParamInfo<std::size_t>& info) {
  return op_names[info.param];
}
INSTANTIATE_TEST_SUITE_P(All, EveryOpTraced, testing::Range<std::size_t>(0, op_count), op_name);

// A capture that came after the call has run would have what it wrote in the place of what it read.
TEST(TracedCall, AnArrayThatIsUpdatedHasBothMoments) {
  std::vector<float> target = {1, 2, 3}, source = {10, 20, 30};
  const Accumulate op{.target = target.data(), .source = source.data(), .count = 3};
  kit::TracedCall call = kit::begin_call(Accumulate::id, &op, 1);
  reference(op);
  kit::end_call(call, Accumulate::id, &op, 1);
  std::map<std::string, std::vector<float>> arrays;
  for (const kit::TracedArray& each : call.arrays) {
    std::vector<float>& values = arrays[each.name];
    values.resize(each.elements());
    std::memcpy(values.data(), each.content.data(), each.bytes);
  }
  EXPECT_THAT(arrays["source"], ElementsAre(10, 20, 30));
  EXPECT_THAT(arrays["target"], ElementsAre(1, 2, 3));
  EXPECT_THAT(arrays["target_after"], ElementsAre(11, 22, 33));
  const Implementation* const kernel = kernel_registry().find(OpId::accumulate, "portable", CpuIsa::portable);
  EXPECT_EQ(kit::difference_when_repeated(call, 1, *kernel, 1).value(), "");
  for (kit::TracedArray& each : call.arrays) {
    if (each.name == "source") each.content[7] ^= std::byte{1};
  }
  EXPECT_EQ(kit::difference_when_repeated(call, 1, *kernel, 1).value(), "element 1 of target_after");
}

TEST(TracedCall, WhatLiesBetweenRowsIsKept) {
  std::vector<float> source = {1, 2, 3, 4}, target = {0, 0, 7, 0, 0};
  const CopyRows op{.source = source.data(),
                    .target = target.data(),
                    .rows = 2,
                    .columns = 2,
                    .source_stride = 2,
                    .target_stride = 3};
  kit::TracedCall call = kit::begin_call(CopyRows::id, &op, 1);
  reference(op);
  kit::end_call(call, CopyRows::id, &op, 1);
  const Implementation* const kernel = kernel_registry().find(OpId::copy_rows, "portable", CpuIsa::portable);
  EXPECT_EQ(kit::difference_when_repeated(call, 1, *kernel, 1).value(), "");
}

// A kernel that is wrong for one number, which no random call has.
TEST(TracedCall, IsCheckedOnTheNumbersThatItHad) {
  const Implementation kernel{
      .op = OpId::gelu_forward, .name = "mine", .run = [](const cpu::Context&, const void* arguments) {
        const auto& op = *static_cast<const GeluForward*>(arguments);
        reference(op);
        if (op.dtype == DType::fp32 && *static_cast<const std::uint32_t*>(op.x) == 0x3f9d70a4U)
          *static_cast<float*>(op.y) += 1.0F;
      }};
  std::vector<float> x = {std::bit_cast<float>(0x3f9d70a4U), 2.0F, 3.0F}, y(3);
  const GeluForward op{.x = x.data(), .y = y.data(), .count = 3};
  kit::TracedCall call = kit::begin_call(GeluForward::id, &op, 1);
  const kit::CallShape shape = kit::shape_of(call, 1).value();
  const std::vector<kit::CheckShape> traced = {{.use = "step 7, layers.3.feed_forward",
                                                .call = shape.call,
                                                .lists = shape.lists,
                                                .given = kit::given_of(call)}};
  const auto problems = [&](std::span<const kit::CheckShape> calls) {
    return kit::check_kernel(
               posix_env(), kernel, [](const std::string&) {}, 17, calls)
        .value()
        .problems;
  };
  EXPECT_THAT(problems({}), IsEmpty());
  EXPECT_THAT(problems(traced),
              ElementsAre(HasSubstr("3, fp32, step 7, layers.3.feed_forward, traced: element 0 of y is ")));
}

TEST(TracedCall, NumbersThatAreOfNoCallAreRefused) {
  std::vector<float> values(6);
  const RmsNormForward op{.x = values.data(),
                          .weight = values.data(),
                          .y = values.data(),
                          .rstd = values.data(),
                          .rows = 2,
                          .width = 3};
  const kit::TracedCall right = kit::begin_call(RmsNormForward::id, &op, 1);
  ASSERT_TRUE(kit::shape_of(right, 1).ok());
  const auto refused = [&](const auto& change) {
    kit::TracedCall call = right;
    change(call);
    const Result<kit::CallShape> shape = kit::shape_of(call, 1);
    return shape.ok() ? "accepted" : shape.error().message;
  };
  EXPECT_THAT(refused([](auto& call) { call.fields["rows"] = Json("two"); }),
              HasSubstr("not those of a call"));
  EXPECT_THAT(refused([](auto& call) { call.fields["dtype"] = Json("fp8"); }),
              HasSubstr("not those of a call"));
  EXPECT_THAT(refused([](auto& call) { call.fields = Json::object(); }), HasSubstr("not those of a call"));
  EXPECT_THAT(refused([](auto& call) { call.segments = Json::array({Json::object()}); }),
              HasSubstr("not those of a call"));
  EXPECT_THAT(refused([](auto& call) { call.fields["rows"] = Json(3); }),
              HasSubstr("not what its shape needs"));
  EXPECT_THAT(refused([](auto& call) { call.fields["rows"] = Json(-1); }), HasSubstr("not those of a call"));
  EXPECT_THAT(refused([](auto& call) { call.fields["rows"] = Json(std::int64_t{1} << 62); }),
              HasSubstr("not those of a call"));
  EXPECT_THAT(refused([](auto& call) { call.fields["width"] = call.fields["rows"] = Json(1 << 30); }),
              HasSubstr("x would have 1152921504606846976 elements"));
  EXPECT_THAT(refused([](auto& call) { call.arrays[1].name = "first_key"; }),
              HasSubstr("not what its shape needs"));
  EXPECT_THAT(refused([](auto& call) { call.arrays[0].operand = 4; }), HasSubstr("an array of no operand"));
  EXPECT_THAT(refused([](auto& call) { call.places.pop_back(); }), HasSubstr("3 operands, and its op 4"));
  EXPECT_THAT(refused([](auto& call) { call.places[0] = 9; }), HasSubstr("memory that no operand has"));
}

// Tests numbers that a kernel takes for places in memory, and would go to.
TEST(TracedCall, PlacesThatAreNotThereAreRefused) {
  std::vector<float> values(64);
  const auto refused = [](const auto& op, const auto& change) {
    kit::TracedCall call = kit::begin_call(std::decay_t<decltype(op)>::id, &op, 5);
    EXPECT_TRUE(kit::shape_of(call, 5).ok());
    change(call);
    const Result<kit::CallShape> shape = kit::shape_of(call, 5);
    return shape.ok() ? "accepted" : shape.error().message;
  };
  std::vector<std::int32_t> tokens = {0, 4}, first_key = {0, 1};
  const EmbeddingForward embedding{.tokens = tokens.data(),
                                   .table = values.data(),
                                   .x = values.data(),
                                   .rows = 2,
                                   .width = 3,
                                   .sequence_length = 2};
  const auto set_second = [](std::int32_t number) {
    return [number](kit::TracedCall& call) {
      for (kit::TracedArray& each : call.arrays) {
        if (each.dtype == DType::int32) std::memcpy(each.content.data() + 4, &number, 4);
      }
    };
  };
  EXPECT_THAT(refused(embedding, set_second(5)), HasSubstr("tokens has numbers of what is not there"));
  EXPECT_THAT(refused(embedding, set_second(-1)), HasSubstr("tokens has numbers of what is not there"));
  EXPECT_THAT(refused(embedding, [](auto& call) { call.fields["sequence_length"] = Json(0); }),
              HasSubstr("not those of a call"));
  const AttentionForward attention{.qkv = values.data(),
                                   .first_key = first_key.data(),
                                   .out = values.data(),
                                   .lse = values.data(),
                                   .batch = 1,
                                   .sequence_length = 2,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_size = 2};
  EXPECT_THAT(refused(attention, set_second(2)), HasSubstr("first_key has numbers of what is not there"));
  EXPECT_THAT(refused(attention, [](auto& call) { call.fields["kv_heads"] = Json(0); }),
              HasSubstr("not those of a call"));
  EXPECT_THAT(refused(attention,
                      [](auto& call) {
                        for (const char* const name : {"batch", "sequence_length", "heads", "head_size"})
                          call.fields[name] = Json(1 << 16);
                      }),
              HasSubstr("not those of a call"));
  const std::vector<BlockSegment> segments = {{.first = 0, .count = 2},
                                              {.first = 4, .count = 3, .first_block = 1}};
  std::vector<double> sums(2);
  const SquareSum square_sum{.values = values.data(),
                             .count = 7,
                             .sums = sums.data(),
                             .segments = segments.data(),
                             .segment_count = 2};
  EXPECT_THAT(refused(square_sum,
                      [](auto& call) {
                        call.segments =
                            Json::parse(call.segments.dump().replace(call.segments.dump().find("4"), 1, "6"));
                      }),
              HasSubstr("not those of a call"));
}

// A trace with a right digest, which anybody can make, may say anything.
TEST(TraceFolder, WhatIsNoTraceIsRefusedWhateverItsDigest) {
  const auto folder = scratch();
  const std::string path = folder->file("trace"), index = path + "/trace.json";
  {
    std::vector<float> values(6);
    const RmsNormForward op{.x = values.data(),
                            .weight = values.data(),
                            .y = values.data(),
                            .rstd = values.data(),
                            .rows = 2,
                            .width = 3};
    auto writer = kit::TraceWriter::make(posix_env(), path);
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    kit::CallTrace trace;
    kit::CallsOfShape& calls = trace.shapes.emplace_back();
    calls = {.op = RmsNormForward::id, .definition = "norm", .calls = {1}};
    ASSERT_TRUE(
        (*writer)->add(calls, {.uuid = "one", .step = 1, .call = kit::begin_call(op.id, &op, 1)}).ok());
    ASSERT_TRUE((*writer)->finish(trace).ok());
  }
  const Json whole = Json::parse(posix_env().read_text(index).value());
  const auto opened = [&](const auto& change) {
    Json changed = whole;
    change(changed["trace"]);
    changed["digest"] = Json(to_hex(digest_of(changed["trace"].dump_any())));
    EXPECT_TRUE(posix_env().replace_text(index, changed.dump_any()).ok());
    const Result<kit::CallTrace> trace = kit::open_trace(posix_env(), path);
    EXPECT_TRUE(trace.ok() || trace.error().code == ExitCode::data);
    return trace.ok() ? "accepted" : trace.error().message;
  };
  EXPECT_EQ(opened([](auto&) {}), "accepted");
  const auto expect_refused = [&](const auto& change) {
    EXPECT_THAT(opened(change), HasSubstr("not what was written (what it says is no trace)"));
  };
  // Each member in turn is left out, and is of other types.
  const auto with_each_member = [&](const auto& object_of) {
    Json original = whole.at("trace");
    for (const JsonMember& member : object_of(original).items()) {
      if (member.key == "op" || member.key == "schema") continue;
      if (member.key == "fields" || member.key == "tensors" || member.key == "segments")
        continue;  // shape_of()
      SCOPED_TRACE(member.key);
      for (const Json& other : {Json(nullptr), Json(-1), Json(0.5), Json::object(), Json::array({Json("x")})})
        expect_refused([&](Json& trace) { object_of(trace)[member.key] = other; });
      expect_refused([&](Json& trace) {
        Json rest = Json::object();
        for (const JsonMember& each : object_of(trace).items()) {
          if (each.key != member.key) rest[each.key] = each.value;
        }
        object_of(trace) = rest;
      });
    }
  };
  const auto change_first = [](Json& list) -> Json& { return const_cast<Json&>(list.front()); };
  const auto shape_of = [&](Json& trace) -> Json& { return change_first(trace["shapes"]); };
  const auto kept_of = [&](Json& trace) -> Json& { return change_first(shape_of(trace)["kept"]); };
  with_each_member([](Json& trace) -> Json& { return trace; });
  with_each_member(shape_of);
  with_each_member(kept_of);
  with_each_member([&](Json& trace) -> Json& { return change_first(kept_of(trace)["arrays"]); });
  // Parts of paths stay in the folder; there are no threads without end.
  for (const char* const name : {"", "..", "../../other", "/etc", "a/b", "a.b"}) {
    expect_refused([&](Json& trace) { shape_of(trace)["definition"] = Json(name); });
    expect_refused([&](Json& trace) { kept_of(trace)["uuid"] = Json(name); });
  }
  for (const std::int64_t threads : {std::int64_t{0}, std::int64_t{4097}, std::int64_t{1} << 32})
    expect_refused([&](Json& trace) { trace["threads"] = Json(threads); });
  expect_refused([&](Json& trace) { trace["vocabulary"] = Json(std::int64_t{1} << 40); });
}

TEST(TraceWords, ADeviceThatIsNoProcessor) {
  elastic::PlannedDevice device({});
  const Result<device::WatchedCalls*> watched = kit::watched_calls(device, "runs/a");
  ASSERT_FALSE(watched.ok());
  EXPECT_EQ(watched.error().code, ExitCode::config);
  EXPECT_EQ(watched.error().message,
            "runs/a computes on planned, and calls are captured from a processor alone; give a run that "
            "trained on one");
}

TEST(TraceWords, PatternsOfOps) {
  const auto names = [](std::string_view patterns) {
    std::vector<std::string> found;
    const Result<kit::OpSet> ops = kit::ops_of_patterns(patterns);
    for (std::size_t i = 0; ops.ok() && i < op_count; ++i) {
      if (ops->test(i)) found.emplace_back(op_names[i]);
    }
    return found;
  };
  EXPECT_THAT(names("rmsnorm_*"), ElementsAre("rmsnorm_forward", "rmsnorm_backward"));
  EXPECT_THAT(names("add,*_digest"), ElementsAre("add", "optimizer_digest"));
  EXPECT_THAT(names("ad?"), ElementsAre("add"));
  EXPECT_EQ(names("*").size(), op_count);
  EXPECT_THAT(names("add,rotray"), IsEmpty());
  EXPECT_THAT(kit::ops_of_patterns("rotray").error().message, HasSubstr("did you mean rotary?"));
  EXPECT_FALSE(kit::ops_of_patterns("").ok());
}

TEST(TraceWords, ListsOfSteps) {
  EXPECT_THAT(kit::steps_of_list("12,3-5,4").value(), ElementsAre(3, 4, 5, 12));
  for (const char* const wrong : {"", "0", "3-", "-3", "5-4", "x", "1-101", "99999999999999999999"})
    EXPECT_FALSE(kit::steps_of_list(wrong).ok()) << wrong;
}

// Two sessions of one config, of which one is watched.
class WatchedSession : public testing::Test {
 protected:
  struct Counting final : device::CallWatch {
    void before(OpId id, const CallPlace& place, const void* arguments,
                const Implementation& kernel) override {
      if (id == OpId::rotary && !rotation.has_value()) {
        rotation = kit::begin_call(id, arguments, 1);
        rotates = &kernel;
      }
      ++calls[id];
      if (place.part == OpScope::Part::attention) layers.insert(place.layer);
      EXPECT_NE(kernel.name, nullptr);
      is_inside = true;
    }
    void after(OpId id, const void* arguments) override {
      if (id == OpId::rotary && rotation->arrays.size() == 3) kit::end_call(*rotation, id, arguments, 1);
      EXPECT_TRUE(is_inside);
      is_inside = false;
    }
    std::map<OpId, std::int64_t> calls;
    std::set<int> layers;
    std::optional<kit::TracedCall> rotation;  // the first, which is in place
    const Implementation* rotates = nullptr;
    bool is_inside = false;
  };

  Digest state_after(int steps, device::CallWatch* watch) {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 26);
    EXPECT_TRUE(posix_env().replace_text(folder_->file("text"), text).ok());
    const std::string config =
        "[run]\ndirectory = \"none\"\n[model]\nlayers = 2\nheads = 2\nwidth = 16\n[data]\nsources = [{ path "
        "= \"" +
        folder_->file("text") +
        "\", format = \"text\" }]\n[training]\nsteps = 9\nsequence_length = 8\nmicrobatch_size = "
        "2\n[parallel]\nlanes = 2\n";
    EXPECT_TRUE(posix_env().replace_text(folder_->file("run.toml"), config).ok());
    const std::vector<std::unique_ptr<Communicator>> ends = make_local_communicators(1);
    const auto faults = std::move(FaultPoints::parse("", 0, posix_env())).value();
    StepSession session(
        {.env = posix_env(), .faults = *faults, .communicator = *ends.front(), .build = "test"});
    Result<LoadedConfig> loaded = load_config(posix_env(), folder_->file("run.toml"), {});
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    replay::write_nothing(loaded->config);
    loaded->config.device = "cpu";
    EXPECT_TRUE(session.load_config(std::move(loaded)).ok());
    EXPECT_TRUE(session.make_worker({}).ok());
    EXPECT_TRUE(session.load_state({}).ok());
    auto* const watched = dynamic_cast<device::WatchedCalls*>(&session.device());
    EXPECT_NE(watched, nullptr);
    if (watch != nullptr) watched->watch_calls(watch);
    for (int step = 0; step < steps; ++step) EXPECT_TRUE(session.step().ok());
    session.device().synchronize();
    if (watch != nullptr) watched->watch_calls(nullptr);
    EXPECT_TRUE(session.worker().parameter_gather().finish().ok());
    return session.state_digest();
  }

 private:
  std::unique_ptr<bench::ScratchDirectory> folder_ = scratch();
};

TEST_F(WatchedSession, HasTheStateOfOneThatNobodyWatches) {
  Counting watch;
  EXPECT_EQ(state_after(3, &watch), state_after(3, nullptr));
  EXPECT_THAT(watch.layers, ElementsAre(0, 1));
  EXPECT_GT(watch.calls[OpId::adamw], 0);
  EXPECT_GT(watch.calls[OpId::rmsnorm_backward], 0);
  EXPECT_EQ(kit::difference_when_repeated(*watch.rotation, 1, *watch.rotates, 2).value(), "");
}

}  // namespace
}  // namespace holdfast::test
