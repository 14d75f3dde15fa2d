// Target of what comes from other hosts on a guard's connection: frames one behind the other, as they are and
// with lengths and checksums that fit; and what a guard concludes from them.
#include <cstring>
#include <limits>

#include "runtime/core/crc32c.h"
#include "tests/fuzz/fuzz_env.h"
#include "watchdog/detector.h"
#include "watchdog/guard_message.h"
#include "watchdog/peer_host_monitor.h"

namespace holdfast::fuzz {
namespace {

constexpr std::size_t checksum_bytes = 4, smallest_frame = frame_head_bytes + 56 + checksum_bytes;

void write_final_status(const GuardMessage& message) {
  PeerHostMonitor sight(
      {.start = message.start, .own_host = 0, .hosts = {{.name = "a"}, {.name = "b"}, {.name = "c"}}});
  const bool heard = sight.heard(message, FuzzEnv::now_ns);
  require(heard == (message.host == 1 || message.host == 2),
          "another host's message counts, or one of them does not");
  require(!sight.heard(message, FuzzEnv::now_ns), "the same message counts twice");
  for (const std::int64_t later_ns : {std::int64_t{0}, std::int64_t{1} << 40}) {
    const std::int64_t now_ns = FuzzEnv::now_ns + later_ns;
    for (int host = 1; host < 3; ++host) static_cast<void>(sight.misses(host, now_ns));
    require(sight.out_of_reach(now_ns).size() <= sight.missed(now_ns).size(),
            "more are out of reach than are missed");
    require(sight.leaves_because_of(now_ns).size() <= 2, "it leaves because of more hosts than there are");
    require(sight.silent(now_ns).size() <= 2, "it does not hear more hosts than there are");
    const std::vector<WatchedRank> ranks = sight.ranks(now_ns);
    require(ranks.size() <= message.ranks.size() + message.ended.size(), "more ranks than were told");
    const HangReport report = find_hung_rank(ranks, now_ns, 1'000'000'000);
    if (report.kind == HangReport::Kind::rank)
      require(report.index < ranks.size() && !report.sentence.empty(), "the rank that hangs is none of them");
    static_cast<void>(storage_sentence(ranks, now_ns, 1'000'000'000));
    if (heard) sight.closed(message.host, now_ns);
  }
}

// One frame, whole.
bool read_frame(std::span<const std::byte> frame) {
  const Result<GuardMessage> message = message_of(frame);
  if (!message.ok()) {
    require_sentence(message.error(), {ExitCode::communication});
    return false;
  }
  // A sender that is another version may say what this one does not, so it is the value that must stay.
  const std::vector<std::byte> written = frame_of(*message);
  const Result<GuardMessage> again = message_of(written);
  require(again.ok() && frame_of(*again) == written, "what was written reads as another message");
  require(written.size() == frame.size(), "what was written has another length");
  write_final_status(*message);
  return true;
}

// As a guard takes frames off what it has received. Whether all of it was messages.
bool read_stream(std::span<const std::byte> stream) {
  while (stream.size() >= frame_head_bytes) {
    const Result<std::size_t> bytes = frame_bytes(stream);
    if (!bytes.ok()) {
      require_sentence(bytes.error(), {ExitCode::communication});
      return false;
    }
    if (*bytes > stream.size()) return false;
    if (!read_frame(stream.first(*bytes))) return false;
    stream = stream.subspan(*bytes);
  }
  return stream.empty();
}

std::vector<std::byte> sealed_frame(Input input) {
  std::vector<std::byte> frame(input.begin(), input.end());
  if (frame.size() < smallest_frame) frame.resize(smallest_frame);
  const std::vector<std::byte> model = frame_of({});
  std::memcpy(frame.data(), model.data(), 4);
  const auto length = static_cast<std::uint32_t>(frame.size());
  std::memcpy(frame.data() + 4, &length, sizeof(length));
  const std::uint32_t checksum =
      crc32c(std::span<const std::byte>(frame).first(frame.size() - checksum_bytes));
  std::memcpy(frame.data() + frame.size() - checksum_bytes, &checksum, sizeof(checksum));
  return frame;
}

bool run_guard_message(Input input) {
  const bool accepted = read_stream(input);
  static_cast<void>(read_stream(sealed_frame(input)));
  return accepted;
}

std::vector<Seed> guard_message_seeds() {
  SlotView slot;
  slot.process = 77;
  slot.started_ticks = 9;
  slot.launched_rank = 3;
  slot.phase = Phase::step;
  slot.step = 12;
  slot.begun_ns = slot.heartbeat_ns = 5'000'000'000;
  slot.deadline_ns = 1'000'000'000;
  SlotView waits = slot;
  waits.wait_begun_ns = 5'500'000'000;
  waits.wait_peer = 3;
  waits.median_ns = 30'000'000;
  const GuardMessage message = {.start = 5,
                                .host = 1,
                                .generation = 1,
                                .number = 4,
                                .sent_ns = 7'000'000'000,
                                .port = 4000,
                                .silent = {2},
                                .ended = {{.host = 1, .launched_rank = 2, .process = 70, .started_ticks = 8}},
                                .ranks = {slot, waits}};
  const std::vector<std::byte> one = frame_of(message);
  GuardMessage absurd = message;
  absurd.sent_ns = std::numeric_limits<std::int64_t>::min();
  absurd.ranks[0].begun_ns = std::numeric_limits<std::int64_t>::max();
  absurd.ranks[1].deadline_ns = std::numeric_limits<std::int64_t>::max();
  absurd.ranks[1].begun_ns = std::numeric_limits<std::int64_t>::min();
  std::vector<std::byte> two = one;
  const std::vector<std::byte> least = frame_of({.silent = {0}});
  two.insert(two.end(), least.begin(), least.end());
  return {{"one", one}, {"two", two}, {"absurd-times", frame_of(absurd)}};
}

}  // namespace

extern const Target guard_message_target;
const Target guard_message_target{.name = "guard_message",
                                  .run = run_guard_message,
                                  .seeds = guard_message_seeds,
                                  .memory_per_byte = 64,
                                  .memory_beside = 64 << 10};

}  // namespace holdfast::fuzz
