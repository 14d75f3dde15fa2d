// A file of lines that grows as long as a run lasts, although its disk may be full for a while, or gone.
//
// A line that cannot be written waits in memory, behind those that wait already, and all of them are tried
// again with the next one: the lines of one writer stay in order, each of them whole and there once. Of which
// kind the error is does not matter, because no errno says whether a disk comes back: a full one (ENOSPC,
// EDQUOT), one that fails (EIO), one that is read-only or not there while somebody repairs it (EROFS, ENOENT,
// ESTALE). A run does without its log for that long, as it does without a save that failed; what it must
// have, and when, its owner says with flush().
//
// Half a line that a full disk took is completed where it is the beginning of the line that is next, and
// ended with a newline where it is not: that one was of a process that died. Other processes may append
// meanwhile, line by line.
//
// It is told on stderr when the first line cannot be written, when all are in the file again, and at the end
// if some are not and the owner has not heard it from flush(). A process that is killed takes what waits
// along.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline os {

class LineLog {
 public:
  struct Memory {
    std::uint64_t bytes = 0;   // of lines that wait
    bool drops_oldest = true;  // for the newest, when that is not enough; else a line more is an error
  };
  LineLog(Env& env, std::string path, Memory memory) : env_(&env), path_(std::move(path)), memory_(memory) {}
  ~LineLog();  // one more try
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  // Allocates nothing while lines can be written. The error (ExitCode::checkpoint) is that memory has no room
  // for the line; never where the oldest are dropped.
  Result<void> append(std::string_view line);
  // As append(), but a line that cannot be written now is an error (ExitCode::checkpoint), and does not wait.
  Result<void> insist(std::string_view line);
  // Writes all that waits; the error (ExitCode::checkpoint) says why that cannot be, and how many lines are
  // not in the file.
  Result<void> flush();
  void retry();   // writes what can be written
  void forget();  // what waits: the file is another writer's by now
  // Before the next line: they may have left half of one.
  void others_have_written() { ends_with_line_ = false; }
  std::size_t waiting() const { return waiting_.size(); }
  // Lines that were dropped since the last call.
  std::uint64_t take_dropped() { return std::exchange(dropped_, 0); }

 private:
  Result<void> write_waiting();
  Result<void> write(std::string_view line);
  Result<std::string> torn_end(std::size_t bytes_max);
  Result<void> hold(std::string_view line, const Error& reason);
  void end_outage();

  Env* env_;
  std::string path_;
  Memory memory_;
  std::deque<std::string> waiting_;
  std::uint64_t waiting_bytes_ = 0;
  std::uint64_t dropped_ = 0, dropped_of_outage_ = 0;
  std::uint64_t waited_ = 0;     // lines that were written since one could not be
  bool ends_with_line_ = false;  // the file, as it was left here
  bool failing_ = false;         // and that was told
  bool owner_knows_ = false;     // that lines are missing
};

}  // namespace holdfast::inline os
