// The engines of posix_env behind an IoQueue: io_uring and threads. For posix_env.cc; the rest of the tree
// sees runtime/os/io_queue.h.
#pragma once

#include "runtime/os/io_queue.h"

namespace holdfast::os {

// Common base of both engines: it chooses the descriptor of an operation, and repeats one through the page
// cache that a file system refuses for being direct.
class PosixIoEngine : public IoEngine {
 public:
  void start(const IoOperation& operation) final;
  IoOutcome wait() final;
  const std::string& fallback_reason() const final { return fallback_reason_; }

 protected:
  PosixIoEngine(int depth, std::string fallback_reason)
      : started_(static_cast<std::size_t>(depth)), fallback_reason_(std::move(fallback_reason)) {}
  virtual void submit(const IoOperation& operation, int descriptor) = 0;
  virtual IoOutcome reap() = 0;

 private:
  struct Started {
    IoOperation operation;
    bool direct = false;
  };
  std::vector<Started> started_;  // by slot
  std::string fallback_reason_;
};

// Makes the backend of the options; automatic is io_uring or, if the kernel refuses that, threads.
// ExitCode::config when the requested one is not available.
Result<std::unique_ptr<IoEngine>> make_posix_io_engine(const IoQueueOptions& options);

// Both make one engine. The error gives the reason, without "cannot".
Result<std::unique_ptr<IoEngine>> make_io_uring_engine(int depth);
Result<std::unique_ptr<IoEngine>> make_thread_io_engine(int depth, std::string fallback_reason);

}  // namespace holdfast::os
