#include "runtime/os/span_recorder.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <set>
#include <string>

#include "tests/support/faulty_env.h"

namespace holdfast::test {
namespace {

TEST(SpanRecorder, OffIsNothing) {
  SpanRecorder recorder(posix_env());
  EXPECT_FALSE(recorder.on());
  EXPECT_EQ(recorder.begin({.kind = SpanKind::save}), nullptr);
  recorder.end(nullptr);
  { const HostSpan nothing(nullptr, {.kind = SpanKind::save}); }
  { const HostSpan nothing(&recorder, {.kind = SpanKind::save}); }
  EXPECT_EQ(recorder.kept(), 0u);
}

TEST(SpanRecorder, KeepsTheNewestAndCountsTheOthers) {
  SpanRecorder recorder(posix_env());
  std::array<Span, 3> memory;
  recorder.record_into(memory);
  for (int i = 0; i < 5; ++i) {
    recorder.begin_step(static_cast<std::uint64_t>(10 + i));
    recorder.end(recorder.begin({.kind = SpanKind::forward, .microbatch = i}));
  }
  EXPECT_EQ(recorder.opened(), 5u);
  EXPECT_EQ(recorder.lost(), 2u);
  ASSERT_EQ(recorder.kept(), 3u);
  for (int i = 0; i < 3; ++i) {
    const Span& span = recorder.at(static_cast<std::uint64_t>(i));
    EXPECT_EQ(span.microbatch, 2 + i);
    EXPECT_EQ(span.step, static_cast<std::uint64_t>(12 + i));
    EXPECT_GT(span.begin.time_ns, 0);
    EXPECT_GE(span.end.time_ns, span.begin.time_ns);
  }
  recorder.record_into({});
  EXPECT_FALSE(recorder.on());
}

// What a rank is at can be read from the memory: that is what tells of one that hangs.
TEST(SpanRecorder, ASpanThatGoesOnHasNoEnd) {
  FaultyEnv env(posix_env());
  env.clock_shift_ns = 1'000'000'000'000;
  SpanRecorder recorder(env);
  std::array<Span, 8> memory;
  recorder.record_into(memory);
  {
    const HostSpan vote(&recorder, {.kind = SpanKind::wait_vote});
    EXPECT_EQ(memory[0].kind, SpanKind::wait_vote);
    EXPECT_GT(memory[0].begin.time_ns, env.clock_shift_ns);
    EXPECT_EQ(memory[0].end.time_ns, 0);
  }
  EXPECT_GT(memory[0].end.time_ns, 0);
}

TEST(SpanRecorder, WithoutATraceItWritesTheFlight) {
  SpanRecorder recorder(posix_env());
  std::array<Span, 4> ring, trace;
  std::atomic<std::uint64_t> opened = 0;
  recorder.keep_flight(ring, opened, false);
  EXPECT_TRUE(recorder.on() && recorder.in_flight() && !recorder.device_stamps());
  for (int i = 0; i < 6; ++i) recorder.end(recorder.begin({.kind = SpanKind::forward, .microbatch = i}));
  EXPECT_EQ(opened, 6u);
  EXPECT_EQ(ring[1].microbatch, 5);
  Span* const on_resume = recorder.begin({.kind = SpanKind::save});
  recorder.record_into(trace);
  EXPECT_TRUE(recorder.on() && !recorder.in_flight() && recorder.device_stamps());
  recorder.end(recorder.begin({.kind = SpanKind::backward}));
  recorder.end(on_resume);
  EXPECT_EQ(on_resume->end.time_ns, 0) << "it is of the other memory";
  EXPECT_EQ(opened, 7u);
  recorder.record_into({});
  EXPECT_TRUE(recorder.in_flight());
  recorder.end(recorder.begin({.kind = SpanKind::update}));
  EXPECT_EQ(opened, 8u);
  EXPECT_EQ(ring[3].kind, SpanKind::update);
}

TEST(SpanRecorder, WhosePlaceIsTakenEndsNobodyElse) {
  SpanRecorder recorder(posix_env());
  std::array<Span, 2> ring;
  std::atomic<std::uint64_t> opened = 0;
  recorder.keep_flight(ring, opened, true);
  Span* const step = recorder.begin({.kind = SpanKind::step});
  for (int i = 0; i < 2; ++i) recorder.end(recorder.begin({.kind = SpanKind::wait_vote}));
  const std::int64_t end_ns = ring[0].end.time_ns;
  EXPECT_FALSE(recorder.is_open(step));
  recorder.end(step);
  EXPECT_EQ(ring[0].end.time_ns, end_ns);
}

TEST(SpanKind, EveryKindHasANameOfItsOwn) {
  std::set<std::string> names, titles;
  for (int i = 0; i < static_cast<int>(SpanKind::count); ++i) {
    names.insert(name_of(static_cast<SpanKind>(i)));
    titles.insert(title_of(static_cast<SpanKind>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(SpanKind::count));
  EXPECT_EQ(titles.size(), static_cast<std::size_t>(SpanKind::count));
  EXPECT_STREQ(name_of(SpanKind::save), "save") << "the table and the kinds are in one order";
  EXPECT_STREQ(name_of(SpanKind::wait_tied_weight), "wait_tied_weight");
}

}  // namespace
}  // namespace holdfast::test
