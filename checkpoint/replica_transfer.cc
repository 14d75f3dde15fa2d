#include "checkpoint/replica_transfer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "runtime/core/crc32c.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::array<char, 8> hello_magic = {'H', 'F', 'R', 'E', 'P', 'L', 'I', 'C'};
constexpr std::array<char, 8> answer_magic = {'H', 'F', 'A', 'N', 'S', 'W', 'E', 'R'};
constexpr std::uint32_t protocol_version = 1;
constexpr std::uint64_t first_page_bytes = SnapshotSlot::alignment_bytes;
constexpr std::size_t part_bytes = 1 << 20;

struct Hello {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t rank, ranks;
  std::uint32_t reserved;
  std::uint64_t run_high, run_low, writer;
  std::uint64_t generation, step;
  std::uint64_t confirmed_generation, confirmed_step;
  std::uint64_t sealed_bytes;
  std::uint32_t crc32c;  // of everything before
  std::uint32_t padding;
};
static_assert(sizeof(Hello) == 96 && std::is_trivially_copyable_v<Hello>);

enum class Verdict : std::uint32_t {
  go_on = 1,
  foreign = 2,
  stale = 3,
  too_large = 4,
  sealed = 5,
  damaged = 6
};

struct Answer {
  std::array<char, 8> magic;
  std::uint32_t verdict;
  std::uint32_t crc32c;  // of everything before
};
static_assert(sizeof(Answer) == 16 && std::is_trivially_copyable_v<Answer>);

Result<void> answer(Connection& connection, Verdict verdict, const ReplicaLimits& limits) {
  const Answer frame = {.magic = answer_magic, .verdict = static_cast<std::uint32_t>(verdict), .crc32c = 0};
  return send_frame(connection, frame, limits.answer_timeout_ms);
}

std::string_view reason_of(std::uint32_t verdict) {
  switch (static_cast<Verdict>(verdict)) {
    case Verdict::foreign:
      return "it keeps those of another run, start or rank";
    case Verdict::stale:
      return "it has a newer one";
    case Verdict::too_large:
      return "it has less room than the snapshot needs";
    case Verdict::damaged:
      return "it did not arrive as it was sealed";
    default:
      return "its answer is none of this program's";
  }
}

Result<void> expect(Connection& connection, Verdict expected, std::int64_t timeout_ms) {
  HF_TRY(const Answer frame, receive_frame<Answer>(connection, answer_magic, timeout_ms));
  if (frame.verdict == static_cast<std::uint32_t>(expected)) return {};
  return fail(ExitCode::communication, "{} did not take the snapshot: {}", connection.peer(),
              reason_of(frame.verdict));
}

Result<Hello> hello_of(std::span<const std::byte> slot, const SnapshotStep& confirmed) {
  const std::string place = "to be sent";
  HF_TRY(const SnapshotIdentity identity, SnapshotReader::identify(slot, place));
  HF_TRY(const std::uint64_t sealed_bytes, SnapshotReader::sealed_bytes(slot, place));
  return Hello{.magic = hello_magic,
               .version = protocol_version,
               .rank = identity.rank,
               .ranks = identity.ranks,
               .reserved = 0,
               .run_high = identity.run.high,
               .run_low = identity.run.low,
               .writer = identity.writer,
               .generation = identity.generation,
               .step = identity.step,
               .confirmed_generation = confirmed.generation,
               .confirmed_step = confirmed.step,
               .sealed_bytes = sealed_bytes,
               .crc32c = 0,
               .padding = 0};
}

// Moves the bytes in parts, so that a slow connection has time and one that stalls is noticed.
// There is a fault point at half of them.
template <typename Byte, typename Move>
Result<void> by_parts(std::span<Byte> bytes, FaultPoints& faults, const char* half_way, Move move) {
  bool passed = false;
  for (std::size_t done = 0; done < bytes.size(); done += part_bytes) {
    const auto part = bytes.subspan(done, std::min(part_bytes, bytes.size() - done));
    const std::size_t first = std::min(part.size(), passed ? part.size() : (part.size() + 1) / 2);
    HF_TRY_VOID(move(part.first(first)));
    if (!std::exchange(passed, true)) HF_FAULT_POINT(faults, half_way);
    if (first < part.size()) HF_TRY_VOID(move(part.subspan(first)));
  }
  return {};
}

// A keeper reads every byte again before it says so.
std::int64_t sealing_timeout_ms(std::uint64_t bytes, const ReplicaLimits& limits) {
  constexpr std::uint64_t slow_bytes_per_ms = 100'000;
  return limits.answer_timeout_ms + static_cast<std::int64_t>(bytes / slow_bytes_per_ms);
}

auto age(const SnapshotStep& step) {
  return std::pair(step.generation, step.step);
}

}  // namespace

Result<void> send_replica(Connection& connection, std::span<const std::byte> slot,
                          const SnapshotStep& confirmed, FaultPoints& faults, const ReplicaLimits& limits) {
  HF_TRY(const Hello hello, hello_of(slot, confirmed));
  HF_FAULT_POINT(faults, "replica.before_send");
  HF_TRY_VOID(send_frame(connection, hello, limits.answer_timeout_ms));
  HF_TRY_VOID(expect(connection, Verdict::go_on, limits.answer_timeout_ms));
  const std::span<const std::byte> body =
      slot.subspan(first_page_bytes, hello.sealed_bytes - first_page_bytes);
  HF_TRY_VOID(by_parts(body, faults, "replica.mid_send", [&](std::span<const std::byte> part) {
    return connection.send(part, limits.part_timeout_ms);
  }));
  HF_TRY_VOID(connection.send(slot.first(first_page_bytes), limits.part_timeout_ms));
  HF_TRY_VOID(expect(connection, Verdict::sealed, sealing_timeout_ms(hello.sealed_bytes, limits)));
  HF_FAULT_POINT(faults, "replica.after_send");
  return {};
}

ReplicaKeeper::ReplicaKeeper(const Source& source, const Digest& host,
                             const std::array<std::span<std::byte>, slots>& memory, FaultPoints& faults)
    : source_(source),
      host_(host),
      name_(fmt::format("of rank {} as it arrived", source.rank)),
      slots_{Slot{SnapshotReplica(memory[0]), {}}, Slot{SnapshotReplica(memory[1]), {}}},
      faults_(&faults) {}

// Returns the slot to overwrite: never that of the confirmed step; else the one that is worth less.
ReplicaKeeper::Slot& ReplicaKeeper::slot_for(const SnapshotStep& confirmed) {
  const auto worth = [&](const Slot& slot) {
    if (!slot.sealed.has_value()) return std::pair(0, age(confirmed));
    return std::pair(age(*slot.sealed) == age(confirmed) ? 2 : 1, age(*slot.sealed));
  };
  return worth(slots_[0]) <= worth(slots_[1]) ? slots_[0] : slots_[1];
}

Result<SnapshotStep> ReplicaKeeper::receive(Connection& connection, const ReplicaLimits& limits) {
  HF_TRY(const Hello hello, receive_frame<Hello>(connection, hello_magic, limits.answer_timeout_ms));
  const SnapshotStep step = {.writer = hello.writer, .generation = hello.generation, .step = hello.step};
  const SnapshotStep confirmed = {
      .writer = hello.writer, .generation = hello.confirmed_generation, .step = hello.confirmed_step};
  const Digest run = {.high = hello.run_high, .low = hello.run_low};
  const bool known = hello.version == protocol_version && run == source_.run &&
                     hello.writer == source_.writer && hello.rank == source_.rank &&
                     hello.ranks == source_.ranks;
  const bool newer = std::ranges::all_of(
      slots_, [&](const Slot& slot) { return !slot.sealed.has_value() || age(*slot.sealed) < age(step); });
  Slot& slot = slot_for(confirmed);
  const bool fits =
      hello.sealed_bytes > first_page_bytes && hello.sealed_bytes <= slot.replica.capacity_bytes();
  const Verdict verdict = !known   ? Verdict::foreign
                          : !newer ? Verdict::stale
                          : !fits  ? Verdict::too_large
                                   : Verdict::go_on;
  HF_TRY_VOID(answer(connection, verdict, limits));
  if (verdict != Verdict::go_on) {
    return fail(ExitCode::communication, "{} was refused: {}", connection.peer(),
                reason_of(static_cast<std::uint32_t>(verdict)));
  }
  const SnapshotIdentity announced = {.run = run,
                                      .host = host_,
                                      .writer = hello.writer,
                                      .generation = hello.generation,
                                      .step = hello.step,
                                      .rank = hello.rank,
                                      .ranks = hello.ranks};
  slot.sealed.reset();
  slot.replica.begin(hello.sealed_bytes);
  HF_TRY_VOID(fill(slot, announced, connection, limits));
  slot.sealed = step;
  HF_TRY_VOID(answer(connection, Verdict::sealed, limits));
  return step;
}

Result<void> ReplicaKeeper::fill(Slot& slot, const SnapshotIdentity& announced, Connection& connection,
                                 const ReplicaLimits& limits) {
  HF_FAULT_POINT(*faults_, "replica.before_receive");
  HF_TRY_VOID(by_parts(slot.replica.body(), *faults_, "replica.mid_receive", [&](std::span<std::byte> part) {
    return connection.receive(part, limits.part_timeout_ms);
  }));
  std::array<std::byte, first_page_bytes> first_page;
  HF_TRY_VOID(connection.receive(first_page, limits.part_timeout_ms));
  HF_FAULT_POINT(*faults_, "replica.before_seal");
  const Result<void> sealed = slot.replica.seal(first_page, announced, name_);
  if (!sealed.ok()) {
    HF_TRY_VOID(answer(connection, Verdict::damaged, limits));
    return sealed;
  }
  HF_FAULT_POINT(*faults_, "replica.after_seal");
  return {};
}

}  // namespace holdfast::checkpoint
