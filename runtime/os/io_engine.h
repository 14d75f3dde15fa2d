// IoEngine: the part of an IoQueue (runtime/os/io_queue.h) that each Env provides. It starts operations and
// collects their raw outcomes, as the kernel gives them. Retries, the rest of a short write, and order are up
// to the queue.
//
// Threads: an engine belongs to the thread that made it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/os/env.h"

namespace holdfast::os {

enum class IoBackend {
  automatic,  // io_uring where the kernel allows it, else threads
  io_uring,
  threads,  // one for each operation in flight, with pread(2), pwrite(2) and fsync(2)
};

enum class IoKind { read, write, sync };

struct IoOperation {
  IoKind kind = IoKind::read;
  File* file = nullptr;
  std::uint64_t offset = 0;
  std::span<std::byte> bytes = {};  // a write only reads them; empty for a sync
  unsigned slot = 0;                // below the depth; used by one operation at a time
};

struct IoOutcome {
  unsigned slot = 0;
  std::int64_t result = 0;  // bytes moved, perhaps fewer than asked for; or an errno, negative
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;  // nothing may be in flight
  virtual void start(const IoOperation& operation) = 0;
  // Blocks until one of the operations in flight has ended; there must be one.
  virtual IoOutcome wait() = 0;
  // Gives a hint that operations on bytes inside of `buffers` may cost less from now on. The buffers must
  // outlive the engine. May be called once at most. Returns false where that is not supported.
  virtual bool register_buffers(std::span<const std::span<std::byte>> buffers) = 0;
  virtual IoBackend backend() const = 0;
  // Returns why the backend is not io_uring although that was to be tried; empty otherwise.
  virtual const std::string& fallback_reason() const = 0;
};

}  // namespace holdfast::os
