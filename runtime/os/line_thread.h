// LineThread: lines for a file, written by a thread of its own, so that whoever has one to say never waits
// for a disk that is slow, full or pauses for a resize.
//
// Lines stay in order. They wait in memory, up to LineThread::Memory of those that the thread has not taken
// yet; beyond that the oldest go and are counted (LineSink::lost), or, where none may go, one more is an
// error. insist() and flush() wait, but only while something moves and their patience longer. A process that
// is killed takes along what waits.
//
// Threads: one owner; the sink is used by the thread alone. Allocates nothing while the thread keeps up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline os {

// Takes lines, one after the other (LineLog, EventLog).
class LineSink {
 public:
  LineSink() = default;
  virtual ~LineSink() = default;
  LineSink(const LineSink&) = delete;
  LineSink& operator=(const LineSink&) = delete;
  virtual Result<void> append(std::string_view line) = 0;
  virtual Result<void> insist(std::string_view line) = 0;
  virtual Result<void> flush() = 0;
  virtual void others_have_written() = 0;
  virtual void lost(std::uint64_t lines) = 0;  // whose place is before the next one
};

class LineThread {
 public:
  struct Memory {
    std::uint64_t bytes = 0;
    bool drops_oldest = true;
  };
  // Of insist() and flush(), with nothing that moves; and of one who has no time.
  static constexpr std::int64_t patience_ms = 30'000, short_patience_ms = 2'000;

  // `path` is for what is told on stderr: that the disk pauses for a resize, and that it does no more.
  LineThread(Env& env, std::unique_ptr<LineSink> sink, std::string path, Memory memory);
  ~LineThread();  // waits for what is left with short patience; then the thread goes with the process
  LineThread(const LineThread&) = delete;
  LineThread& operator=(const LineThread&) = delete;

  // `line` has no newline. The error is one that the sink had with a line before, or that memory is full.
  Result<void> append(std::string_view line);
  // Waits for the outcome of the sink's insist(); a disk that pauses for a resize is no error, the line
  // waits.
  Result<void> insist(std::string_view line);
  // Waits until all is written; the error (ExitCode::checkpoint) says why it is not.
  Result<void> flush(std::int64_t patience_ms = LineThread::patience_ms);
  void others_have_written();
  // Runs it on the thread between the lines before it and those after it; of two that wait, the newer alone.
  void insert(std::function<void(LineSink&)> work);
  // Runs it on the thread, behind the lines before it.
  void post(std::function<void()> work);

 private:
  class State;
  std::shared_ptr<State> state_;  // the thread's too
};

}  // namespace holdfast::inline os
