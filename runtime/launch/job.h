// One start of a run: mpirun in a session of its own, looked after from its first to its last process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/launch/mpirun_line.h"
#include "runtime/launch/stop_request.h"
#include "runtime/os/env.h"
#include "runtime/os/processes.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/run_directory.h"
#include "watchdog/restart_policy.h"

namespace holdfast::inline launch {

struct JobPlan {
  CommandLine line;
  int ranks = 1;
  RunPaths paths;
  std::string directory;  // of the start (launch_record.h), which is there
  // Called once, when the ranks have begun to train, with the step that they go on from.
  std::function<void(std::uint64_t step)> on_running = {};
  // Whether another start could save what this one has in RAM, if its step lasts longer than the notice.
  bool may_be_cut_short = false;
  // Whether a process of the start lives on a distant host that answers; takes some seconds. Null: all hosts
  // are this one.
  std::function<bool()> lives_elsewhere = {};
  // Called while the ranks train, some times a second; must not block. Returns why the start must end at
  // once; empty: it goes on.
  std::function<std::string()> look_after_hosts = {};
};

class Job {
 public:
  Job(Env& env, StopRequest& stop, JobPlan plan) : env_(&env), stop_(&stop), plan_(std::move(plan)) {}

  // Of the last one that run() was: it was cut short.
  bool was_cut_short() const { return cut_short_; }
  // Returns whether it ended as asked, with its state sealed, so that there can be another start.
  bool ended_for_another_start() const;
  // Returns the names, as they call themselves, of hosts none of whose ranks said how it ended, though mpirun
  // waited for them when all others had.
  std::set<std::string> suspected_hosts() const;
  // To the end of all its processes on this host; how it ended. The first request to stop is passed on to the
  // ranks as SIGUSR2, once all of them can take it. Killed is
  //   - everything, when the request is over before the ranks have saved; sooner, if it may be cut short,
  //   when since the request no step has ended and what is left is what another start needs,
  //   - an mpirun that is stopped, that outlives the ranks or the final record, or under which no rank
  //   appears: with a host out of reach it never ends by itself,
  //   - what mpirun leaves behind.
  // Error: mpirun could not be started.
  Result<StartEnd> run();

 private:
  void watch_until_end();
  void look();
  void look_at_ranks();
  void look_at_status();
  void look_at_mpirun();
  void look_for_life();
  void look_at_step();
  void pass_on_request();
  bool all_ended() const;
  bool lasts(bool now, std::int64_t& since_ns, std::int64_t limit_ms) const;
  StartEnd end_of_start(std::uint64_t step_before) const;
  bool ended_by_mpirun() const;
  void tell_fault(StartEnd& end) const;
  std::string start_name() const;

  Env* env_;
  StopRequest* stop_;
  JobPlan plan_;
  std::unique_ptr<Process> mpirun_;
  std::optional<ProcessEnd> mpirun_end_;
  std::vector<LaunchedRank> ranks_;
  std::map<int, std::unique_ptr<Process>> processes_;  // of the ranks of this host; null: gone already
  int unseen_ = 0;                                     // of them that cannot be looked at, and may live
  RunStatus status_;                                   // of this start; "unknown" until it has written one
  std::string why_killed_;
  bool passed_on_ = false, cut_short_ = false, stayed_behind_ = false;  // the last: mpirun, behind its ranks
  std::int64_t begun_ns_ = 0;
  // Since when something lasts; -1: it is not so.
  std::int64_t stopped_since_ns_ = -1, over_since_ns_ = -1, lifeless_since_ns_ = -1;
  std::uint64_t log_bytes_ = 0;
  std::int64_t start_up_ms_ = -1;  // until it trained
  std::optional<std::uint64_t> step_at_request_;
};

}  // namespace holdfast::inline launch
