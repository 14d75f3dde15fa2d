// What signals ask of a launch: to stop (the first asks for a save, and from then on the notice runs), or to
// save and go on.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "runtime/os/env.h"
#include "runtime/os/signals.h"

namespace holdfast::inline launch {

class StopRequest {
 public:
  // Every process is to be gone `notice_ms` after the first signal.
  StopRequest(Env& env, SignalWatcher& signals, std::int64_t notice_ms)
      : env_(&env), signals_(&signals), notice_ms_(notice_ms) {}
  // The signals of `launch`: what a scheduler, a terminal or a person sends.
  static Result<std::unique_ptr<SignalWatcher>> watch();

  // Called by poll() for each SIGUSR1.
  void on_save_request(std::function<void()> save) { save_ = std::move(save); }
  // Looks for signals that have come.
  void poll();
  // Asks for a stop as the first signal does.
  void request();
  bool requested() const { return requested_ns_ >= 0; }
  // Nothing is waited for any longer: the notice is over, or somebody said it twice (SIGTERM or SIGINT, a
  // second after the first: what sends several signals at once means one request).
  bool is_over() const;
  std::int64_t notice_ms() const { return notice_ms_; }
  // Until it is over; 0 when it is. Only once it is requested.
  std::int64_t left_ms() const;
  // And until this process is to be gone, too.
  std::int64_t left_to_end_ms() const;

 private:
  Env* env_;
  SignalWatcher* signals_;
  std::int64_t notice_ms_;
  std::int64_t requested_ns_ = -1;
  bool said_twice_ = false;
  std::function<void()> save_;
};

}  // namespace holdfast::inline launch
