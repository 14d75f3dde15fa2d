#include "watchdog/guard_message.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "runtime/core/crc32c.h"

namespace holdfast::watchdog {
namespace {

static_assert(std::endian::native == std::endian::little, "the hosts of a run have processors of one kind");

constexpr std::uint32_t magic = 0x47'4d'46'48;  // "HFMG"
constexpr std::size_t checksum_bytes = 4;

struct Head {
  std::uint64_t start = 0, generation = 0, number = 0;
  std::int64_t sent_ns = 0;
  std::int32_t host = 0;
  std::uint32_t port = 0, silent = 0, ended = 0, ranks = 0, reserved = 0;
};
static_assert(sizeof(Head) == 56);

struct Ended {
  std::int64_t process = 0, started_ticks = 0;
  std::int32_t launched_rank = -1, reserved = 0;
};
static_assert(sizeof(Ended) == 24);

struct Rank {
  std::int64_t process = 0, started_ticks = 0;
  std::uint64_t step = 0, epoch = 0;
  std::int64_t begun_ns = 0, deadline_ns = 0, ceiling_ns = 0, median_ns = 0, heartbeat_ns = 0, life_ns = 0,
               wait_begun_ns = 0, storage_begun_ns = 0;
  std::int32_t launched_rank = -1, wait_peer = -1;
  std::uint32_t wait_number = 0;
  std::uint8_t phase = 0, left = 0;
  std::uint16_t kind = 0;
};
static_assert(sizeof(Rank) == 112);

template <typename T>
void put(std::span<std::byte>& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(bytes.data(), &value, sizeof(T));
  bytes = bytes.subspan(sizeof(T));
}

template <typename T>
T take(std::span<const std::byte>& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  return value;
}

Error no_frame(const char* what) {
  return fail(ExitCode::communication, "what came is no message of a guard: {}", what);
}

Rank packed(const SlotView& slot) {
  return {.process = slot.process,
          .started_ticks = slot.started_ticks,
          .step = slot.step,
          .epoch = slot.epoch,
          .begun_ns = slot.begun_ns,
          .deadline_ns = slot.deadline_ns,
          .ceiling_ns = slot.ceiling_ns,
          .median_ns = slot.median_ns,
          .heartbeat_ns = slot.heartbeat_ns,
          .life_ns = slot.life_ns,
          .wait_begun_ns = slot.wait_begun_ns,
          .storage_begun_ns = slot.storage_begun_ns,
          .launched_rank = slot.launched_rank,
          .wait_peer = slot.wait_peer,
          .wait_number = slot.wait_number,
          .phase = static_cast<std::uint8_t>(slot.phase),
          .left = static_cast<std::uint8_t>(slot.left ? 1 : 0),
          .kind = static_cast<std::uint16_t>(slot.kind)};
}

SlotView unpacked(const Rank& rank) {
  SlotView slot;
  slot.process = rank.process;
  slot.started_ticks = rank.started_ticks;
  slot.launched_rank = rank.launched_rank;
  slot.phase =
      rank.phase < static_cast<std::uint8_t>(Phase::count) ? static_cast<Phase>(rank.phase) : Phase::start_up;
  slot.left = rank.left != 0;
  slot.kind = rank.kind < static_cast<std::uint16_t>(WorkKind::count) ? static_cast<WorkKind>(rank.kind)
                                                                      : WorkKind::usual;
  slot.step = rank.step;
  slot.epoch = rank.epoch;
  slot.begun_ns = plausible_time(rank.begun_ns);
  slot.deadline_ns = plausible_time(rank.deadline_ns);
  slot.ceiling_ns = plausible_time(rank.ceiling_ns);
  slot.median_ns = plausible_time(rank.median_ns);
  slot.heartbeat_ns = plausible_time(rank.heartbeat_ns);
  slot.life_ns = plausible_time(rank.life_ns);
  slot.wait_begun_ns = plausible_time(rank.wait_begun_ns);
  slot.storage_begun_ns = plausible_time(rank.storage_begun_ns);
  slot.wait_peer = rank.wait_peer;
  slot.wait_number = rank.wait_number;
  return slot;
}

}  // namespace

std::vector<std::byte> frame_of(const GuardMessage& message) {
  const std::size_t length = frame_head_bytes + sizeof(Head) + message.silent.size() * sizeof(std::int32_t) +
                             message.ended.size() * sizeof(Ended) + message.ranks.size() * sizeof(Rank) +
                             checksum_bytes;
  HF_CHECK(length <= frame_bytes_max, "a guard's message of {} bytes", length);
  std::vector<std::byte> frame(length);
  std::span<std::byte> rest(frame);
  put(rest, magic);
  put(rest, static_cast<std::uint32_t>(length));
  put(rest, Head{.start = message.start,
                 .generation = message.generation,
                 .number = message.number,
                 .sent_ns = message.sent_ns,
                 .host = message.host,
                 .port = message.port,
                 .silent = static_cast<std::uint32_t>(message.silent.size()),
                 .ended = static_cast<std::uint32_t>(message.ended.size()),
                 .ranks = static_cast<std::uint32_t>(message.ranks.size())});
  for (const std::int32_t host : message.silent) put(rest, host);
  for (const EndedProcess& each : message.ended) {
    put(rest, Ended{.process = each.process,
                    .started_ticks = each.started_ticks,
                    .launched_rank = each.launched_rank});
  }
  for (const SlotView& slot : message.ranks) put(rest, packed(slot));
  put(rest, crc32c(std::span(frame).first(length - checksum_bytes)));
  return frame;
}

Result<std::size_t> frame_bytes(std::span<const std::byte> head) {
  HF_CHECK(head.size() >= frame_head_bytes);
  if (take<std::uint32_t>(head) != magic) return no_frame("its first bytes are others");
  const auto length = take<std::uint32_t>(head);
  if (length < frame_head_bytes + sizeof(Head) + checksum_bytes || length > frame_bytes_max)
    return no_frame("its length is impossible");
  return std::size_t{length};
}

Result<GuardMessage> message_of(std::span<const std::byte> frame) {
  HF_CHECK(frame.size() >= frame_head_bytes + sizeof(Head) + checksum_bytes);
  std::span<const std::byte> checksum = frame.last(checksum_bytes);
  if (take<std::uint32_t>(checksum) != crc32c(frame.first(frame.size() - checksum_bytes)))
    return no_frame("its checksum is wrong");
  std::span<const std::byte> rest = frame.subspan(frame_head_bytes);
  const auto head = take<Head>(rest);
  const std::size_t needed = std::size_t{head.silent} * sizeof(std::int32_t) +
                             std::size_t{head.ended} * sizeof(Ended) +
                             std::size_t{head.ranks} * sizeof(Rank) + checksum_bytes;
  if (rest.size() != needed) return no_frame("it is shorter than it says");
  GuardMessage message{.start = head.start,
                       .host = head.host,
                       .generation = head.generation,
                       .number = head.number,
                       .sent_ns = plausible_time(head.sent_ns),
                       .port = static_cast<std::uint16_t>(head.port)};
  for (std::uint32_t i = 0; i < head.silent; ++i) message.silent.push_back(take<std::int32_t>(rest));
  for (std::uint32_t i = 0; i < head.ended; ++i) {
    const auto each = take<Ended>(rest);
    message.ended.push_back({.host = head.host,
                             .launched_rank = each.launched_rank,
                             .process = each.process,
                             .started_ticks = each.started_ticks});
  }
  for (std::uint32_t i = 0; i < head.ranks; ++i) message.ranks.push_back(unpacked(take<Rank>(rest)));
  return message;
}

}  // namespace holdfast::watchdog
