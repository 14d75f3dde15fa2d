// Messages that guards of different hosts send each other, and their bytes on the wire.
//
// A heartbeat holds all that a guard knows of its host, so each one replaces all before it. It belongs to one
// start of a run; messages from a guard of another start, or from any other sender, are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/result.h"
#include "watchdog/board.h"
#include "watchdog/peer_host_table.h"

namespace holdfast::watchdog {

struct GuardMessage {
  std::uint64_t start = 0;                // PeerHostTableSetup
  std::int32_t host = 0;                  // host of the guard that sends it
  std::uint64_t generation = 0;           // number of that guard among those of its host
  std::uint64_t number = 0;               // number of the message among those of that guard
  std::int64_t sent_ns = 0;               // by its monotonic clock, as are all times in `ranks`
  std::uint16_t port = 0;                 // port that the guard listens on
  std::vector<std::int32_t> silent = {};  // hosts that it does not hear
  std::vector<EndedProcess> ended = {};   // processes of its own host
  std::vector<SlotView> ranks = {};       // ranks that live, without texts, drains and counters
};

// Returns the frame of a message: its length, the message, its checksum.
std::vector<std::byte> frame_of(const GuardMessage& message);
inline constexpr std::size_t frame_head_bytes = 8;
inline constexpr std::size_t frame_bytes_max = std::size_t{1} << 20;
// Returns the length of the frame that begins with these `frame_head_bytes`. Error: it is not a frame.
Result<std::size_t> frame_bytes(std::span<const std::byte> head);
Result<GuardMessage> message_of(std::span<const std::byte> frame);

}  // namespace holdfast::watchdog
