// `holdfast launch`: a run from the first start of mpirun to the end that needs no other, whatever happens to
// mpirun, its ranks and its hosts on the way. What follows a start is decided by watchdog/restart_policy.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
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
#include "runtime/os/env.h"
#include "runtime/os/events.h"

namespace holdfast::inline launch {

class Launcher {
 public:
  // The config as `holdfast train` will load it, which says where the run is and how far it may shrink.
  static Result<Launcher> create(Env& env, StopRequest& stop, const LaunchOptions& options);

  // The line of the first start, for a shell.
  std::string dry_run() const;
  // The exit code of the run; says on stderr what it notices and does. Error: it could not begin, or somebody
  // else launches this run.
  Result<ExitCode> run();

 private:
  Launcher(Env& env, StopRequest& stop, const LaunchOptions& options, LaunchPlaces places, Config config,
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
  void note_run_id();
  void ask_all_hosts(HostCommand duty, bool last);
  bool lives_elsewhere();
  std::vector<std::optional<int>> ask(const std::vector<std::string>& words, std::int64_t limit_ms);
  bool wait_ms(std::int64_t duration_ms);
  void clean_up_after(const StartEnd& end, bool last);
  // Events of its own (launcher_log.cc).
  void log_fault(const StartEnd& end);
  void log_drains(std::uint64_t step);
  void log_recovery(int ranks, std::uint64_t step);
  // Another start with more ranks, or without a host (launcher_hosts.cc).
  std::string look_after_hosts();
  void look_for_room();
  void look_at_ranks();
  bool look_at_drains();
  void look_at_drains_between_starts();
  DrainView drain_view(const std::vector<std::string>& names, std::uint64_t step) const;
  void answer(const std::vector<DrainRequest>& drains);
  void answer_refused(const DrainStep& step);
  void forget_earlier_drains();
  bool may_use(const std::string& host) const { return scale_up_.may_use(host) && !drains_.leaves(host); }
  void ask_for_room();
  void ask_for_another_start(const std::vector<std::optional<int>>& codes);
  void give_up_asking();
  void read_hosts_again();

  Env* env_;
  StopRequest* stop_;
  LaunchOptions options_;
  LaunchPlaces places_;
  Config config_;
  RunPaths paths_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<Claim> claim_;
  std::vector<LaunchHost> hosts_;   // empty: mpirun knows them
  std::string hosts_trouble_;       // why they could not be read again last
  bool has_slots_for_all_ = false;  // the hosts that were named first
  // Layouts with fewer ranks have been tried, and need more memory of each than there is.
  int min_ranks_that_fit_ = 1;
  bool cut_short_ = false;        // the newest start
  std::string run_ids_;           // with commas; a start that found nothing to go on from has made another
  std::string token_;             // host_command.h
  bool launched_before_ = false;  // by another launcher
  std::vector<StartEnd> starts_;
  std::string save_request_;     // the newest; empty: none so far
  std::uint64_t log_bytes_ = 0;  // when the newest start began
  ScaleUp scale_up_;
  Drains drains_;
  std::uint64_t seen_bytes_ = 0;   // of the log, in which no rank count is newer than the one that is known
  bool trains_ = false;            // the newest start
  std::vector<LaunchHost> asked_;  // hosts, of which
  std::future<std::vector<std::optional<int>>> answers_;  // it is asked whether they answer,
  std::shared_ptr<std::atomic<bool>> given_up_;           // until this is true
  bool asked_for_another_start_ = false;                  // the newest start,
  bool ended_as_asked_ = false;                           // which ended because of that
  int ranks_before_ = 0;                                  // that the start that failed had left
  std::int64_t failed_ns_ = -1;                           // when; -1: no start has
};

}  // namespace holdfast::inline launch
