// StopRequest holds what signals request of a launch: to stop (the first such signal requests a save, and the
// notice runs from then on), or to save and go on.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "runtime/os/env.h"
#include "runtime/os/signals.h"

namespace holdfast::launch {

class StopRequest {
 public:
  // Watches for requests. Every process must have ended `notice_ms` after the first signal.
  StopRequest(Env& env, SignalWatcher& signals, std::int64_t notice_ms)
      : env_(&env), signals_(&signals), notice_ms_(notice_ms) {}
  // Watches the signals of `launch`: those that a scheduler, a terminal or a person sends.
  static Result<std::unique_ptr<SignalWatcher>> watch();

  // Called by poll() for each SIGUSR1.
  void on_save_request(std::function<void()> save) { save_ = std::move(save); }
  // Looks for signals that have come.
  void poll();
  // Asks for a stop as the first signal does.
  void request();
  bool requested() const { return requested_ns_ >= 0; }
  // Returns whether all waiting must end: the notice is over, or the request was repeated (SIGTERM or SIGINT,
  // at least a second after the first signal, because a sender of several signals at once means one request).
  bool is_over() const;
  std::int64_t notice_ms() const { return notice_ms_; }
  // Returns the time until is_over(); 0 when it is. Requires requested().
  std::int64_t left_ms() const;
  // Returns the time until this process must have ended, too.
  std::int64_t left_to_end_ms() const;

 private:
  Env* env_;
  SignalWatcher* signals_;
  std::int64_t notice_ms_;
  std::int64_t requested_ns_ = -1;
  bool said_twice_ = false;
  std::function<void()> save_;
};

}  // namespace holdfast::launch
