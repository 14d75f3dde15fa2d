// Frames of messages between ranks over plain connections: fixed structs that begin with a magic and end with
// a checksum (a member crc32c), in the processor's byte order, because both ends run one program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/core/crc32c.h"
#include "runtime/os/network.h"

namespace holdfast::checkpoint {

// Limits how long one end waits for the other.
struct ReplicaLimits {
  std::int64_t answer_timeout_ms = 20'000;  // of a keeper, and of a source's hello
  std::int64_t part_timeout_ms = 20'000;    // of a MiB
};

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
Result<Frame> receive_frame(Connection& connection, const std::array<char, 8>& magic,
                            std::int64_t timeout_ms) {
  Frame frame;
  HF_TRY_VOID(connection.receive(std::as_writable_bytes(std::span(&frame, 1)), timeout_ms));
  if (frame.magic == magic && frame.crc32c == frame_checksum(frame)) return frame;
  return fail(ExitCode::communication, "{} sent something else than a rank of this program would",
              connection.peer());
}

}  // namespace holdfast::checkpoint
