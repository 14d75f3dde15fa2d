// Polls signals without handlers: the watched signals are blocked and read from a signalfd. Made on the main
// thread before any other thread starts, so that all threads inherit the mask.
#pragma once

#include <initializer_list>
#include <memory>

#include "runtime/core/result.h"

namespace holdfast::os {

class SignalWatcher {
 public:
  static Result<std::unique_ptr<SignalWatcher>> watch(std::initializer_list<int> signals);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  // Returns the next signal that arrived since the last call, or 0. Never blocks.
  int poll();

 private:
  explicit SignalWatcher(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

// Makes a write to a pipe without a reader an error of that write from here on, not the end of this process.
// Processes that Env starts get the system's default.
void ignore_closed_pipes();

}  // namespace holdfast::os
