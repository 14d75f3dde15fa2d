#include "checkpoint/shard_stream.h"

#include <algorithm>

#include "checkpoint/shard_format.h"

namespace holdfast::checkpoint {
namespace {

// A completion that was there already when it was asked for: the disk is faster than what feeds it.
constexpr std::int64_t no_wait_ns = 20'000;

// Pinning makes every page of the buffers, which a file must be long enough to write several times.
constexpr std::uint64_t pinned_file_bytes = 4 * ShardStream::buffer_count * ShardStream::buffer_bytes;

}  // namespace

Result<std::unique_ptr<ShardStream>> ShardStream::make(Env& env, File& file, IoBackend backend,
                                                       std::uint64_t expected_bytes, Measured measured) {
  Result<std::unique_ptr<IoQueue>> queue = env.make_io_queue({.depth = depth, .backend = backend});
  if (!queue.ok())
    return fail_because(queue.error(), queue.error().code, "cannot write {}: {}", file.path(),
                        queue.error().message);
  return std::unique_ptr<ShardStream>(new ShardStream(env, file, std::move(measured),
                                                      std::move(queue).value(),
                                                      /*pins_buffers=*/expected_bytes >= pinned_file_bytes));
}

ShardStream::ShardStream(Env& env, File& file, Measured measured, std::unique_ptr<IoQueue> queue,
                         bool pins_buffers)
    : env_(&env),
      file_(&file),
      measured_(std::move(measured)),
      buffers_{AlignedBuffer(buffer_bytes), AlignedBuffer(buffer_bytes), AlignedBuffer(buffer_bytes),
               AlignedBuffer(buffer_bytes)},
      queue_(std::move(queue)) {
  std::array<std::span<std::byte>, buffer_count> memory;
  for (std::size_t i = 0; i < buffer_count; ++i) {
    memory[i] = buffers_[i].bytes();
    free_buffers_.push_back(i);
  }
  // An error is ignored: where the system refuses, it looks up the pages for every write.
  if (pins_buffers) static_cast<void>(queue_->register_buffers(memory));
  for (std::size_t i = 0; i < depth; ++i) free_writes_.push_back(i);
}

Result<std::span<std::byte>> ShardStream::room(std::uint64_t bytes) {
  const std::uint64_t needed = shard_format::aligned(bytes);
  HF_CHECK(needed <= buffer_bytes / 4);
  HF_TRY_VOID(flush_lent());
  if (current_ != buffer_count && needed > buffer_bytes - filled_) HF_TRY_VOID(flush());
  if (current_ == buffer_count) HF_TRY_VOID(take_buffer());
  return buffers_[current_].bytes().subspan(filled_, needed);
}

std::span<const std::byte> ShardStream::commit(std::uint64_t bytes) {
  const std::uint64_t whole = shard_format::aligned(bytes);
  const std::span<std::byte> content = buffers_[current_].bytes().subspan(filled_, whole);
  std::ranges::fill(content.subspan(bytes), std::byte{0});
  filled_ += whole;
  offset_ += whole;
  return content;
}

bool ShardStream::can_lend(std::span<const std::byte> bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes.data()) % io_alignment_bytes == 0 &&
         bytes.size() % io_alignment_bytes == 0;
}

Result<void> ShardStream::lend(std::span<const std::byte> bytes) {
  HF_TRY_VOID(flush());
  const bool continues = !lent_.empty() && lent_.data() + lent_.size() == bytes.data();
  if (!continues || lent_.size() + bytes.size() > buffer_bytes) HF_TRY_VOID(flush_lent());
  lent_ = lent_.empty() ? bytes : std::span(lent_.data(), lent_.size() + bytes.size());
  offset_ += bytes.size();
  return {};
}

Result<void> ShardStream::append(std::span<const std::byte> bytes) {
  constexpr std::uint64_t part_bytes = buffer_bytes / 4;
  for (std::uint64_t done = 0; done < bytes.size(); done += part_bytes) {
    const auto part = bytes.subspan(done, std::min<std::uint64_t>(part_bytes, bytes.size() - done));
    HF_TRY(const std::span<std::byte> target, room(part.size()));
    std::ranges::copy(part, target.begin());
    commit(part.size());
  }
  return {};
}

Result<void> ShardStream::finish() {
  HF_TRY_VOID(flush());
  HF_TRY_VOID(flush_lent());
  while (queue_->in_flight() > 0) HF_TRY_VOID(wait_for_one());
  return {};
}

Result<void> ShardStream::flush() {
  if (filled_ == 0) return {};
  const std::uint64_t bytes = filled_;
  const std::size_t buffer = current_;
  filled_ = 0;
  current_ = buffer_count;
  return write(buffers_[buffer].bytes().first(bytes), offset_ - bytes, buffer);
}

Result<void> ShardStream::flush_lent() {
  if (lent_.empty()) return {};
  const std::span<const std::byte> bytes = lent_;
  lent_ = {};
  return write(bytes, offset_ - bytes.size(), buffer_count);
}

Result<void> ShardStream::write(std::span<const std::byte> bytes, std::uint64_t offset, std::size_t buffer) {
  while (free_writes_.empty()) HF_TRY_VOID(wait_for_one());
  const std::size_t tag = free_writes_.back();
  free_writes_.pop_back();
  writes_[tag] = {.buffer = buffer, .bytes = bytes.size(), .begin_ns = env_->monotonic_ns()};
  queue_->write(*file_, offset, bytes, tag);
  return {};
}

// The time that the disk takes for its bytes shows only while somebody waits for it: from one completion to
// the next.
Result<void> ShardStream::wait_for_one() {
  const std::int64_t asked_ns = env_->monotonic_ns();
  IoCompletion completion = queue_->wait();
  const std::int64_t now_ns = env_->monotonic_ns();
  const Write& write = writes_[completion.tag];
  if (write.buffer != buffer_count) free_buffers_.push_back(write.buffer);
  free_writes_.push_back(completion.tag);
  if (!completion.bytes.ok()) return completion.bytes.error();
  const bool has_waited = now_ns - asked_ns > no_wait_ns;
  const std::int64_t since_ns = has_waited ? std::max(last_completion_ns_, write.begin_ns) : asked_ns;
  measured_(write.bytes, now_ns - since_ns);
  last_completion_ns_ = now_ns;
  return {};
}

Result<void> ShardStream::take_buffer() {
  while (free_buffers_.empty()) HF_TRY_VOID(wait_for_one());
  current_ = free_buffers_.back();
  free_buffers_.pop_back();
  return {};
}

}  // namespace holdfast::checkpoint
