// Deadline: ends the process when a call that can only block does not come back in time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/core/result.h"

namespace holdfast {

// From construction to destruction; on expiry `sentence` goes to stderr and the process ends at once with
// ExitCode::communication, because a blocked MPI call can neither be cancelled nor be left. For calls without
// which the whole run cannot go on: a rank that leaves a run that goes on dies by SIGKILL instead.
class Deadline {
 public:
  Deadline(std::int64_t timeout_ms, std::string sentence);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace holdfast
