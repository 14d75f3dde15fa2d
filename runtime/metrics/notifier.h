// Notifier runs notify.command for what happens to a run (notify_mind.h says for what; docs/notify.md is for people).
//
// One process of a run does it, on a thread of its own that reads the event log as it grows: no step and no decision
// waits for a command. The log is the queue, so that nothing is lost while a command takes long. RUN/notified.json has how
// much of the log is told, and of which run; a start goes on from there, and where it is killed in the middle a notice comes twice.
// A run that is launched by `holdfast launch` is told by the launcher, which outlives its ranks; any other one by the rank
// that leads it. Where a command fails the console says so once, and once that it works again.
//
// Threads: one owner. Errors end nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/metrics/notify_mind.h"
#include "runtime/os/env.h"
#include "runtime/os/thread.h"
#include "runtime/run/run_directory.h"

namespace holdfast::metrics {

class Notifier {
 public:
  // Time for what is left at the end, and once more for the end itself.
  static constexpr std::int64_t end_patience_ms = 5'000;
  struct Settings {
    RunPaths paths = {};
    std::string command = {};
    std::int64_t timeout_ms = 30'000;
    NotifyMind::Settings mind = {};
  };
  // Begins with what the log has more than is told; in a run that was begun without notices, with what comes from now on.
  Notifier(Env& env, Settings settings);
  // Tells what is left as finish() does, without an end.
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Tells what the log has more, and then the end if it is given, each within the patience. A command that takes too long
  // for that is killed, and a log that cannot be read is not waited for. Nothing is told after it. With no patience a command
  // that runs is killed, and what the log has more is left to who goes on.
  void finish(std::optional<News> end, std::int64_t patience_ms = end_patience_ms);

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with the thread, which a file system that stands still may hold
  std::unique_ptr<Thread> thread_;
};

}  // namespace holdfast::metrics
