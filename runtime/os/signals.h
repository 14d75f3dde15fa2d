// Signals as a thing to poll, without handlers: the watched signals are blocked and read from a signalfd.
// Made on the main thread before any other thread starts, so that all threads inherit the mask.
#pragma once

#include <initializer_list>
#include <memory>

#include "runtime/core/result.h"

namespace holdfast::inline os {

class SignalWatcher {
 public:
  static Result<std::unique_ptr<SignalWatcher>> watch(std::initializer_list<int> signals);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  // The next signal that arrived since the last call, or 0. Never blocks.
  int poll();

 private:
  explicit SignalWatcher(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

// From here on a write to a pipe that nobody reads any longer is an error of that write, not the end of this
// process. What Env starts finds the system's own setting.
void ignore_closed_pipes();

}  // namespace holdfast::inline os
