// LineThread: lines for a file or a stream, written by a thread of its own, so that their owner never waits for
// a disk that is slow, full or stalled, or for a reader (posix_output.h).
//
// Lines stay in order. They wait in memory, up to LineThread::Memory of those that the thread has not taken
// yet; beyond that the oldest are dropped and counted (LineSink::lost), or, where none may be dropped, one
// more line is an error. insist() and flush() wait while there is progress, and for their patience beyond
// that. Waiting lines are lost when the process is killed.
//
// Threads: one owner, but any may call append() and wait_until_written(); only the thread uses the sink.
// Allocates nothing while the thread keeps up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::os {

// Takes lines, one after the other (LineLog, EventLog).
class LineSink {
 public:
  LineSink() = default;
  virtual ~LineSink() = default;
  LineSink(const LineSink&) = delete;
  LineSink& operator=(const LineSink&) = delete;
  virtual Result<void> append(std::string_view line) = 0;
  virtual Result<void> insist(std::string_view line) { return append(line); }
  virtual Result<void> flush() { return {}; }
  virtual void others_have_written() {}
  virtual void lost(std::uint64_t lines) = 0;  // that would have come before the next one
};

class LineThread {
 public:
  struct Memory {
    std::uint64_t bytes = 0;
    bool drops_oldest = true;
  };
  // Time that insist() and flush() wait without any progress; the short one is for callers that must end
  // soon.
  static constexpr std::int64_t patience_ms = 30'000, short_patience_ms = 2'000;

  // Starts the thread; where the system refuses it, every call that returns a Result returns that error.
  // Messages on stderr name `path`: they say that the disk stalls, and that it no longer does; empty: none.
  LineThread(Env& env, std::unique_ptr<LineSink> sink, std::string path, Memory memory);
  ~LineThread();  // waits for what is left with short patience; then the thread goes with the process
  LineThread(const LineThread&) = delete;
  LineThread& operator=(const LineThread&) = delete;

  // Appends `line`, which has no newline. The error is one that the sink had with an earlier line, or that
  // memory is full.
  Result<void> append(std::string_view line);
  // Waits for the outcome of the sink's insist(); a stalled disk is no error: the line waits.
  Result<void> insist(std::string_view line);
  // Waits until all is written; the error (ExitCode::checkpoint) says why it is not.
  Result<void> flush(std::int64_t patience_ms = LineThread::patience_ms);
  // Waits until all is written, `limit_ms` at most from when the thread has it, and not at all if nothing has
  // moved for that long. Returns whether it is.
  bool wait_until_written(std::int64_t limit_ms);
  void others_have_written();
  // Runs `work` on the thread, between the lines before it and those after it.
  void post(std::function<void(LineSink&)> work);

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace holdfast::os
