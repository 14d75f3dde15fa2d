// WaitListener: is informed that a rank waits for other ranks, as the watchdog needs it. Loops that poll for
// peers call it (parallel/comm/collectives.h: PollBackoff), never those that wait for this rank's own device
// or disk.
#pragma once

#include <cstdint>

namespace holdfast::core {

struct Awaited {
  const char* operation = "";  // "an all-reduce"; a literal
  int peer = -1;               // a rank of the run; -1: not known, or any
  std::uint32_t number = 0;    // of the operation in its communicator
};

class WaitListener {
 public:
  virtual ~WaitListener() = default;
  // Reports another unsuccessful poll; nothing has moved since `since_ns` of the monotonic clock. Called
  // often, on the thread that waits.
  virtual void on_wait(std::int64_t since_ns, std::int64_t now_ns, const Awaited& awaited) = 0;
  virtual void on_resume() = 0;
};

}  // namespace holdfast::core
