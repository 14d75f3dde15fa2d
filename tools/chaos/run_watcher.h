// RunWatcher observes a run that goes on: its event log as it grows, its processes, the watchdog's board of
// this host and the guards' messages, and the log of its fault points. It changes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/os/env.h"
#include "runtime/os/processes.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/run_directory.h"
#include "watchdog/board.h"

namespace holdfast::chaos {

struct RankProcess {
  int rank = 0;
  std::unique_ptr<Process> process;
  bool ended = false;
};

// A fault point of the program that did what it was armed for.
struct TriggeredFault {
  std::string name, action;
  std::uint64_t hit = 0;
  int rank = -1;  // launched; -1: not known
  std::int64_t time_us = 0;
};

// Reads the lines of a text that grows.
class LineFollower {
 public:
  // Takes the source of the text. `text_from`: returns the text from this byte on.
  explicit LineFollower(std::function<std::string(std::uint64_t begin)> text_from)
      : text_from_(std::move(text_from)) {}
  std::vector<std::string> take_lines();  // complete lines that were not taken before

 private:
  std::function<std::string(std::uint64_t begin)> text_from_;
  std::uint64_t read_bytes_ = 0;
  std::string rest_;  // incomplete last line
};

std::string text_of_file(Env& env, const std::string& path, std::uint64_t begin);
std::string text_of_log(Env& env, const RunPaths& paths, std::uint64_t begin);

// Returns the names of the starts whose directories exist: of the one that goes on, or of those that were
// killed.
std::vector<std::string> starts_of_run(Env& env, const std::string& directory);

class RunWatcher {
 public:
  // Watches the run in `directory`. `points_log`: file where the ranks record what their fault points do
  // (HOLDFAST_FAULTS_LOG).
  RunWatcher(Env& env, std::string directory, std::string points_log)
      : env_(&env),
        paths_{std::move(directory)},
        log_([&env, paths = paths_](std::uint64_t begin) { return text_of_log(env, paths, begin); }),
        points_log_([&env, path = std::move(points_log)](std::uint64_t begin) {
          return text_of_file(env, path, begin);
        }) {}

  // Looks once. `launcher`: the parent process of mpirun.
  void look(std::int64_t launcher);

  std::uint64_t newest_step() const { return step_; }
  std::uint64_t steps_seen() const { return steps_seen_; }     // step events, repeated steps included
  bool trains() const { return steps_seen_ > steps_before_; }  // the start that goes on has made a step
  bool finished() const { return finished_; }                  // the last event says how it ended
  // Returns the ranks on this host of the start that goes on, by number; valid until the next look.
  std::vector<RankProcess*> living();
  // Returns the fault points that were triggered since the last call.
  std::vector<TriggeredFault> take_points();
  // Returns the verdicts of the guards, in all starts.
  const std::vector<ReportedHang>& verdicts() const { return verdicts_; }
  // Returns mpirun's process, or null when there is none.
  std::unique_ptr<Process> mpirun() const;
  // Returns the newest step of a living rank of this host, as the board says, also while the log cannot be
  // written; 0 without a board.
  std::uint64_t step_on_board();
  // Mark that separates a recovery from earlier ones; to be taken before the death that leads to it.
  struct RecoveryMark {
    std::uint64_t epoch = 0;       // membership epoch, as the watchdog's board of this host says
    std::uint64_t recoveries = 0;  // number of recoveries that were over
  };
  RecoveryMark recovery_mark();
  enum class Recovery : std::uint8_t { not_seen, under_way, over };
  // Returns the state of the recovery after the mark: under way when a living rank has begun with it, over
  // when the log says so, after the first step. Without a board it is only seen when it is over.
  Recovery recovery_since(const RecoveryMark& mark);
  // Returns the directory of the start that goes on; empty: there is none.
  std::string start_directory() const { return start_.empty() ? "" : paths_.launch() + "/" + start_; }
  // Returns the names of the starts that were seen, by which a killed launcher's scratch in shared memory is
  // found.
  const std::vector<std::string>& starts() const { return starts_; }

 private:
  void read_line(const std::string& line);
  void find_verdicts();
  void find_ranks();
  void find_board();
  std::vector<SlotView> living_slots();
  Env* env_;
  RunPaths paths_;
  std::int64_t launcher_ = 0;
  std::int64_t find_ns_ = 0;  // time of the next search for ranks
  LineFollower log_, points_log_;
  std::uint64_t step_ = 0, steps_seen_ = 0, recoveries_seen_ = 0;
  std::uint64_t steps_before_ = 0;  // step events of earlier starts
  bool finished_ = false;
  std::string start_;  // name of the start whose ranks these are
  std::vector<std::string> starts_;
  std::vector<RankProcess> ranks_;
  std::unique_ptr<Board> board_;  // board of that start
  // Ranks by host and process, of all starts.
  std::map<std::pair<std::string, std::int64_t>, int> rank_of_process_;
  std::vector<ReportedHang> verdicts_;
  std::size_t verdicts_before_ = 0;  // verdicts of earlier starts
};

}  // namespace holdfast::chaos
