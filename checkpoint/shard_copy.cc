#include "checkpoint/shard_copy.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "checkpoint/names.h"
#include "runtime/core/crc32c.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::array<char, 8> copy_magic = {'H', 'F', 'S', 'H', 'C', 'O', 'P', 'Y'};
constexpr std::array<char, 8> copy_answer_magic = {'H', 'F', 'C', 'O', 'P', 'I', 'E', 'D'};
constexpr std::uint32_t copy_version = 1;
constexpr std::uint64_t copied_at_once = 1 << 20;
constexpr std::size_t name_bytes_max = 64;

struct CopyHello {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t name_bytes;
  std::uint64_t run_high, run_low, writer;
  std::uint64_t step, bytes;
  std::array<char, name_bytes_max> name;
  std::uint32_t crc32c;  // of everything before
  std::uint32_t padding;
};
static_assert(sizeof(CopyHello) == 128 && std::is_trivially_copyable_v<CopyHello>);

enum class CopyVerdict : std::uint32_t { go_on = 1, foreign = 2, refused = 3, durable = 4, damaged = 5 };

struct CopyAnswer {
  std::array<char, 8> magic;
  std::uint32_t verdict;
  std::uint32_t crc32c;  // of everything before
};
static_assert(sizeof(CopyAnswer) == 16 && std::is_trivially_copyable_v<CopyAnswer>);

Result<void> answer_copy(Connection& connection, CopyVerdict verdict, const ReplicaLimits& limits) {
  const CopyAnswer frame = {
      .magic = copy_answer_magic, .verdict = static_cast<std::uint32_t>(verdict), .crc32c = 0};
  return send_frame(connection, frame, limits.answer_timeout_ms);
}

std::string_view reason_of_copy(std::uint32_t verdict) {
  switch (static_cast<CopyVerdict>(verdict)) {
    case CopyVerdict::foreign:
      return "it keeps those of another run or start";
    case CopyVerdict::refused:
      return "its disk has no room, or cannot be written";
    case CopyVerdict::damaged:
      return "it did not arrive as it was sent";
    default:
      return "its answer is none of this program's";
  }
}

Result<void> expect_of_copy(Connection& connection, CopyVerdict expected, std::int64_t timeout_ms) {
  HF_TRY(const CopyAnswer frame, receive_frame<CopyAnswer>(connection, copy_answer_magic, timeout_ms));
  if (frame.verdict == static_cast<std::uint32_t>(expected)) return {};
  return fail(ExitCode::communication, "{} did not take the copy: {}", connection.peer(),
              reason_of_copy(frame.verdict));
}

// A keeper's disk may be slow.
std::int64_t durable_timeout_ms(std::uint64_t bytes, const ReplicaLimits& limits) {
  constexpr std::uint64_t slow_bytes_per_ms = 20'000;
  return limits.answer_timeout_ms + static_cast<std::int64_t>(bytes / slow_bytes_per_ms);
}

// Returns the CRC32C of what has come.
Result<std::uint32_t> take_content(Connection& connection, File& file, std::uint64_t bytes,
                                   FaultPoints& faults, const ReplicaLimits& limits) {
  std::vector<std::byte> part;
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < bytes; done += part.size()) {
    part.resize(std::min(copied_at_once, bytes - done));
    HF_TRY_VOID(connection.receive(part, limits.part_timeout_ms));
    crc = crc32c(part, crc);
    HF_TRY_VOID(file.write_at(done, part));
    HF_FAULT_POINT(faults, "copy.mid_receive");
  }
  return crc;
}

Result<void> take_file(Connection& connection, Env& env, const std::string& directory,
                       const std::string& name, std::uint64_t bytes, FaultPoints& faults,
                       const ReplicaLimits& limits) {
  const auto refuse = [&](const Result<void>& outcome) -> Result<void> {
    static_cast<void>(answer_copy(connection, CopyVerdict::refused, limits).ok());
    return outcome;
  };
  if (Result<void> made = env.make_directories(directory); !made.ok()) return refuse(made);
  Result<std::unique_ptr<File>> file = env.open(directory + "/" + name, OpenMode::create);
  if (!file.ok()) return refuse(file.error());
  if (Result<void> room = (*file)->allocate(bytes); !room.ok()) return refuse(room);
  HF_TRY_VOID(answer_copy(connection, CopyVerdict::go_on, limits));
  const Result<std::uint32_t> crc = take_content(connection, **file, bytes, faults, limits);
  if (!crc.ok()) return refuse(crc.error());
  std::uint32_t sent_crc = 0;
  HF_TRY_VOID(connection.receive(std::as_writable_bytes(std::span(&sent_crc, 1)), limits.answer_timeout_ms));
  if (*crc != sent_crc) {
    static_cast<void>(answer_copy(connection, CopyVerdict::damaged, limits).ok());
    return fail(ExitCode::checkpoint, "{}/{} did not arrive as it was sent", directory, name);
  }
  if (Result<void> synced = (*file)->sync(); !synced.ok()) return refuse(synced);
  if (Result<void> synced = env.sync_directory(directory); !synced.ok()) return refuse(synced);
  return answer_copy(connection, CopyVerdict::durable, limits);
}

}  // namespace

Result<void> send_shard_copy(Connection& connection, Env& env, const CopySource& source, std::uint64_t step,
                             const std::string& directory, const ShardFile& shard, FaultPoints& faults,
                             const Pace& pace, const ReplicaLimits& limits) {
  HF_CHECK(shard.name.size() <= name_bytes_max, "'{}' is longer than a shard's name", shard.name);
  CopyHello hello = {.magic = copy_magic,
                     .version = copy_version,
                     .name_bytes = static_cast<std::uint32_t>(shard.name.size()),
                     .run_high = source.run.high,
                     .run_low = source.run.low,
                     .writer = source.writer,
                     .step = step,
                     .bytes = shard.bytes,
                     .name = {},
                     .crc32c = 0,
                     .padding = 0};
  std::memcpy(hello.name.data(), shard.name.data(), shard.name.size());
  HF_TRY(const std::unique_ptr<File> file, env.open(directory + "/" + shard.name, OpenMode::read));
  HF_TRY_VOID(send_frame(connection, hello, limits.answer_timeout_ms));
  HF_TRY_VOID(expect_of_copy(connection, CopyVerdict::go_on, limits.answer_timeout_ms));
  std::vector<std::byte> part;
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < shard.bytes; done += part.size()) {
    part.resize(std::min(copied_at_once, shard.bytes - done));
    HF_TRY_VOID(file->read_at(done, part));
    crc = crc32c(part, crc);
    HF_TRY_VOID(connection.send(part, limits.part_timeout_ms));
    if (pace) pace(part.size());
    HF_FAULT_POINT(faults, "copy.mid_send");
  }
  HF_TRY_VOID(connection.send(std::as_bytes(std::span(&crc, 1)), limits.part_timeout_ms));
  HF_TRY_VOID(expect_of_copy(connection, CopyVerdict::durable, durable_timeout_ms(shard.bytes, limits)));
  return {};
}

Result<void> receive_shard_copy(Connection& connection, Env& env, const CopySource& source,
                                const std::function<std::string(std::uint64_t step)>& directory_of,
                                FaultPoints& faults, const ReplicaLimits& limits) {
  HF_TRY(const CopyHello hello, receive_frame<CopyHello>(connection, copy_magic, limits.answer_timeout_ms));
  const Digest run = {.high = hello.run_high, .low = hello.run_low};
  const std::string name(hello.name.data(), std::min<std::size_t>(hello.name_bytes, name_bytes_max));
  const bool known = hello.version == copy_version && run == source.run && hello.writer == source.writer &&
                     checkpoint_names::is_file_name(name);
  if (!known) {
    HF_TRY_VOID(answer_copy(connection, CopyVerdict::foreign, limits));
    return fail(ExitCode::communication, "{} was refused: {}", connection.peer(),
                reason_of_copy(static_cast<std::uint32_t>(CopyVerdict::foreign)));
  }
  return take_file(connection, env, directory_of(hello.step), name, hello.bytes, faults, limits);
}

}  // namespace holdfast::checkpoint
