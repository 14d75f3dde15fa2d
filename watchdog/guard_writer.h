// GuardWriter: writes files for the guard on a thread of its own, so that a file system that does not respond
// keeps the guard neither from its heartbeats nor from seeing deaths. Reports to the launcher come before
// flight records, which are larger and which nothing waits for.
//
//   GuardWriter writer(env);
//   writer.add(GuardWriter::Kind::report, [=] { append(line); });    // returns at once
//   if (!writer.wait_until_done(25)) { ... writer.left() ... }
//
// Threads: one owner; the work runs on the writer's thread, in order within its kind, and may still run after
// the writer is gone, so it owns what it uses. Where the system refuses the thread, add() does the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/os/env.h"

namespace holdfast::watchdog {

class GuardWriter {
 public:
  enum class Kind : std::uint8_t { report, flight_record };

  explicit GuardWriter(Env& env);
  ~GuardWriter();  // drops work that has not begun; a thread in the middle of a write goes with the process
  GuardWriter(const GuardWriter&) = delete;
  GuardWriter& operator=(const GuardWriter&) = delete;

  void add(Kind kind, std::function<void()> work);
  std::size_t left() const;  // works that have not ended
  // Waits until all work has ended, at most `timeout_ms`. Returns whether it has.
  bool wait_until_done(std::int64_t timeout_ms);

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace holdfast::watchdog
