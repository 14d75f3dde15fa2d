// The event log of a run, as its readers find it.
#include <algorithm>
#include <cmath>

#include "runtime/run/event_log.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/run_history.h"
#include "tests/fuzz/fuzz_env.h"

namespace holdfast::fuzz {
namespace {

// Each event, written as one line, reads as the same event.
std::size_t check_events(const std::string& text) {
  std::size_t count = 0;
  for_each_event(text, [&](const Json& event) {
    ++count;
    const std::string line = event.dump_any();
    require(line.find('\n') == std::string::npos, "an event has two lines");
    const Json again = Json::parse_any(line);
    require(again == event && again.dump_any() == line, "an event is written as another one");
  });
  return count;
}

void check_history(const RunHistory& history, std::size_t events) {
  require(history.events.size() + history.steps.size() <= events, "more events than the log has");
  const auto steps = [](const auto& a, const auto& b) { return a.step >= b.step; };
  require(std::ranges::adjacent_find(history.steps, steps) == history.steps.end(), "steps in no order");
  require(std::ranges::adjacent_find(history.held_out, steps) == history.held_out.end(),
          "losses in no order");
  const double rate = median_tokens_per_sec(history);
  require(std::isfinite(rate), "no median");
  const double ratio = history.ledger.effective_ratio();
  require(ratio >= 0.0 && ratio <= 1.0 + 1e-9, "more training than time");
  const std::string summary = summary_of(history.ledger);
  require(summary.empty() == !history.ledger.disturbed(), "faults without a word, or a word without faults");
}

bool run_events(Input input) {
  const std::string text = text_of(input);
  const std::size_t events = check_events(text);
  check_history(parse_history(text), events);
  FuzzEnv env;
  const RunPaths paths{"/run"};
  const std::size_t half = input.size() / 2;
  env.put("/run/events-0001.jsonl", input.first(half));
  env.put(paths.events(), input.subspan(half));
  const Result<RunHistory> history = read_history(env, paths);
  require(history.ok(), "a log of two parts is not read");
  check_history(*history, events + 2);  // an event that was cut may be two
  const Result<LogTail> tail = read_log_tail(env, paths, 100);
  require(tail.ok() && tail->lines.size() <= 100, "the end of the log is longer than was asked for");
  return events > 0;
}

std::vector<Seed> events_seeds() {
  EventLine line;
  std::string text;
  const auto put = [&](EventLine& event) { text += std::string(event.end()) + "\n"; };
  constexpr std::int64_t second = 1'000'000, first = 1'764'000'000 * second;
  put(line.begin("start", first)
          .field("run", "ab")
          .field("parameters", 9)
          .field("ranks", 2)
          .field("steps", 4)
          .null_field("resumed_from_step")
          .field("state_ms", 1.5));
  for (std::int64_t step = 1; step < 4; ++step) {
    put(line.begin("step", first + step * second)
            .field("step", step)
            .field("loss", 2.5)
            .field("tokens", step * 8)
            .field("step_duration_ms", 900.0)
            .field("tokens_per_sec", 8.0));
  }
  put(line.begin("checkpoint", first + 4 * second)
          .field("step", 3)
          .field("bytes_written", std::uint64_t{4096}));
  put(line.begin("fault", first + 5 * second)
          .field("step", 4)
          .field("lost", "1")
          .field("reason", "rank 1 died")
          .field("noticed_us", first + 5 * second));
  put(line.begin("recovery", first + 6 * second)
          .field("level", 1)
          .field("ranks_before", 2)
          .field("ranks_after", 1)
          .field("lost_steps", 1)
          .field("resumed_from", "ram")
          .field("resumed_from_step", 3)
          .field("shrink_ms", 2.0));
  put(line.begin("evaluation", first + 7 * second).field("step", 3).field("loss", 2.25));
  put(line.begin("finish", first + 8 * second)
          .field("state", "finished")
          .field("step", 4)
          .field("exit_code", 0));
  return {{"run", bytes_of_text(text)}};
}

constexpr std::string_view events_words[] = {
    "\n",
    "{\"event\":\"start\",\"time_us\":1}\n",
    "{\"event\":\"step\",\"time_us\":9223372036854775807,\"step\":7}\n",
    "{\"event\":\"fault\",\"time_us\":5,\"what\":\"save\"}\n",
    "{\"event\":\"finish\",\"time_us\":6,\"state\":\"failed\"}\n",
    "\"level\":2,",
    "null",
    "[",
    "{",
    "\"a_ms\":1e300,",
    "\"x_bytes_y\":7,",
    "\\ud800",
    "\"resumed_from_step\":3,"};

}  // namespace

extern const Target events_target;
const Target events_target{.name = "events",
                           .run = run_events,
                           .seeds = events_seeds,
                           .memory_per_byte = 256,
                           .memory_beside = 64 << 10,
                           .words = events_words};

}  // namespace holdfast::fuzz
