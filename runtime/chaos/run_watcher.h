// What can be seen of a run that goes on: its event log as it grows, its processes, the watchdog's board of
// this host and what the guards say, and what its fault points tell. It only looks.
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

namespace holdfast::inline chaos {

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

// Lines of a text that grows.
class LineFollower {
 public:
  // `text_from`: what the text has from this byte on.
  explicit LineFollower(std::function<std::string(std::uint64_t begin)> text_from)
      : text_from_(std::move(text_from)) {}
  std::vector<std::string> take_lines();  // whole ones that were not taken before

 private:
  std::function<std::string(std::uint64_t begin)> text_from_;
  std::uint64_t read_bytes_ = 0;
  std::string rest_;  // of a line that is not whole
};

std::string text_of_file(Env& env, const std::string& path, std::uint64_t begin);
std::string text_of_log(Env& env, const RunPaths& paths, std::uint64_t begin);

// Names of the starts whose directories are there: of the one that goes on, or of those that were killed.
std::vector<std::string> starts_of_run(Env& env, const std::string& directory);

class RunWatcher {
 public:
  // `points_log`: where the ranks tell what their fault points do (HOLDFAST_FAULTS_LOG).
  RunWatcher(Env& env, std::string directory, std::string points_log)
      : env_(&env),
        paths_{std::move(directory)},
        log_([&env, paths = paths_](std::uint64_t begin) { return text_of_log(env, paths, begin); }),
        points_log_([&env, path = std::move(points_log)](std::uint64_t begin) {
          return text_of_file(env, path, begin);
        }) {}

  // Looks once. `launcher`: whose child mpirun is.
  void look(std::int64_t launcher);

  std::uint64_t newest_step() const { return step_; }
  std::uint64_t steps_seen() const { return steps_seen_; }     // step events, of steps that came again too
  bool trains() const { return steps_seen_ > steps_before_; }  // the start that goes on has made a step
  bool finished() const { return finished_; }                  // the last event says how it ended
  // Ranks on this host of the start that goes on, by number; good until the next look.
  std::vector<RankProcess*> living();
  // Since the last call.
  std::vector<TriggeredFault> take_points();
  // Whom the guards have named, in all starts.
  const std::vector<ToldVerdict>& verdicts() const { return verdicts_; }
  // Null when there is none.
  std::unique_ptr<Process> mpirun() const;
  // The newest that a living rank of this host is at, as the board says, also while the log cannot be
  // written; 0 without one.
  std::uint64_t step_on_board();
  // What tells a recovery from those before; to be taken before the death that leads to it.
  struct RecoveryMark {
    std::uint64_t epoch = 0;       // of the membership, as the watchdog's board of this host says
    std::uint64_t recoveries = 0;  // that were over
  };
  RecoveryMark recovery_mark();
  enum class Recovery : std::uint8_t { not_seen, under_way, over };
  // Of the one behind the mark: under way when a rank that lives has begun with it, over when the log says
  // so, behind the first step. Without a board it is only seen when it is over.
  Recovery recovery_since(const RecoveryMark& mark);
  // Names of the starts that were seen, by which a killed launcher's scratch in shared memory is found.
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
  std::int64_t find_ns_ = 0;  // when ranks are looked for next
  LineFollower log_, points_log_;
  std::uint64_t step_ = 0, steps_seen_ = 0, recoveries_seen_ = 0;
  std::uint64_t steps_before_ = 0;  // seen of earlier starts
  bool finished_ = false;
  std::string start_;  // name of the start whose ranks these are
  std::vector<std::string> starts_;
  std::vector<RankProcess> ranks_;
  std::unique_ptr<Board> board_;  // of that start
  // By host and process, of all starts.
  std::map<std::pair<std::string, std::int64_t>, int> rank_of_process_;
  std::vector<ToldVerdict> verdicts_;
  std::size_t verdicts_before_ = 0;  // of earlier starts
};

}  // namespace holdfast::inline chaos
