// LineLog: a file of lines that grows as long as a run lasts, although its disk may be full or gone for a
// while.
//
// A line that cannot be written waits in memory, after those that wait already, and all of them are tried
// again with the next one: the lines of one writer stay in order, each of them whole and written once. The
// kind of the error does not matter, because no errno tells whether a disk comes back: a full one (ENOSPC,
// EDQUOT), one that fails (EIO), one that is read-only or missing while somebody repairs it (EROFS, ENOENT,
// ESTALE). A run does without its log for that long, as it does without a save that failed; the owner calls
// flush() when it must have the lines in the file.
//
// Half a line that a full disk took is completed where it is the beginning of the next line, and ended with a
// newline where it is not: then it came from a process that died. Other processes may append meanwhile, line
// by line.
//
// The log reports on stderr when the first line cannot be written, when all are in the file again, and at the
// end if some are not and flush() has not reported that to the owner. Waiting lines are lost when the process
// is killed.
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

namespace holdfast::run {

class LineLog {
 public:
  struct Memory {
    std::uint64_t bytes = 0;   // of lines that wait
    bool drops_oldest = true;  // when memory is full; false: one more line is an error
  };
  LineLog(Env& env, std::string path, Memory memory) : env_(&env), path_(std::move(path)), memory_(memory) {}
  ~LineLog();  // one more try
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  // Appends the line, or keeps it in memory. Allocates nothing while lines can be written. The error
  // (ExitCode::checkpoint) is that memory has no room for the line; never where the oldest are dropped.
  Result<void> append(std::string_view line);
  // Appends the line like append(), but a line that cannot be written now is an error (ExitCode::checkpoint),
  // and does not wait.
  Result<void> insist(std::string_view line);
  // Writes all waiting lines; the error (ExitCode::checkpoint) gives the reason when that fails, and the
  // number of lines that are not in the file.
  Result<void> flush();
  void retry();   // writes what can be written
  void forget();  // drops the waiting lines: the file belongs to another writer by now
  // Must be called before the next line when other processes may have left half a line.
  void others_have_written() { ends_with_line_ = false; }
  std::size_t waiting() const { return waiting_.size(); }
  // Returns the number of lines that were dropped since the last call.
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
  bool ends_with_line_ = false;  // whether the file did after the last write here
  bool failing_ = false;         // which has been reported
  bool owner_knows_ = false;     // that lines are missing from the file
};

}  // namespace holdfast::run
