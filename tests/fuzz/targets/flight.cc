// A flight record of a rank.
#include "tests/fuzz/fuzz_env.h"
#include "watchdog/flight_merge.h"
#include "watchdog/flight_record.h"

namespace holdfast::fuzz {
namespace {

bool run_flight(Input input) {
  const Result<FlightRecord> record = parse_flight(text_of(input), "flight.json");
  if (!record.ok()) {
    require_sentence(record.error(), {ExitCode::data});
    return false;
  }
  const std::string written = flight_json(*record);
  const Result<FlightRecord> again = parse_flight(written, "again.json");
  if (!again.ok()) fail_run("what was written is refused: " + again.error().message);
  require(flight_json(*again) == written, "what was written reads as another record");
  require(!flight_file_name(*record).empty(), "a record without a name");
  const std::vector<FlightRecord> both = {*record, *again};
  static_cast<void>(merge_flights(both));
  require(!flight_text(both).empty(), "nothing is said of two records");
  return true;
}

std::vector<Seed> flight_seeds() {
  FlightRecord record = {.host = "a",
                         .reason = "rank 1 hangs",
                         .wall_time_us = 1'764'000'000'000'000,
                         .now_ns = 9'000'000'000,
                         .slot = {},
                         .state = 'S',
                         .lost_spans = 2,
                         .spans = {{.kind = "all_reduce", .step = 3, .begin_ns = 8'000'000'000, .bucket = 7},
                                   {.kind = "step", .step = 3, .bytes = 5, .begin_ns = 1, .end_ns = 2}}};
  record.slot.process = 77;
  record.slot.launched_rank = 1;
  record.slot.wait_begun_ns = 8'000'000'000;
  record.slot.wait_operation = "all_reduce";
  record.slot.drain_begun_ns = 5;
  record.slot.plugin = {.op = "add", .implementation = "mine", .digest = "01", .library = "mine.so"};
  return {{"two-spans", bytes_of_text(flight_json(record))}};
}

constexpr std::string_view flight_words[] = {"null", "true", "[",     "{",         "]",
                                             "}",    ",",    "\"X\"", "\"spare\"", "-9223372036854775808"};

}  // namespace

extern const Target flight_target;
const Target flight_target{.name = "flight",
                           .run = run_flight,
                           .seeds = flight_seeds,
                           .memory_per_byte = 256,
                           .memory_beside = 64 << 10,
                           .words = flight_words};

}  // namespace holdfast::fuzz
