// What guards of different hosts tell each other, and its bytes on the wire.
//
// A heartbeat is all that a guard knows of its host, so that each is worth as much as all before it. It is of
// one start of a run; what another start's guard sends, or anybody else, is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/result.h"
#include "watchdog/board.h"
#include "watchdog/peer_host_table.h"

namespace holdfast::inline watchdog {

struct GuardMessage {
  std::uint64_t start = 0;                // PeerHostTableSetup
  std::int32_t host = 0;                  // whose guard speaks
  std::uint64_t generation = 0;           // of that guard among those of its host
  std::uint64_t number = 0;               // of the message among those of that guard
  std::int64_t sent_ns = 0;               // by its monotonic clock, as are all times in `ranks`
  std::uint16_t port = 0;                 // where it listens
  std::vector<std::int32_t> silent = {};  // hosts that it does not hear
  std::vector<EndedProcess> ended = {};   // of its own host
  std::vector<SlotView> ranks = {};       // those that live, without texts, drains and counters
};

// A frame: its length, the message, its checksum.
std::vector<std::byte> frame_of(const GuardMessage& message);
inline constexpr std::size_t frame_head_bytes = 8;
inline constexpr std::size_t frame_bytes_max = std::size_t{1} << 20;
// How long the frame is that begins with these `frame_head_bytes`. Error: it is none.
Result<std::size_t> frame_bytes(std::span<const std::byte> head);
Result<GuardMessage> message_of(std::span<const std::byte> frame);

}  // namespace holdfast::inline watchdog
