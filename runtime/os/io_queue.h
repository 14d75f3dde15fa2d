// IoQueue: up to `depth` reads and writes of large buffers at a time, for the thread that fills or checks
// buffers while others are on their way to the disk or from it.
//
//   HF_TRY(const std::unique_ptr<IoQueue> queue, env.make_io_queue({.depth = 16}));
//   HF_TRY(const std::unique_ptr<File> file, env.open(path, OpenMode::create_direct));
//   queue->write(*file, offset, buffer, tag);        // returns at once; the buffer is the queue's ...
//   const IoCompletion done = queue->wait();         // ... until its tag is back
//   queue->sync(*file, tag);                         // after all writes of the file, by itself
//   HF_TRY_VOID(queue->drain());
//
// Buffers belong to the caller. Their addresses and lengths, and the offsets, are multiples of
// io_alignment_bytes, whether or not the file system needs that (AlignedBuffer). The end of a file that
// is not such a multiple is cut by File::truncate, or written by File::write_at.
//
// Errors: what the kernel interrupts, puts off or does in part is done again or to its end inside of the
// queue. Any other failure of a write or sync is the file's last word: every later write and sync of that
// file completes with the same error and reaches no disk. A sync that failed is never repeated, because after
// it the kernel may count pages as written that are not (Rebello et al., USENIX ATC 2020).
//
// Threads: a queue belongs to the thread that made it (checked), and so does a File while a queue writes it.
// Several queues may read one file. Nothing of a queue may be called by a thread that trains: starting an
// operation can block in the kernel.
#pragma once

#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "runtime/os/aligned_buffer.h"
#include "runtime/os/io_engine.h"

namespace holdfast::os {

struct IoQueueOptions {
  int depth = 16;  // operations in flight at most, 1 to largest_io_depth
  IoBackend backend = IoBackend::automatic;
};
inline constexpr int largest_io_depth = 256;

// Returns "auto", "io_uring" or "threads", the values of checkpoint.io.
std::string_view name_of(IoBackend backend);
IoBackend io_backend_of(std::string_view name);  // must be one of them

struct IoCompletion {
  std::uint64_t tag = 0;
  // Number of bytes moved: all of a write, none of a sync; a read stops early only at the end of the file.
  Result<std::uint64_t> bytes;
};

class IoQueue {
 public:
  IoQueue(Env& env, std::unique_ptr<IoEngine> engine, int depth);  // Env::make_io_queue
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;
  ~IoQueue();  // waits for what is in flight; buffers and files must live until then

  // Both start one operation; each needs in_flight() < depth().
  void read(File& file, std::uint64_t offset, std::span<std::byte> target, std::uint64_t tag);
  void write(File& file, std::uint64_t offset, std::span<const std::byte> source, std::uint64_t tag);
  // Makes durable what was written before: starts when those writes have completed, and is not even tried
  // when one of them failed.
  void sync(File& file, std::uint64_t tag);

  // Returns the next completion, in any order; needs in_flight() > 0.
  IoCompletion wait();
  // Waits for all operations and returns the first error. Their tags are lost.
  Result<void> drain();

  int in_flight() const { return in_flight_; }  // begun and not returned by wait()
  int depth() const { return static_cast<int>(operations_.size()); }

  // The next three are those of IoEngine.
  bool register_buffers(std::span<const std::span<std::byte>> buffers);
  IoBackend backend() const { return engine_->backend(); }
  const std::string& fallback_reason() const { return engine_->fallback_reason(); }

 private:
  struct Operation {
    IoOperation whole;
    std::uint64_t tag = 0;
    std::uint64_t done = 0;   // bytes
    int fruitless = 0;        // attempts in a row that moved nothing
    bool is_waiting = false;  // a sync, for writes of its file
    bool is_free = true;
  };

  Operation& begin(IoKind kind, File& file, std::uint64_t offset, std::span<std::byte> bytes,
                   std::uint64_t tag);
  void start(const Operation& operation);
  bool is_over(Operation& operation, std::int64_t result, Result<std::uint64_t>& outcome);
  static bool is_end_of_file(const Operation& operation, std::uint64_t reached);
  void complete(Operation& operation, Result<std::uint64_t> outcome);
  void settle_waiting_syncs(File& file);

  Env* env_;
  std::unique_ptr<IoEngine> engine_;
  std::vector<Operation> operations_;  // by slot
  std::deque<IoCompletion> completed_;
  int in_flight_ = 0;
  std::thread::id owner_;
};

}  // namespace holdfast::os
