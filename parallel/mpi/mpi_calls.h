// Wrappers of MPI calls that need care, for all of parallel/mpi.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/core/wait_listener.h"
#include "runtime/os/env.h"

namespace holdfast::parallel {

// Returns the sentence of MPI for an error code.
std::string mpi_text(int code);

// Returns which of the `size` ranks of the group are known to have failed; none without ULFM.
std::vector<bool> failed_ranks(MPI_Comm communicator, int size);

// Works like MPI_Test, but does not touch a request that is not complete; returns an MPI error code, and does
// not learn of deaths (failed_ranks()).
//
// MPI_Test of a request whose peer is known to have died frees it, though parts of its message may still be
// in transit. Open MPI 5.0.11 then gives what the peer had sent to the freed receive, and crashes; and when
// such a part of a freed send completes, it ends this process ("Send error after request freed").
int test_when_complete(MPI_Request& request, int& complete);

// A Deadline runs from construction to destruction; on expiry `sentence` goes to stderr and the process ends
// at once with ExitCode::communication, because a blocked MPI call can neither be cancelled nor be left.
// `leave` is called before that, and may end the process in another way: a rank that others may wait for dies by
// SIGKILL (ShrinkingWorld::leaves_by()).
class Deadline {
 public:
  struct WaitReport {
    WaitListener* listener = nullptr;  // null: none
    const char* operation = "";
  };
  // Starts the deadline. The call waits for other ranks: a thread reports so to `told` while the constructing
  // thread is inside the call. `sooner` is polled meanwhile; when it returns a text, that is printed instead
  // of `sentence`, and the deadline ends at once.
  Deadline(Env& env, std::int64_t timeout_ms, const WaitReport& reported, std::string sentence,
           std::function<std::string()> sooner = {}, std::function<void()> leave = {});
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  bool wait_for_end(std::int64_t timeout_ms);

  Env* env_;
  WaitReport reported_;
  bool has_reported_ = false;
  std::function<std::string()> sooner_;
  std::string said_sooner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace holdfast::parallel
