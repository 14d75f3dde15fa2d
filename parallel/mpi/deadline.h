// Deadline ends the process when a call that can only block does not come back in time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/core/result.h"
#include "runtime/core/wait_listener.h"
#include "runtime/os/env.h"

namespace holdfast::parallel {

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
