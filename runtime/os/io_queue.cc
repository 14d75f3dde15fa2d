#include "runtime/os/io_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "runtime/os/posix_file.h"

namespace holdfast::os {
namespace {

// Maximum size of one operation: the kernel moves less than 2 GiB at a time.
constexpr std::uint64_t largest_operation_bytes = std::uint64_t{1} << 30;
// Maximum number of attempts in a row that move nothing, with a pause after each: about a second, then an
// error.
constexpr int max_fruitless_attempts = 1000;
constexpr std::int64_t pause_us = 1000;

constexpr std::array<std::pair<std::string_view, IoBackend>, 3> backend_names = {
    {{"auto", IoBackend::automatic}, {"io_uring", IoBackend::io_uring}, {"threads", IoBackend::threads}}};

Error error_of(const IoOperation& operation, int reason) {
  const std::string& path = operation.file->path();
  switch (operation.kind) {
    case IoKind::read:
      return read_error("read", path, reason);
    case IoKind::write:
      return write_error("write", path, reason);
    case IoKind::sync:
      break;
  }
  return write_error("make durable", path, reason);
}

}  // namespace

std::string_view name_of(IoBackend backend) {
  return std::ranges::find(backend_names, backend, &std::pair<std::string_view, IoBackend>::second)->first;
}

IoBackend io_backend_of(std::string_view name) {
  const auto* found = std::ranges::find(backend_names, name, &std::pair<std::string_view, IoBackend>::first);
  HF_CHECK(found != backend_names.end(), "there is no I/O backend '{}'", name);
  return found->second;
}

Result<std::unique_ptr<IoQueue>> Env::make_io_queue(const IoQueueOptions& options) {
  HF_CHECK(options.depth >= 1 && options.depth <= largest_io_depth, "a queue of depth {}", options.depth);
  HF_TRY(std::unique_ptr<IoEngine> engine, make_io_engine(options));
  return std::make_unique<IoQueue>(*this, std::move(engine), options.depth);
}

IoQueue::IoQueue(Env& env, std::unique_ptr<IoEngine> engine, int depth)
    : env_(&env),
      engine_(std::move(engine)),
      operations_(static_cast<std::size_t>(depth)),
      owner_(std::this_thread::get_id()) {}

IoQueue::~IoQueue() {
  // The owner of a queue that is destroyed with operations in flight already has an error to report.
  static_cast<void>(drain().ok());
}

bool IoQueue::register_buffers(std::span<const std::span<std::byte>> buffers) {
  HF_CHECK(in_flight_ == 0);
  return engine_->register_buffers(buffers);
}

void IoQueue::read(File& file, std::uint64_t offset, std::span<std::byte> target, std::uint64_t tag) {
  start(begin(IoKind::read, file, offset, target, tag));
}

void IoQueue::write(File& file, std::uint64_t offset, std::span<const std::byte> source, std::uint64_t tag) {
  // Reads and writes share a struct; an engine writes only to what a read gave it.
  const std::span<std::byte> bytes(const_cast<std::byte*>(source.data()), source.size());
  Operation& operation = begin(IoKind::write, file, offset, bytes, tag);
  ++file.queued_writes_.in_flight;
  if (file.queued_writes_.failure.has_value()) return complete(operation, *file.queued_writes_.failure);
  start(operation);
}

void IoQueue::sync(File& file, std::uint64_t tag) {
  begin(IoKind::sync, file, 0, {}, tag).is_waiting = true;
  settle_waiting_syncs(file);
}

IoQueue::Operation& IoQueue::begin(IoKind kind, File& file, std::uint64_t offset, std::span<std::byte> bytes,
                                   std::uint64_t tag) {
  HF_CHECK(std::this_thread::get_id() == owner_, "a queue belongs to the thread that made it");
  HF_CHECK(in_flight_ < depth(), "{} operations are in flight already", in_flight_);
  HF_CHECK(offset % io_alignment_bytes == 0 && bytes.size() % io_alignment_bytes == 0 &&
               reinterpret_cast<std::uintptr_t>(bytes.data()) % io_alignment_bytes == 0,
           "{} bytes at offset {} of {} are not aligned to {}", bytes.size(), offset, file.path(),
           io_alignment_bytes);
  const auto free = std::ranges::find(operations_, true, &Operation::is_free);
  const auto slot = static_cast<unsigned>(free - operations_.begin());
  *free = {.whole = {.kind = kind, .file = &file, .offset = offset, .bytes = bytes, .slot = slot},
           .tag = tag,
           .is_free = false};
  ++in_flight_;
  return *free;
}

void IoQueue::start(const Operation& operation) {
  IoOperation rest = operation.whole;
  rest.offset += operation.done;
  rest.bytes = rest.bytes.subspan(operation.done);
  rest.bytes = rest.bytes.first(std::min<std::uint64_t>(rest.bytes.size(), largest_operation_bytes));
  engine_->start(rest);
}

// Returns whether the attempt that gave `result` was the last one, and sets the outcome of the operation
// then.
bool IoQueue::is_over(Operation& operation, std::int64_t result, Result<std::uint64_t>& outcome) {
  const IoOperation& whole = operation.whole;
  const bool is_put_off = result == -EINTR || result == -EAGAIN;
  if (result >= 0 && whole.kind == IoKind::sync) return true;
  if (result >= 0) {
    const std::uint64_t reached = operation.done + static_cast<std::uint64_t>(result);
    if (reached == whole.bytes.size() || is_end_of_file(operation, reached)) {
      outcome = reached;
      return true;
    }
    // The moved part of an incomplete unit is moved again: direct I/O cannot continue inside of one.
    const std::uint64_t whole_units = reached / io_alignment_bytes * io_alignment_bytes;
    operation.fruitless = whole_units > operation.done ? 0 : operation.fruitless + 1;
    operation.done = whole_units;
  } else if (is_put_off) {
    ++operation.fruitless;
  }
  const bool on_resume = result >= 0 || is_put_off;
  if (on_resume && operation.fruitless <= max_fruitless_attempts) return false;
  // A write that moves nothing and gives no reason met a disk that is full.
  outcome = error_of(whole, result < 0 ? static_cast<int>(-result) : ENOSPC);
  return true;
}

bool IoQueue::is_end_of_file(const Operation& operation, std::uint64_t reached) {
  if (operation.whole.kind != IoKind::read) return false;
  const Result<std::uint64_t> size = operation.whole.file->size();
  return size.ok() && operation.whole.offset + reached >= *size;
}

IoCompletion IoQueue::wait() {
  HF_CHECK(std::this_thread::get_id() == owner_, "a queue belongs to the thread that made it");
  HF_CHECK(in_flight_ > 0, "nothing is in flight");
  while (completed_.empty()) {
    const IoOutcome attempt = engine_->wait();
    Operation& operation = operations_[attempt.slot];
    Result<std::uint64_t> outcome = std::uint64_t{0};
    if (is_over(operation, attempt.result, outcome)) {
      complete(operation, std::move(outcome));
    } else {
      if (operation.fruitless > 0) env_->sleep_us(pause_us);
      start(operation);
    }
  }
  IoCompletion next = std::move(completed_.front());
  completed_.pop_front();
  --in_flight_;
  return next;
}

Result<void> IoQueue::drain() {
  Result<void> first;
  while (in_flight_ > 0) {
    const IoCompletion completion = wait();
    if (first.ok()) first = outcome_of(completion.bytes);
  }
  return first;
}

void IoQueue::complete(Operation& operation, Result<std::uint64_t> outcome) {
  File& file = *operation.whole.file;
  const IoKind kind = operation.whole.kind;
  if (kind != IoKind::read && !outcome.ok() && !file.queued_writes_.failure.has_value())
    file.queued_writes_.failure = outcome.error();
  completed_.push_back({.tag = operation.tag, .bytes = std::move(outcome)});
  operation.is_free = true;
  if (kind == IoKind::write) {
    --file.queued_writes_.in_flight;
    settle_waiting_syncs(file);
  }
}

void IoQueue::settle_waiting_syncs(File& file) {
  if (file.queued_writes_.in_flight > 0) return;
  for (Operation& operation : operations_) {
    if (operation.is_free || !operation.is_waiting || operation.whole.file != &file) continue;
    operation.is_waiting = false;
    if (file.queued_writes_.failure.has_value()) {
      complete(operation, *file.queued_writes_.failure);
    } else {
      start(operation);
    }
  }
}

}  // namespace holdfast::os
