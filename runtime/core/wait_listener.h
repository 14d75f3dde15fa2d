// WaitListener: who wants to know that a rank waits for others, such as the watchdog. Told by whatever polls
// for what peers do (parallel/comm/collectives.h: PollBackoff), never for what this rank's own device or disk
// does.
#pragma once

#include <cstdint>

namespace holdfast::inline core {

struct Awaited {
  const char* operation = "";  // "an all-reduce"; a literal
  int peer = -1;               // a rank of the run; -1: not known, or any
  std::uint32_t number = 0;    // of the operation in its communicator
};

class WaitListener {
 public:
  virtual ~WaitListener() = default;
  // Looked in vain again, `since_ns` of the monotonic clock nothing moved. Often; from the thread that waits.
  virtual void on_wait(std::int64_t since_ns, std::int64_t now_ns, const Awaited& awaited) = 0;
  virtual void on_resume() = 0;
};

}  // namespace holdfast::inline core
