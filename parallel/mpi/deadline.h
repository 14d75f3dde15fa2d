// Deadline: ends the process when a call that can only block does not come back in time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/core/env.h"

namespace holdfast {

// From construction to destruction; on expiry `sentence` goes to stderr and the process dies by SIGKILL,
// because a blocked MPI call can neither be cancelled nor be left.
class Deadline {
 public:
  Deadline(Env& env, std::int64_t timeout_ms, std::string sentence);
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
