// Notifier runs notify.command for what happens to a run (notify_mind.h says for what; docs/notify.md is for people).
//
// One process of a run does it, on a thread of its own that reads the event log as it grows: no step and no decision
// waits for a command. The log is the queue, so that nothing is lost while a command takes long. RUN/notified.json has how
// much of the log is told; a start goes on from there, and where it is killed in the middle a notice comes twice.
// A run that is launched by `holdfast launch` is told by the launcher, which outlives its ranks; any other one by the rank
// that leads it. Where a command fails the console says so once, and once that it works again.
//
// Threads: one owner. Errors end nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "runtime/metrics/notify_mind.h"
#include "runtime/os/env.h"
#include "runtime/os/thread.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/user_command.h"

namespace holdfast::metrics {

class Notifier {
 public:
  // For what is left at the end, and once more for the end itself.
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

  // Tells what the log has more, and then the end if it is given. A command that takes too long for that is killed.
  // Nothing is told after it.
  void finish(std::optional<News> end);

 private:
  void work();
  void look();
  void tell(const Notification& notice);
  void remember();

  Env* env_;
  Settings settings_;
  std::unique_ptr<LogFollower> log_;
  NotifyMind mind_;
  std::pair<std::uint64_t, std::uint64_t> remembered_ = {};  // bytes and left_out of the file
  bool fails_ = false;  // the newest command has failed, which has been said
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;  // guards the next three
  bool ends_ = false, has_ended_ = false;
  std::optional<News> end_ = {};
  std::unique_ptr<Condition> changed_;
  std::unique_ptr<Thread> thread_;  // last, because it uses the others
};

}  // namespace holdfast::metrics
