#include "checkpoint/transfer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/names.h"
#include "runtime/core/crc32c.h"

namespace holdfast::checkpoint {
namespace {

using Magic = std::array<char, 8>;
constexpr Magic hello_magic = {'H', 'F', 'T', 'R', 'A', 'N', 'S', 'F'};
constexpr Magic answer_magic = {'H', 'F', 'A', 'N', 'S', 'W', 'E', 'R'};
constexpr std::uint32_t protocol_version = 2;
constexpr std::uint64_t first_page_bytes = SnapshotSlot::alignment_bytes;
constexpr std::uint64_t part_bytes = 1 << 20;

enum class Kind : std::uint32_t { replica = 1, shard = 2 };

struct Hello {
  Magic magic = hello_magic;
  std::uint32_t version = protocol_version;
  Kind kind = Kind::replica;
  std::uint64_t run_high = 0, run_low = 0, writer = 0;
  std::uint32_t rank = 0, ranks = 0;
  std::uint64_t generation = 0, step = 0;
  std::uint64_t confirmed_generation = 0, confirmed_step = 0;  // of a replica
  std::uint64_t bytes = 0;                                     // of the content
  std::array<char, 64> name = {};                              // of a file, with zeros after it
  std::uint32_t crc32c = 0;                                    // of everything before
  std::uint32_t padding = 0;
};
static_assert(sizeof(Hello) == 160 && std::is_trivially_copyable_v<Hello>);

enum class Verdict : std::uint32_t {
  go_on = 1,
  foreign = 2,
  stale = 3,
  too_large = 4,
  kept = 5,
  damaged = 6,
  refused = 7
};

struct Answer {
  Magic magic = answer_magic;
  Verdict verdict = Verdict::go_on;
  std::uint32_t crc32c = 0;  // of everything before
};
static_assert(sizeof(Answer) == 16 && std::is_trivially_copyable_v<Answer>);

template <typename Frame>
std::uint32_t frame_checksum(const Frame& frame) {
  return crc32c(std::as_bytes(std::span(&frame, 1)).first(offsetof(Frame, crc32c)));
}

template <typename Frame>
Result<void> send_frame(Connection& connection, Frame frame, std::int64_t timeout_ms) {
  frame.crc32c = frame_checksum(frame);
  return connection.send(std::as_bytes(std::span(&frame, 1)), timeout_ms);
}

template <typename Frame>
Result<Frame> receive_frame(Connection& connection, std::int64_t timeout_ms) {
  Frame frame;
  const Magic magic = frame.magic;
  HF_TRY_VOID(connection.receive(std::as_writable_bytes(std::span(&frame, 1)), timeout_ms));
  if (frame.magic == magic && frame.crc32c == frame_checksum(frame)) return frame;
  return fail(ExitCode::communication, "{} sent something else than a rank of this program would",
              connection.peer());
}

std::string_view reason_of(Kind kind, Verdict verdict) {
  const bool is_replica = kind == Kind::replica;
  switch (verdict) {
    case Verdict::foreign:
      return is_replica ? "it keeps those of another run, start or rank"
                        : "it keeps those of another run or start";
    case Verdict::stale:
      return "it has a newer one";
    case Verdict::too_large:
      return "it has less room than the snapshot needs";
    case Verdict::refused:
      return "its disk has no room, or cannot be written";
    case Verdict::damaged:
      return is_replica ? "it did not arrive as it was sealed" : "it did not arrive as it was sent";
    default:
      return "its answer is none of this program's";
  }
}

Result<void> answer(Connection& connection, Verdict verdict, const TransferLimits& limits) {
  return send_frame(connection, Answer{.verdict = verdict}, limits.answer_timeout_ms);
}

Result<void> expect(Connection& connection, Kind kind, Verdict expected, std::int64_t timeout_ms) {
  HF_TRY(const Answer frame, receive_frame<Answer>(connection, timeout_ms));
  if (frame.verdict == expected) return {};
  return fail(ExitCode::communication, "{} did not take the {}: {}", connection.peer(),
              kind == Kind::replica ? "snapshot" : "copy", reason_of(kind, frame.verdict));
}

// Calls move(at, bytes) for the parts of the content in order, so that a slow connection has time and one that stalls
// is noticed. There is a fault point at half of the first part.
template <typename Move>
Result<void> by_parts(std::uint64_t bytes, FaultPoints& faults, const char* half_way, Move move) {
  for (std::uint64_t at = 0, part = 0; at < bytes; at += part) {
    part = std::min(part_bytes, bytes - at);
    if (at == 0) part = (part + 1) / 2;
    HF_TRY_VOID(move(at, part));
    if (at == 0) HF_FAULT_POINT(faults, half_way);
  }
  return {};
}

// Sends the hello and, if the keeper takes it, the content: read(at, bytes) returns each part.
template <typename Read>
Result<void> send_content(Connection& connection, const Hello& hello, FaultPoints& faults,
                          const char* half_way, const TransferLimits& limits, Read read) {
  HF_TRY_VOID(send_frame(connection, hello, limits.answer_timeout_ms));
  HF_TRY_VOID(expect(connection, hello.kind, Verdict::go_on, limits.answer_timeout_ms));
  return by_parts(hello.bytes, faults, half_way, [&](std::uint64_t at, std::uint64_t bytes) -> Result<void> {
    HF_TRY(const std::span<const std::byte> part, read(at, bytes));
    return connection.send(part, limits.part_timeout_ms);
  });
}

// Sends what seals the content, and waits until the keeper has it. It reads every byte again before it says so, or its
// disk may be slow.
Result<void> send_seal(Connection& connection, const Hello& hello, std::span<const std::byte> seal,
                       const TransferLimits& limits) {
  const std::uint64_t slow_bytes_per_ms = hello.kind == Kind::replica ? 100'000 : 20'000;
  HF_TRY_VOID(connection.send(seal, limits.part_timeout_ms));
  return expect(connection, hello.kind, Verdict::kept,
                limits.answer_timeout_ms + static_cast<std::int64_t>(hello.bytes / slow_bytes_per_ms));
}

Error refuse(Connection& connection, Kind kind, Verdict verdict, const TransferLimits& limits) {
  if (Result<void> answered = answer(connection, verdict, limits); !answered.ok()) return answered.error();
  return fail(ExitCode::communication, "{} was refused: {}", connection.peer(), reason_of(kind, verdict));
}

std::string name_in(const Hello& hello) {
  return {hello.name.data(), strnlen(hello.name.data(), hello.name.size())};
}

// Receives the hello of a source. One of another kind, run, start or rank is refused.
Result<Hello> receive_hello(Connection& connection, Kind kind, const TransferSource& source,
                            const TransferLimits& limits) {
  HF_TRY(const Hello hello, receive_frame<Hello>(connection, limits.answer_timeout_ms));
  const bool known = hello.version == protocol_version && hello.kind == kind &&
                     Digest{.high = hello.run_high, .low = hello.run_low} == source.run &&
                     hello.writer == source.writer && hello.rank == source.rank &&
                     hello.ranks == source.ranks;
  if (known && (kind == Kind::replica || checkpoint_names::is_file_name(name_in(hello)))) return hello;
  return refuse(connection, kind, Verdict::foreign, limits);
}

auto age(const SnapshotStep& step) {
  return std::pair(step.generation, step.step);
}

Result<void> take_file(Connection& connection, Env& env, const std::string& directory, const Hello& hello,
                       FaultPoints& faults, const TransferLimits& limits) {
  const auto refuse_by = [&](const Result<void>& outcome) -> Result<void> {
    static_cast<void>(answer(connection, Verdict::refused, limits).ok());
    return outcome;
  };
  const std::string path = directory + "/" + name_in(hello);
  if (Result<void> made = env.make_directories(directory); !made.ok()) return refuse_by(made);
  Result<std::unique_ptr<File>> file = env.open(path, OpenMode::create);
  if (!file.ok()) return refuse_by(file.error());
  if (Result<void> room = (*file)->allocate(hello.bytes); !room.ok()) return refuse_by(room);
  HF_TRY_VOID(answer(connection, Verdict::go_on, limits));
  std::vector<std::byte> part;
  std::uint32_t crc = 0, sent_crc = 0;
  const auto take = [&](std::uint64_t at, std::uint64_t bytes) -> Result<void> {
    part.resize(bytes);
    HF_TRY_VOID(connection.receive(part, limits.part_timeout_ms));
    crc = crc32c(part, crc);
    return (*file)->write_at(at, part);
  };
  if (Result<void> taken = by_parts(hello.bytes, faults, "copy.mid_receive", take); !taken.ok())
    return refuse_by(taken);
  HF_TRY_VOID(connection.receive(std::as_writable_bytes(std::span(&sent_crc, 1)), limits.answer_timeout_ms));
  if (crc != sent_crc) {
    static_cast<void>(answer(connection, Verdict::damaged, limits).ok());
    return fail(ExitCode::checkpoint, "{} did not arrive as it was sent", path);
  }
  if (Result<void> synced = (*file)->sync(); !synced.ok()) return refuse_by(synced);
  if (Result<void> synced = env.sync_directory(directory); !synced.ok()) return refuse_by(synced);
  return answer(connection, Verdict::kept, limits);
}

}  // namespace

Result<void> send_replica(Connection& connection, std::span<const std::byte> slot,
                          const SnapshotStep& confirmed, FaultPoints& faults, const TransferLimits& limits) {
  const std::string place = "to be sent";
  HF_TRY(const SnapshotIdentity identity, SnapshotReader::identify(slot, place));
  HF_TRY(const std::uint64_t sealed_bytes, SnapshotReader::sealed_bytes(slot, place));
  const Hello hello = {.kind = Kind::replica,
                       .run_high = identity.run.high,
                       .run_low = identity.run.low,
                       .writer = identity.writer,
                       .rank = identity.rank,
                       .ranks = identity.ranks,
                       .generation = identity.generation,
                       .step = identity.step,
                       .confirmed_generation = confirmed.generation,
                       .confirmed_step = confirmed.step,
                       .bytes = sealed_bytes - first_page_bytes};
  HF_FAULT_POINT(faults, "replica.before_send");
  const auto read = [&](std::uint64_t at, std::uint64_t bytes) -> Result<std::span<const std::byte>> {
    return slot.subspan(first_page_bytes + at, bytes);
  };
  HF_TRY_VOID(send_content(connection, hello, faults, "replica.mid_send", limits, read));
  HF_TRY_VOID(send_seal(connection, hello, slot.first(first_page_bytes), limits));
  HF_FAULT_POINT(faults, "replica.after_send");
  return {};
}

ReplicaKeeper::ReplicaKeeper(const TransferSource& source, const Digest& host,
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

Result<SnapshotStep> ReplicaKeeper::receive(Connection& connection, const TransferLimits& limits) {
  HF_TRY(const Hello hello, receive_hello(connection, Kind::replica, source_, limits));
  const SnapshotStep step = {.writer = hello.writer, .generation = hello.generation, .step = hello.step};
  const SnapshotStep confirmed = {
      .writer = hello.writer, .generation = hello.confirmed_generation, .step = hello.confirmed_step};
  const bool newer = std::ranges::all_of(
      slots_, [&](const Slot& slot) { return !slot.sealed.has_value() || age(*slot.sealed) < age(step); });
  if (!newer) return refuse(connection, Kind::replica, Verdict::stale, limits);
  Slot& slot = slot_for(confirmed);
  const bool fits = hello.bytes > 0 && hello.bytes <= slot.replica.capacity_bytes() - first_page_bytes;
  if (!fits) return refuse(connection, Kind::replica, Verdict::too_large, limits);
  HF_TRY_VOID(answer(connection, Verdict::go_on, limits));
  const SnapshotIdentity announced = {.run = source_.run,
                                      .host = host_,
                                      .writer = hello.writer,
                                      .generation = hello.generation,
                                      .step = hello.step,
                                      .rank = hello.rank,
                                      .ranks = hello.ranks};
  slot.sealed.reset();
  slot.replica.begin(first_page_bytes + hello.bytes);
  HF_FAULT_POINT(*faults_, "replica.before_receive");
  const std::span<std::byte> body = slot.replica.body();
  const auto take = [&](std::uint64_t at, std::uint64_t bytes) {
    return connection.receive(body.subspan(at, bytes), limits.part_timeout_ms);
  };
  HF_TRY_VOID(by_parts(body.size(), *faults_, "replica.mid_receive", take));
  std::array<std::byte, first_page_bytes> first_page;
  HF_TRY_VOID(connection.receive(first_page, limits.part_timeout_ms));
  HF_FAULT_POINT(*faults_, "replica.before_seal");
  const Result<void> sealed = slot.replica.seal(first_page, announced, name_);
  if (!sealed.ok()) {
    HF_TRY_VOID(answer(connection, Verdict::damaged, limits));
    return sealed.error();
  }
  HF_FAULT_POINT(*faults_, "replica.after_seal");
  slot.sealed = step;
  HF_TRY_VOID(answer(connection, Verdict::kept, limits));
  return step;
}

Result<void> send_shard_copy(Connection& connection, Env& env, const TransferSource& source,
                             std::uint64_t step, const std::string& directory, const ShardFile& shard,
                             FaultPoints& faults, const Pace& pace, const TransferLimits& limits) {
  Hello hello = {.kind = Kind::shard,
                 .run_high = source.run.high,
                 .run_low = source.run.low,
                 .writer = source.writer,
                 .rank = source.rank,
                 .ranks = source.ranks,
                 .step = step,
                 .bytes = shard.bytes};
  HF_CHECK(shard.name.size() <= hello.name.size(), "'{}' is longer than a shard's name", shard.name);
  std::memcpy(hello.name.data(), shard.name.data(), shard.name.size());
  HF_TRY(const std::unique_ptr<File> file, env.open(directory + "/" + shard.name, OpenMode::read));
  std::vector<std::byte> part;
  std::uint32_t crc = 0;
  const auto read = [&](std::uint64_t at, std::uint64_t bytes) -> Result<std::span<const std::byte>> {
    part.resize(bytes);
    HF_TRY_VOID(file->read_at(at, part));
    crc = crc32c(part, crc);
    if (pace) pace(bytes);
    return std::span<const std::byte>(part);
  };
  HF_TRY_VOID(send_content(connection, hello, faults, "copy.mid_send", limits, read));
  return send_seal(connection, hello, std::as_bytes(std::span(&crc, 1)), limits);
}

Result<void> receive_shard_copy(Connection& connection, Env& env, const TransferSource& source,
                                const std::function<std::string(std::uint64_t step)>& directory_of,
                                FaultPoints& faults, const TransferLimits& limits) {
  HF_TRY(const Hello hello, receive_hello(connection, Kind::shard, source, limits));
  return take_file(connection, env, directory_of(hello.step), hello, faults, limits);
}

}  // namespace holdfast::checkpoint
