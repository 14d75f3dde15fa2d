// Launcher is `holdfast launch`: it runs a run from the first start of mpirun to the end after which no
// further start is needed, whatever happens to mpirun, its ranks and its hosts meanwhile.
// watchdog/restart_policy.h decides what follows a start.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/launch/drains.h"
#include "runtime/launch/host_command.h"
#include "runtime/launch/job.h"
#include "runtime/launch/launch_options.h"
#include "runtime/launch/mpirun_line.h"
#include "runtime/launch/scale_up.h"
#include "runtime/launch/start_layout.h"
#include "runtime/launch/stop_request.h"
#include "runtime/os/background_job.h"
#include "runtime/os/env.h"
#include "runtime/run/event_log.h"

namespace holdfast::inline launch {

class Launcher {
 public:
  // Makes the launcher. It loads the config as `holdfast train` will, for the run directory and for how far
  // the run may shrink.
  static Result<Launcher> create(Env& env, StopRequest& stop, const LaunchOptions& options);

  // Returns the line of the first start, for a shell.
  std::string dry_run() const;
  // Runs the run and returns its exit code; logs on stderr what it notices and does. Error: the run could not
  // begin, or another launcher has it.
  Result<ExitCode> run();

 private:
  Launcher(Env& env, StopRequest& stop, const LaunchOptions& options, LaunchPaths places, Config config,
           std::vector<LaunchHost> hosts);

  static void say(const std::string& sentence);
  int ranks_per_copy() const;
  RanksWanted ranks_wanted() const;
  Result<void> check_claim() const;
  void ask_for_save();
  Result<StartEnd> start(LaunchShape shape);
  Result<StartEnd> save_what_is_in_memory(const LaunchShape& shape);
  LaunchShape whole_shape() const;
  Result<LaunchShape> shape_of_restart();
  std::optional<StartLayout> layout_on(const std::vector<LaunchHost>& hosts) const;
  LaunchShape shape_on_hosts_left(const StartLayout& layout) const;
  bool is_narrower(const StartLayout& layout) const;
  static void say_narrower(const StartLayout& layout, int per_copy);
  std::optional<Config> config_of_run() const;
  std::int64_t lanes_of_run() const;
  Result<void> clean_up_before();
  void say_findings() const;
  void note_run_id();
  void ask_all_hosts(HostCommand duty, bool last);
  bool lives_elsewhere();
  std::vector<std::optional<int>> ask(const std::vector<std::string>& words, std::int64_t limit_ms);
  bool wait_ms(std::int64_t duration_ms);
  void clean_up_after(const StartEnd& end, bool last);
  // Write the launcher's own events (launcher_log.cc).
  void log_fault(const StartEnd& end);
  void log_drains(std::uint64_t step);
  void log_excluded(const std::string& host, const std::string& reason);
  void log_recovery(int ranks, std::uint64_t step);
  // Prepare another start with more ranks, or without a host (launcher_hosts.cc).
  std::string look_after_hosts();
  void look_for_room();
  void look_at_ranks();
  void pause_unfit_hosts(std::int64_t now_ns, const std::vector<std::string>& counted);
  bool look_at_drains();
  void look_at_drains_between_starts();
  DrainView drain_view(const std::vector<std::string>& names, std::uint64_t step) const;
  void answer(const std::vector<DrainRequest>& drains);
  void answer_refused(const DrainStep& step);
  void forget_earlier_drains();
  bool may_use(const std::string& host) const {
    return !scale_up_.pauses().is_condemned(host) && !drains_.leaves(host);
  }
  void ask_for_room();
  void ask_for_another_start(const std::vector<std::optional<int>>& codes);
  void give_up_asking();
  void read_hosts_again();

  Env* env_;
  StopRequest* stop_;
  LaunchOptions options_;
  LaunchPaths places_;
  Config config_;
  RunPaths paths_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<Claim> claim_;
  std::vector<LaunchHost> hosts_;   // empty: mpirun finds them
  std::string hosts_trouble_;       // why reading them again failed last; empty: it did not
  bool has_slots_for_all_ = false;  // true of the hosts that were named first
  // Minimum ranks of a layout: those with fewer have been tried, and need more memory of each rank than there
  // is.
  int min_ranks_that_fit_ = 1;
  bool cut_short_ = false;        // the newest start was cut short
  std::string run_ids_;           // separated by commas; a start that found no state has made another one
  std::string token_;             // host_command.h
  bool launched_before_ = false;  // an earlier launcher has started this run
  std::vector<StartEnd> starts_;
  std::string save_request_;     // newest request; empty: none so far
  std::uint64_t log_bytes_ = 0;  // size of the log when the newest start began
  ScaleUp scale_up_;
  Drains drains_;
  std::string start_directory_ = {};  // of the newest start (launch_record.h)
  std::set<int> unfit_ranks_ = {};    // of the newest start, whose reports were seen
  std::uint64_t seen_bytes_ = 0;      // size of the log that has been searched for rank counts
  bool trains_ = false;               // the newest start trains
  std::vector<LaunchHost> asked_;     // hosts that are asked at the moment
  struct Question {
    std::atomic<bool> given_up = false;
    BackgroundJob<std::vector<std::optional<int>>> answers = {};  // of the hosts that are asked
  };
  std::unique_ptr<Question> question_;    // under way; null: none
  bool asked_for_another_start_ = false;  // the newest start was asked to end
  bool ended_as_asked_ = false;           // the newest start ended because of that
  int ranks_before_ = 0;                  // ranks that the start that failed had at its end
  std::int64_t failed_ns_ = -1;           // when it failed; -1: no start has
};

}  // namespace holdfast::inline launch
