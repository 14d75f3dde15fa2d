// The engines of posix_env behind an IoQueue: io_uring and threads. For posix_env.cc; the rest of the tree
// sees runtime/os/io_queue.h.
#pragma once

#include "runtime/os/io_queue.h"

namespace holdfast::inline os {

// What both have in common: which descriptor an operation gets, and that one which a file system refuses for
// being direct is done again through the page cache.
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

// The backend of the options; automatic is io_uring or, if the kernel refuses that, threads.
// ExitCode::config when the one that was asked for cannot be had.
Result<std::unique_ptr<IoEngine>> make_posix_io_engine(const IoQueueOptions& options);

// The error says why not, without "cannot".
Result<std::unique_ptr<IoEngine>> make_io_uring_engine(int depth);
Result<std::unique_ptr<IoEngine>> make_thread_io_engine(int depth, std::string fallback_reason);

}  // namespace holdfast::inline os
