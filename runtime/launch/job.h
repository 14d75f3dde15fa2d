// Job is one start of a run: mpirun in a session of its own, supervised from its first process to its last.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/launch/launch_mind.h"
#include "runtime/launch/mpirun_line.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/launch/stop_request.h"
#include "runtime/os/env.h"
#include "runtime/os/processes.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/run_directory.h"

namespace holdfast::launch {

struct JobPlan {
  CommandLine line;
  int ranks = 1;
  RunPaths paths;
  std::string directory;  // directory of the start (launch_record.h), which exists
  // Called once, when the ranks have begun to train, with the step that they resume from.
  std::function<void(std::uint64_t step)> on_running = {};
  // True if another start could save the state that this one has in RAM, should its step last longer than the
  // notice.
  bool may_be_cut_short = false;
  // Returns whether a process of the start is alive on a distant host that answers; takes some seconds. Null
  // if this is the only host.
  std::function<bool()> lives_elsewhere = {};
  // Called several times a second while the ranks train; must not block. Returns why the start must end at
  // once; empty if it may go on.
  std::function<std::string()> look_after_hosts = {};
};

// Returns what ranks report of hosts that are unfit, each host once.
std::vector<UnfitHost> unfit_hosts(const std::vector<LaunchedRank>& ranks);

// Returns the hosts of ranks that died, without those that died long after the first one though no step was made since: the
// start could not go on without that one, and the others were ended. `step`: the newest that the start has made.
std::set<std::string> hosts_of_deaths(const std::vector<LaunchedRank>& died, std::uint64_t step);

class Job {
 public:
  Job(Env& env, StopRequest& stop, JobPlan plan) : env_(&env), stop_(&stop), plan_(std::move(plan)) {}

  // Returns whether the last run() was cut short.
  bool was_cut_short() const { return kill_.cut_short; }
  // Returns the names, in the hosts' own spelling, of hosts none of whose ranks recorded how it ended,
  // although mpirun kept waiting when the ranks of all other hosts had ended.
  std::set<std::string> suspected_hosts() const;
  // Runs the start to the end of all its processes on this host, and returns how it ended. The first request
  // to stop is forwarded to the ranks as SIGUSR2, once all of them can handle it. The following is killed:
  //   - everything, when the notice is over before the ranks have saved; sooner, if the start may be cut
  //     short, when no step has ended since the request and the time left is what another start needs,
  //   - an mpirun that is stopped, that outlives the ranks or the final record, or under which no rank
  //     appears: with an unreachable host it never ends by itself,
  //   - processes that mpirun leaves behind.
  // Error: mpirun could not be started.
  Result<EndedStart> run();

 private:
  struct Mpirun {
    std::unique_ptr<Process> process = {};
    std::optional<ProcessEnd> end = {};
  };
  // Kill says how this process ends the start.
  struct Kill {
    std::string why = {};             // empty: it does not
    std::set<int> lived = {};         // ranks on this host that it ends
    bool cut_short = false;           // no step would have ended in time
    bool is_of_mpirun_alone = false;  // mpirun outlived its ranks
  };
  // Times since which a condition has lasted; -1: it does not hold.
  struct Lasting {
    std::int64_t stopped = -1, over = -1, lifeless = -1;
  };
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
  EndedStart facts_of(StartEnd end) const;
  bool ended_by_mpirun() const;
  void report_fault(StartEnd& end) const;
  std::string start_name() const;

  Env* env_;
  StopRequest* stop_;
  JobPlan plan_;
  Mpirun mpirun_ = {};
  std::vector<LaunchedRank> ranks_;
  std::map<int, std::unique_ptr<Process>> processes_;  // of the ranks on this host; null: already ended
  int unseen_ = 0;                                     // ranks here that cannot be inspected, and may live
  RunStatus status_;                                   // of this start; "unknown" until it has written one
  Kill kill_ = {};
  Lasting since_ns_ = {};
  bool passed_on_ = false;
  std::int64_t begun_ns_ = 0;
  std::uint64_t log_bytes_ = 0;
  std::int64_t start_up_ms_ = -1;  // from the beginning until it trained
  std::optional<std::uint64_t> step_at_request_;
};

// TickClock tells whether a tick of a loop came late: whether this process, or the machine, was stopped between two
// ticks. The time that the loop itself works is no reason: looks that are slow, as at thousands of ranks or on a
// slow file system, would otherwise suspend all limits for ever. Pure.
class TickClock {
 public:
  TickClock(std::int64_t late_ms, std::int64_t begin_ns)
      : late_ns_(late_ms * 1'000'000), ended_ns_(begin_ns) {}

  // Returns whether the tick that begins now came late.
  bool is_late(std::int64_t now_ns) const { return now_ns - ended_ns_ > late_ns_; }
  // Records that the work of the tick is done.
  void end_tick(std::int64_t now_ns) { ended_ns_ = now_ns; }

 private:
  std::int64_t late_ns_, ended_ns_;
};

}  // namespace holdfast::launch
