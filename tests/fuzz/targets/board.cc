// The board of a host and its table of hosts, as a damaged process or another program left them in shared
// memory; and the flight records and verdicts that are made of a board.
#include <algorithm>
#include <limits>

#include "tests/fuzz/fuzz_env.h"
#include "watchdog/board.h"
#include "watchdog/detector.h"
#include "watchdog/flight_merge.h"
#include "watchdog/flight_record.h"
#include "watchdog/peer_host_monitor.h"
#include "watchdog/peer_host_table.h"

namespace holdfast::fuzz {
namespace {

void check_notices(const BoardNotices& notices) {
  const std::vector<Notice> found = read_notices(notices);
  require(found.size() <= BoardNotices::kept, "more notices than are kept");
  for (const Notice& each : found) require(each.sentence.size() <= board_text_bytes, "a notice is too long");
}

FlightRecord checked_record(FuzzEnv& env, Board& board, std::uint32_t slot) {
  FlightRecord record = take_flight_record(env, board, slot, 'S', "asked");
  const std::string written = flight_json(record);
  const Result<FlightRecord> again = parse_flight(written, "flight.json");
  if (!again.ok()) fail_run("a flight record that was written is refused: " + again.error().message);
  require(flight_json(*again) == written, "a flight record reads as another one");
  return record;
}

bool read_board(FuzzEnv& env) {
  const Result<std::unique_ptr<Board>> opened = Board::open(env, "board");
  if (!opened.ok()) {
    require_sentence(opened.error(), {ExitCode::communication});
    return false;
  }
  Board& board = **opened;
  check_notices(board.header().hangs);
  check_notices(board.header().lost_spares);
  require(read_run_directory(board.header()).size() <= board.header().run_directory.size(),
          "too long a path");
  std::vector<WatchedRank> ranks;
  std::vector<FlightRecord> records;
  for (std::uint32_t slot = 0; slot < board.slots(); ++slot) {
    ranks.push_back({.slot = read_slot(board.slot(slot)), .host = "host"});
    static_cast<void>(may_hang(ranks.back(), FuzzEnv::now_ns));
    records.push_back(checked_record(env, board, slot));
  }
  static_cast<void>(find_hung_rank(ranks, FuzzEnv::now_ns, 1'000'000'000));
  static_cast<void>(storage_sentence(ranks, FuzzEnv::now_ns, 1'000'000'000));
  static_cast<void>(merge_flights(records));
  static_cast<void>(flight_text(records));
  return true;
}

bool read_table(FuzzEnv& env) {
  const Result<std::unique_ptr<PeerHostTable>> opened = PeerHostTable::open(env, "board");
  if (!opened.ok()) {
    require_sentence(opened.error(), {ExitCode::communication});
    return false;
  }
  PeerHostTable& table = **opened;
  const PeerHostTableSetup setup = table.setup();
  require(static_cast<int>(setup.hosts.size()) == table.hosts(), "another number of hosts");
  require(table.own_host() >= 0 && table.own_host() < table.hosts(), "this host is none of them");
  PeerHostMonitor sight(setup);
  for (int host = 0; host < table.hosts(); ++host) {
    const int found = table.find(table.name_of(host));
    require(found >= 0 && found <= host, "a host is not found by its name");
    static_cast<void>(table.silent_since_ns(host));
    static_cast<void>(sight.misses(host, FuzzEnv::now_ns));
  }
  table.say_ended({.host = 0, .launched_rank = 1, .process = 2, .started_ticks = 3});
  static_cast<void>(table.has_ended(0, {.id = 2, .started_ticks = 3}));
  return true;
}

bool run_board(Input input) {
  FuzzEnv env;
  env.put_shared_memory("board", input);
  env.put_shared_memory("board-hosts", input);
  const bool is_board = read_board(env);
  return read_table(env) || is_board;
}

// With times `early` and `late` on the clock of the host.
std::vector<std::byte> board_of(std::int64_t early, std::int64_t late) {
  FuzzEnv env;
  const auto board = Board::open_or_create(env, "board", {.slots = 2, .ring_spans = 3}).value();
  BoardSlot& slot = board->slot(1);
  slot.process = 77;
  slot.started_ticks = 8;
  slot.launched_rank = 1;
  slot.phase = static_cast<std::uint32_t>(Phase::step);
  slot.step = 12;
  slot.begun_ns = slot.heartbeat_ns = early;
  slot.deadline_ns = 1'000'000'000;
  slot.wait_begun_ns = late;
  store_text(slot.wait_operation, "all_reduce");
  slot.ring_spans = 3;
  slot.spans_opened = 4;
  board->ring(1)[0] = {.kind = SpanKind::all_reduce, .bucket = 4, .step = 12, .begin = {.time_ns = 3}};
  write_notice(board->header().hangs, 1, "rank 1 hangs");
  write_run_directory(board->header(), "/runs/a");
  return env.shared_memory("board");
}

std::vector<std::byte> table_of() {
  FuzzEnv env;
  const PeerHostTableSetup setup = {
      .start = 5,
      .own_host = 1,
      .hosts = {{.name = "a", .addresses = {"10.0.0.1", "fe80::1"}, .port = 4000},
                {.name = "b", .addresses = {"10.0.0.2"}, .port = 4001}}};
  PeerHostTable::open_or_create(env, "board", setup).value()->say_ended({.launched_rank = 1, .process = 9});
  return env.shared_memory("board-hosts");
}

std::vector<Seed> board_seeds() {
  return {{"board", board_of(900'000'000'000, 950'000'000'000)},
          {"absurd-times",
           board_of(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max())},
          {"host-table", table_of()}};
}

}  // namespace

extern const Target board_target;
const Target board_target{.name = "board",
                          .run = run_board,
                          .seeds = board_seeds,
                          .memory_per_byte = 64,
                          .memory_beside = 64 << 10};

}  // namespace holdfast::fuzz
