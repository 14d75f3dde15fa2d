// Tests that the schema of events says everything once, and that lines are written and read as it says.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <tuple>

#include "runtime/run/event_log.h"
#include "runtime/run/event_reading.h"

namespace holdfast::test {
namespace {

TEST(EventSchema, SaysEveryKindAndFieldOnce) {
  const std::set<std::string_view> types = {"integer", "number", "text", "object", "list", "boolean"};
  std::set<std::string_view> kinds;
  for (const EventKind& kind : event_schema()) {
    EXPECT_TRUE(kinds.insert(kind.name).second) << kind.name;
    EXPECT_FALSE(kind.meaning.empty()) << kind.name;
    std::set<std::string_view> fields = {"event", "time_us"};
    for (const EventField& field : kind.fields) {
      EXPECT_TRUE(fields.insert(field.name).second) << kind.name << "." << field.name;
      EXPECT_TRUE(types.contains(field.type)) << kind.name << "." << field.name;
      EXPECT_FALSE(field.meaning.empty()) << kind.name << "." << field.name;
    }
  }
  EXPECT_TRUE(kinds.contains("recovery"));
}

// A member that visit_fields() leaves out, or has in another place, moves those behind it.
TEST(EventSchema, HasEveryMemberInItsOrder) {
  const auto check = []<Event E>(const E& event) {
    std::size_t end = sizeof(event.time_us), alignment = alignof(E);
    E::visit_fields(event, [&]<typename T>(std::string_view name, const T& field, auto&&...) {
      const auto offset = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&field) -
                                                   reinterpret_cast<const std::byte*>(&event));
      const std::size_t expected = (end + alignof(T) - 1) / alignof(T) * alignof(T);
      EXPECT_EQ(offset, expected) << E::kind << "." << name << ": the member before it is not visited";
      end = offset + sizeof(T);
    });
    EXPECT_EQ(sizeof(E), (end + alignment - 1) / alignment * alignment) << E::kind << ": the last member";
  };
  std::apply([&](const auto&... event) { (check(event), ...); }, EventKinds());
}

template <Event E>
std::string line_of_event(const E& event) {
  EventLine line;
  return std::string(put_event(event, line).end());
}

// Logs must stay readable for programs that know this version.
TEST(EventSchema, WritesTheLinesOfEarlierVersions) {
  EXPECT_EQ(
      line_of_event(StartEvent{.time_us = 7,
                               .run = "ab",
                               .parameters = 9,
                               .ranks = 2,
                               .steps = 4,
                               .flops_per_token = 6.0,
                               .device = "cpu",
                               .exchange = "mpi",
                               .kernels = {{.op = "add", .name = "avx2", .why = "best"}}}),
      R"({"event":"start","time_us":7,"run":"ab","parameters":9,"ranks":2,"steps":4,)"
      R"("flops_per_token":6.0,"resumed_from_step":null,"generation":0,"join_ms":null,"worker_ms":null,)"
      R"("state_ms":null,"gemm_peak_ms":null,"gemm_peak_flops":null,)"
      R"("device":"cpu","exchange":"mpi","kernels":{"add":{"name":"avx2","why":"best"}}})");
  EXPECT_EQ(
      line_of_event(StepEvent{.time_us = 8,
                              .step = 3,
                              .loss = 2.5,
                              .grad_norm = 1.0,
                              .learning_rate = 0.25,
                              .tokens = 64,
                              .step_duration_ms = 4.0,
                              .tokens_per_sec = 16.0,
                              .data_digest = {.high = 1, .low = 2},
                              .mfu = 0.5,
                              .recomputed = true,
                              .source_samples = {{5, 3}}}),
      R"({"event":"step","time_us":8,"step":3,"loss":2.5,"grad_norm":1.0,"learning_rate":0.25,"tokens":64,)"
      R"("step_duration_ms":4.0,"tokens_per_sec":16.0,"data_digest":"00000000000000010000000000000002",)"
      R"("mfu":0.5,"recomputed":true,"source_samples":[5,3]})");
  EXPECT_EQ(line_of_event(FaultEvent{.level = FaultEvent::by_launcher, .step = 3, .reason = "died"}),
            R"({"event":"fault","time_us":0,"level":2,"step":3,"cause":"unknown","reason":"died"})");
  EXPECT_EQ(line_of_event(FaultEvent{.step = 3,
                                     .what = FaultEvent::upload,
                                     .cause = std::string(name_of(FaultCause::upload_failed)),
                                     .reason = "no",
                                     .printed = "no route",
                                     .attempts = 2}),
            R"({"event":"fault","time_us":0,"step":3,"what":"upload","cause":"upload-failed","reason":"no",)"
            R"("printed":"no route","attempts":2})");
  EXPECT_EQ(line_of_event(RecoveryEvent{.reason = RecoveryEvent::drain,
                                        .level = RecoveryEvent::by_launcher,
                                        .ranks_before = 4,
                                        .ranks_after = 2,
                                        .duration_ms = std::int64_t{1500}}),
            R"({"event":"recovery","time_us":0,"reason":"drain","level":2,"ranks_before":4,"ranks_after":2,)"
            R"("lost_steps":0,"duration_ms":1500})");
  EXPECT_EQ(line_of_event(GapEvent{.lines = 3}), R"({"event":"gap","time_us":0,"lines":3})");
}

TEST(EventSchema, ReadsWhatItWrites) {
  const auto check = []<Event E>(const E& event) {
    const std::string line = line_of_event(event);
    const std::optional<E> read = event_as<E>(Json::parse(line));
    ASSERT_TRUE(read.has_value()) << line;
    EXPECT_EQ(line_of_event(*read), line);
  };
  check(StartEvent{.time_us = 7,
                   .hosts = {{{"a", 2}, {"b", 1}}},
                   .resumed_from_step = {3},
                   .resumed_from = "ram",
                   .kernels = {{.op = "add", .name = "avx2", .why = "best"}}});
  check(
      StepEvent{.time_us = 8, .step = 3, .loss = 0.1, .data_digest = {.high = 1, .low = ~0ULL}, .mfu = 0.5});
  check(StartEvent{.sources = {{{"a\"b.txt", 9, 0.5}, {"c", 1, 0.0}}}});
  check(StepEvent{.source_samples = {{3, ~0ULL}}});
  check(FinishEvent{.sources = {{{"a", 9, 18, 0.25}}}});
  check(RecoveryEvent{.duration_ms = 1.5, .replay_ms = 2.0});
  check(RecoveryEvent{.duration_ms = std::int64_t{2}});
  std::apply([&](const auto&... event) { (check(event), ...); }, EventKinds());
}

TEST(EventReading, TakesAFieldOfAnotherTypeAsMissing) {
  const auto step = [](const char* text) { return event_as(Json::parse(text), StepEvent{.tokens = 5}); };
  EXPECT_FALSE(step(R"({"event":"steps","step":1})").has_value());
  EXPECT_FALSE(step(R"({"event":1,"step":1})").has_value());
  EXPECT_FALSE(step(R"([1])").has_value());
  EXPECT_EQ(step(R"({"event":"step","step":-1})")->step, 0u);
  EXPECT_EQ(step(R"({"event":"step","step":1.5,"tokens":"3"})")->tokens, 5u);
  EXPECT_EQ(step(R"({"event":"step","tokens":18446744073709551615})")->tokens, ~0ULL);
  EXPECT_TRUE(std::isnan(step(R"({"event":"step","loss":null})")->loss));
  EXPECT_EQ(step(R"({"event":"step","loss":2})")->loss, 2.0) << "some writers leave .0 out";
  EXPECT_EQ(step(R"({"event":"step","time_us":18446744073709551615})")->time_us, std::int64_t{1} << 62);
  EXPECT_FALSE(step(R"({"event":"step","recomputed":"7"})")->recomputed.has_value());
  EXPECT_FALSE(step(R"({"event":"step","source_samples":{"0":7}})")->source_samples.has_value());
  EXPECT_EQ(step(R"({"event":"step","source_samples":[7,-1]})")->source_samples,
            (std::vector<std::uint64_t>{7, 0}));
}

TEST(EventReading, UsesOfSourcesNeedTheirNumber) {
  const std::vector<EventSource> sources = {{"a", 4, 0.0}, {"b", 0, 0.0}};
  const std::vector<std::uint64_t> samples = {6, 2};
  const std::vector<SourceUse> uses = uses_of(sources, samples, 80);
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(text_of(uses[0]), "a: 6 samples, 60 tokens, 1.50 epochs");
  EXPECT_EQ(text_of(uses[1]), "b: 2 samples, 20 tokens, 0.00 epochs") << "a log may say anything";
  EXPECT_TRUE(uses_of({sources.front()}, samples, 80).empty());
}

TEST(EventSchema, ThePageNamesAllOfIt) {
  const std::string page = event_reference();
  for (const EventKind& kind : event_schema()) {
    EXPECT_NE(page.find("\n## `" + std::string(kind.name) + "`\n"), std::string::npos) << kind.name;
    for (const EventField& field : kind.fields)
      EXPECT_NE(page.find("| `" + std::string(field.name) + "`"), std::string::npos) << field.name;
  }
}

}  // namespace
}  // namespace holdfast::test
