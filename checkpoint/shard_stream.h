// ShardStream: a new file, written from its first byte to its last in large aligned writes, several at a
// time, while the next ones are made. The caller fills memory in the buffer that will be written, or gives
// memory that can be written from where it is; nothing is copied on the way.
//
// Memory: buffer_count buffers of buffer_bytes, 16 MiB; when all of them are being written, the next call
// waits for one. Threads: one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/os/io_queue.h"

namespace holdfast::checkpoint {

class ShardStream {
 public:
  static constexpr std::uint64_t buffer_bytes = std::uint64_t{4} << 20;
  static constexpr std::size_t buffer_count = 4;
  static constexpr int depth = 8;  // writes in flight: of the buffers and of lent memory
  // Callback with the time that the file took for so many bytes, without time in which it waited for bytes.
  using Measured = std::function<void(std::uint64_t bytes, std::int64_t duration_ns)>;

  // Makes a stream for a file of about `expected_bytes`; the buffers of a short one are not pinned, which
  // takes longer than it saves.
  static Result<std::unique_ptr<ShardStream>> make(Env& env, File& file, IoBackend backend,
                                                   std::uint64_t expected_bytes, Measured measured);

  std::uint64_t offset() const { return offset_; }  // offset of the next byte; a multiple of 4 KiB
  // Returns memory for the next `bytes` (at most a quarter of a buffer), valid until the next call of any
  // member.
  Result<std::span<std::byte>> room(std::uint64_t bytes);
  // Commits the first `bytes` of that memory as content; zeros up to a multiple of 4 KiB follow them. Returns
  // all of these bytes.
  std::span<const std::byte> commit(std::uint64_t bytes);
  // Returns whether content can be written from where it is: address and length are multiples of 4 KiB.
  // Memory given to lend() stays as it is until finish().
  static bool can_lend(std::span<const std::byte> bytes);
  Result<void> lend(std::span<const std::byte> bytes);
  // Copies content of any length, with zeros after it up to a multiple of 4 KiB.
  Result<void> append(std::span<const std::byte> bytes);
  // Waits until everything is written, but not yet durable.
  Result<void> finish();

 private:
  // One write: of a buffer, or of lent memory (then `buffer` is buffer_count).
  struct Write {
    std::size_t buffer = buffer_count;
    std::uint64_t bytes = 0;
    std::int64_t begin_ns = 0;
  };

  ShardStream(Env& env, File& file, Measured measured, std::unique_ptr<IoQueue> queue, bool pins_buffers);
  Result<void> flush();       // writes the content of the current buffer
  Result<void> flush_lent();  // writes the lent memory
  Result<void> write(std::span<const std::byte> bytes, std::uint64_t offset, std::size_t buffer);
  Result<void> wait_for_one();
  Result<void> take_buffer();

  Env* env_;
  File* file_;
  Measured measured_;
  std::array<AlignedBuffer, buffer_count> buffers_;
  std::vector<std::size_t> free_buffers_;
  std::size_t current_ = buffer_count;  // buffer_count: none
  std::uint64_t filled_ = 0;
  std::span<const std::byte> lent_;  // runs of neighbouring memory become one write
  std::uint64_t offset_ = 0;
  std::array<Write, depth> writes_{};  // by tag
  std::vector<std::size_t> free_writes_;
  std::int64_t last_completion_ns_ = 0;
  std::unique_ptr<IoQueue> queue_;  // last: it waits for what is in flight before the buffers go
};

}  // namespace holdfast::checkpoint
