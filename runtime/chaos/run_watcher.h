// What can be seen of a run that goes on: its event log as it grows, its processes, and the watchdog's board
// of this host. It only looks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/env.h"
#include "runtime/core/processes.h"
#include "runtime/train/run_directory.h"
#include "watchdog/board.h"

namespace holdfast {

struct WatchedRank {
  int rank = 0;
  std::unique_ptr<Process> process;
  bool ended = false;
};

// Names of the starts whose directories are there: of the one that goes on, or of those that were killed.
std::vector<std::string> starts_of_run(Env& env, const std::string& directory);

class RunWatcher {
 public:
  RunWatcher(Env& env, std::string directory)
      : env_(&env), paths_{std::move(directory)}, host_(env.host_name()) {}

  // Looks once. `launcher`: whose child mpirun is.
  void look(std::int64_t launcher);

  std::uint64_t newest_step() const { return step_; }
  std::int64_t newest_step_us() const { return step_us_; }     // when it was made, by the wall clock
  std::uint64_t steps_seen() const { return steps_seen_; }     // step events, of steps that came again too
  bool trains() const { return steps_seen_ > steps_before_; }  // the start that goes on has made a step
  bool finished() const { return finished_; }                  // the last event says how it ended
  // Ranks on this host of the start that goes on, by number; good until the next look.
  std::vector<WatchedRank*> living();
  // Ranks that have ended since the last call.
  std::vector<int> take_ended();
  // Null when there is none.
  std::unique_ptr<Process> mpirun() const;
  // Whether all ranks that live are mending the run, as the watchdog's board of this host says; without one
  // nobody knows.
  bool recovers();
  // The newest that a living rank of this host is at, as the board says, also while the log cannot be
  // written; 0 without one.
  std::uint64_t step_on_board();
  // Names of the starts that were seen, by which a killed launcher's scratch in shared memory is found.
  const std::vector<std::string>& starts() const { return starts_; }

 private:
  void follow_log();
  void read_line(std::string_view line);
  void find_ranks();
  void find_board();
  Env* env_;
  RunPaths paths_;
  std::string host_;  // this one
  std::int64_t launcher_ = 0;
  std::int64_t find_ns_ = 0;  // when ranks are looked for next
  std::uint64_t read_bytes_ = 0;
  std::string line_;  // the part of it that is there
  std::uint64_t step_ = 0, steps_seen_ = 0;
  std::int64_t step_us_ = 0;
  std::uint64_t steps_before_ = 0;  // seen of earlier starts
  bool finished_ = false;
  std::string start_;  // name of the start whose ranks these are
  std::vector<std::string> starts_;
  std::vector<WatchedRank> ranks_;
  std::unique_ptr<Board> board_;  // of that start
  std::vector<int> ended_;
};

}  // namespace holdfast
