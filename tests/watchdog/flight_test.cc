#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"
#include "tests/watchdog/milliseconds.h"
#include "tests/watchdog/watch_env.h"
#include "watchdog/flight_merge.h"
#include "watchdog/flight_record.h"
#include "watchdog/rank_watch.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::int64_t dump_ns = 50'000 * ms;

FlightSpan operation(std::uint64_t step, std::int32_t number, bool done = true) {
  return {.kind = "all_reduce",
          .step = step,
          .bytes = 64,
          .begin_ns = dump_ns - 900 * ms,
          .end_ns = done ? dump_ns - 899 * ms : 0,
          .chunk = -1,
          .microbatch = -1,
          .bucket = number,
          .wave = -1,
          .peer = 1};
}

FlightRecord record(int rank, std::vector<FlightSpan> spans) {
  FlightRecord one;
  one.host = "a";
  one.reason = "asked for";
  one.wall_time_us = 1'795'364'400'125'000 + rank;
  one.now_ns = dump_ns;
  one.state = 'S';
  one.slot.process = 1'000 + rank;
  one.slot.launched_rank = rank;
  one.slot.phase = Phase::step;
  one.slot.step = 9;
  one.slot.begun_ns = one.slot.heartbeat_ns = dump_ns - 1'000 * ms;
  one.slot.deadline_ns = 5'000 * ms;
  one.spans = std::move(spans);
  return one;
}

TEST(FlightRecord, ComesBackFromItsFile) {
  FlightRecord one = record(3, {operation(8, 76), operation(9, 77, false)});
  one.slot.wait_begun_ns = dump_ns - 4;
  one.slot.wait_operation = "a \"vote\"";
  one.slot.wait_peer = 2;
  one.slot.wait_number = 77;
  one.slot.drain_begun_ns = dump_ns - 3;
  one.slot.drain_step = 8;
  one.slot.drain_bytes = ~std::uint64_t{0};
  one.slot.plugin = {.op = "add", .implementation = "mine", .digest = "01", .library = "a \"b\".so"};
  one.lost_spans = 5;
  one.state = 'T';
  const FlightRecord back = parse_flight(flight_json(one), "x.json").value();
  EXPECT_EQ(flight_json(back), flight_json(one));
  EXPECT_EQ(back.spans, one.spans);
  EXPECT_EQ(back.slot.wait_operation, one.slot.wait_operation);
  EXPECT_EQ(back.slot.drain_bytes, one.slot.drain_bytes);
  EXPECT_EQ(back.slot.plugin, one.slot.plugin);
  EXPECT_EQ(flight_file_name(one), "20261122T162000.125Z-rank-0003.json");
}

TEST(FlightRecord, WhatIsNoneIsASentence) {
  const std::string whole = flight_json(record(3, {operation(8, 76)}));
  for (std::size_t length = 0; length + 1 < whole.size(); ++length) {
    EXPECT_FALSE(parse_flight(whole.substr(0, length), "x.json").ok()) << length;
  }
  std::string later = whole;
  later.replace(later.find("\"format\":1"), 10, "\"format\":2");
  EXPECT_THAT(parse_flight(later, "x.json").error().message,
              StartsWith("x.json is a flight record of format 2"));
  for (const char* text : {"[]", "7", "{\"format\":1}", "{\"format\":1,\"spans\":7}"}) {
    EXPECT_THAT(parse_flight(text, "x.json").error().message, HasSubstr("is no flight record")) << text;
  }
}

TEST(FlightRecord, IsTakenFromTheBoardOfARankThatDoesNotHelp) {
  WatchEnv env;
  const auto watch = RankWatch::begin(env, {.board = env.board, .launched_rank = 4}).value();
  SpanRecorder recorder(env);
  const std::span<Span> ring = watch->ring();
  recorder.record_into(ring);
  recorder.begin_step(6);
  for (std::size_t each = 0; each < ring.size() + 10; ++each) {
    env.now_ns += 1'000;
    recorder.begin({.kind = SpanKind::forward, .microbatch = static_cast<std::int32_t>(each)});
  }
  watch->ring_count() = recorder.opened();
  watch->enter(Phase::save, 6);
  FlightRecord taken = take_flight_record(env, watch->board(), 0, 'T', "why");
  EXPECT_EQ(taken.slot.launched_rank, 4);
  EXPECT_EQ(taken.slot.phase, Phase::save);
  EXPECT_EQ(taken.lost_spans, 10u);
  ASSERT_EQ(taken.spans.size(), ring.size());
  EXPECT_EQ(taken.spans.front().microbatch, 10);
  EXPECT_EQ(taken.spans.back().microbatch, static_cast<int>(ring.size()) + 9);
  EXPECT_EQ(taken.spans.back().kind, "forward");
  // Words that nobody can have written.
  watch->board().slot(0).ring_spans = ~0u;
  watch->board().slot(0).spans_opened = ~std::uint64_t{0};
  std::memset(static_cast<void*>(ring.data()), 0xff, ring.size_bytes());
  store_text(watch->board().slot(0).wait_operation, "\xff\xfe");
  watch->board().slot(0).wait_begun_ns = 1;
  taken = take_flight_record(env, watch->board(), 0, 'T', "why");
  EXPECT_EQ(taken.spans.front().kind, "unknown");
  EXPECT_TRUE(parse_flight(flight_json(taken), "x.json").ok());
}

TEST(FlightRecord, TheNewestOfEachRankAreRead) {
  const TemporaryDirectory directory;
  const std::string place = directory.path() + "/run/flight";
  EXPECT_THAT(read_flight_records(posix_env(), directory.path()).error().message,
              HasSubstr("holds no flight records"));
  for (int time = 0; time < 12; ++time) {
    for (int rank = 0; rank < 3; ++rank) {
      FlightRecord one = record(rank, {});
      one.wall_time_us += 1'000'000 * std::int64_t{time};
      if (rank == 2) one.wall_time_us -= 100'000'000;  // long before the others
      one.reason = fmt::format("time {}", time);
      ASSERT_TRUE(write_flight_record(posix_env(), place, one).ok());
    }
  }
  EXPECT_EQ(posix_env().list(place).value().size(), 24u) << "eight of each";
  for (const std::string& from : {place, directory.path() + "/run"}) {
    const std::vector<FlightRecord> records = read_flight_records(posix_env(), from).value();
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].slot.launched_rank, 0);
    EXPECT_EQ(records[1].slot.launched_rank, 1);
    EXPECT_EQ(records[1].reason, "time 11");
  }
}

TEST(FlightMerge, NamesTheFirstOperationThatOneDidNotBegin) {
  const std::vector<FlightRecord> records = {
      record(0, {operation(8, 76), operation(9, 77), operation(9, 78, false)}),
      record(1, {operation(8, 76), operation(9, 77), operation(9, 78, false)}), record(2, {operation(8, 76)}),
      record(3, {operation(8, 76), operation(9, 77, false)})};
  const FlightMerge merge = merge_flights(records);
  EXPECT_EQ(merge.divergence, "step 9, all_reduce 77: begun by ranks 0, 1, 3; not by rank 2");
  EXPECT_EQ(merge.suspect, "perhaps rank 2, which is behind the others");
}

TEST(FlightMerge, RanksThatAreTogetherDoNotDiverge) {
  EXPECT_EQ(merge_flights(std::vector{record(0, {operation(9, 77)}), record(1, {operation(9, 77, false)})})
                .divergence,
            "");
  EXPECT_EQ(merge_flights({}).divergence, "");
  FlightRecord spare = record(2, {});
  spare.slot.phase = Phase::spare;
  EXPECT_EQ(merge_flights(std::vector{record(0, {operation(9, 77)}), spare}).divergence, "");
}

TEST(FlightMerge, WhatOneRingHasLostIsNoDivergence) {
  FlightRecord full = record(0, {operation(8, 70), operation(9, 77)});
  full.lost_spans = 3;
  EXPECT_EQ(merge_flights(std::vector{full, record(1, {operation(7, 60), operation(8, 69), operation(8, 70),
                                                       operation(9, 77)})})
                .divergence,
            "");
}

TEST(FlightMerge, NamesTheDeadThenTheHung) {
  std::vector<FlightRecord> records = {record(0, {}), record(1, {}), record(2, {})};
  for (FlightRecord& each : records) {
    each.slot.begun_ns = each.now_ns - 6'000 * ms;
    each.slot.wait_begun_ns = each.now_ns - 5'900 * ms;
    each.slot.heartbeat_ns = each.now_ns;
  }
  EXPECT_EQ(merge_flights(records).suspect, "");
  records[1].slot.wait_begun_ns = 0;
  records[1].now_ns += 1'000'000 * ms;  // another host's clock
  records[1].slot.begun_ns += 1'000'000 * ms;
  records[1].slot.heartbeat_ns = records[1].slot.begun_ns;
  EXPECT_THAT(merge_flights(records).suspect, StartsWith("rank 1 (host a) hangs: step 9 for 6.0 s"));
  records[2].state = 'X';
  EXPECT_EQ(merge_flights(records).suspect, "rank 2 (host a): its process exited unexpectedly");
}

// A rank that died in an epoch of ranks before this one is no cause, nor did it miss operations of this one.
TEST(FlightMerge, RanksThatWereLostBeforeAreNotToBlame) {
  std::vector<FlightRecord> records;
  for (int rank = 0; rank < 3; ++rank) {
    records.push_back(record(rank, {operation(9, 77, false)}));
    records.back().slot.epoch = 1;
  }
  records[0].spans = {operation(8, 70)};
  records[0].slot.epoch = 0;
  records[0].state = 'X';
  records[0].slot.heartbeat_ns = dump_ns - 5'000 * ms;
  records[2].state = 'X';
  records[2].slot.epoch = 0;  // it has just died, in the recovery that made the others' epoch
  FlightMerge merge = merge_flights(records);
  EXPECT_EQ(merge.suspect, "rank 2 (host a): its process exited unexpectedly");
  EXPECT_EQ(merge.divergence, "");
  records[2].state = 'S';
  records[2].spans.clear();
  merge = merge_flights(records);
  EXPECT_THAT(merge.divergence, HasSubstr("begun by rank 1; not by rank 2"));
}

TEST(FlightMerge, ReadsAsAPage) {
  FlightRecord waiting = record(0, {operation(8, 76), operation(9, 77, false)});
  waiting.slot.wait_begun_ns = dump_ns - 900 * ms;
  waiting.slot.wait_operation = "an all-reduce";
  waiting.slot.wait_number = 77;
  waiting.slot.wait_peer = 1;
  waiting.slot.heartbeat_ns = dump_ns - 2 * ms;
  FlightRecord stopped = record(1, {operation(8, 76)});
  stopped.state = 'T';
  stopped.slot.drain_begun_ns = dump_ns - 100 * ms;
  stopped.slot.drain_step = 8;
  stopped.slot.drain_bytes = 4'096;
  EXPECT_EQ(flight_text(std::vector{waiting, stopped}),
            "why: asked for\n\n"
            "rank 0 (host a, process 1000, alive): step 9 for 1.000 s\n"
            "  waits for an all-reduce 77 with rank 1, since 0.900 s, last polled 0.002 s ago\n"
            "  in all_reduce 77, rank 1 for 0.900 s\n"
            "rank 1 (host a, process 1001, stopped): step 9 for 1.000 s\n"
            "  saves step 8 in the background, 4096 bytes, for 0.100 s\n"
            "  last all_reduce 76, rank 1, ended 0.899 s before\n"
            "\n"
            "first divergence: step 9, all_reduce 77: begun by rank 0; not by rank 1\n"
            "likely culprit: nobody stands out\n");
}

}  // namespace
}  // namespace holdfast::test
