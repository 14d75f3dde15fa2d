// Launcher is `holdfast launch`: it runs a run from the first start of mpirun to the end after which no
// further start is needed, whatever happens to mpirun, its ranks and its hosts meanwhile. LaunchMind decides; the
// launcher is its eyes and hands.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/launch/drains.h"
#include "runtime/launch/host_command.h"
#include "runtime/launch/job.h"
#include "runtime/launch/launch_mind.h"
#include "runtime/launch/launch_options.h"
#include "runtime/launch/mpirun_line.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/launch/stop_request.h"
#include "runtime/metrics/notifier.h"
#include "runtime/os/background_job.h"
#include "runtime/os/env.h"
#include "runtime/run/event_log.h"

namespace holdfast::launch {

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

  // Question is what hosts are asked while the run trains.
  struct Question {
    std::atomic<bool> given_up = false;
    std::vector<LaunchHost> hosts = {};
    std::unique_ptr<HostMeeting> meeting = {};            // of these hosts; null: there is none
    BackgroundJob<std::vector<HostAnswer>> answers = {};  // of these hosts
  };

  static void say(const std::string& sentence);
  Result<ExitCode> run_to_end();
  void begin_notices();
  void tell_end(const Result<ExitCode>& end);
  LaunchMindSettings mind_settings() const;
  Result<void> check_claim() const;
  void ask_for_save();
  Result<RestartDecision> make_start(const LaunchShape& shape);
  Result<EndedStart> start(LaunchShape shape);
  Result<EndedStart> save_what_is_in_memory(const LaunchShape& shape);
  Result<void> clean_up_before();
  void clean_up_after(const StartEnd& end, bool last);
  void note_run_id();
  bool wait_ms(std::int64_t duration_ms);
  // Lay a start out (launcher_hosts.cc).
  int ranks_per_copy() const;
  RanksWanted ranks_wanted() const;
  LaunchShape whole_shape() const;
  std::optional<StartLayout> layout_on(const std::vector<LaunchHost>& hosts, int min_ranks) const;
  LaunchShape shape_on_hosts_left(const StartLayout& layout) const;
  bool is_narrower(const StartLayout& layout) const;
  static void say_narrower(const StartLayout& layout, int per_copy);
  std::optional<Config> config_of_run() const;
  std::int64_t lanes_of_run() const;
  // Write the launcher's own events.
  void log_fault(const StartEnd& end);
  void log_drains(std::uint64_t step);
  void log_excluded(const std::string& host, const std::string& reason);
  void log_excluded_before();
  void log_recovery(int ranks, std::uint64_t step);
  // Tell LaunchMind what happens to the hosts, and do what it decides about them (launcher_hosts.cc).
  Result<LaunchShape> next_shape();
  void say_waiting() const;
  std::string look_after_hosts();
  void look_for_room();
  void look_at_ranks();
  void tell_news();
  void write_rows();
  void forget_hosts();
  MissingHosts missing_hosts() const;
  void read_hosts_again();
  std::map<std::string, std::string> findings_of_hosts() const;
  void say_findings() const;
  void note_faulty_hosts();
  bool look_at_drains();
  void look_at_drains_between_starts();
  DrainView drain_view(const std::vector<std::string>& names, std::uint64_t step) const;
  void answer(const std::vector<DrainRequest>& drains);
  void answer_refused(const DrainStep& step);
  void take_earlier_drains();
  void tell_drained();
  // Ask the hosts (launcher_asks.cc).
  void ask_before_start();
  void ask_at_end(HostCommand duty);
  std::vector<std::string> words_for(HostCommand duty) const;
  std::optional<ReadyQuestion> ready_question() const;
  std::unique_ptr<HostMeeting> open_meeting(ReadyQuestion& question, std::size_t hosts) const;
  WordsOfHost ready_words(const ReadyQuestion& question, const std::vector<LaunchHost>& hosts) const;
  std::vector<std::string> meet_words(const ReadyQuestion& question) const;
  std::vector<LaunchHost> hosts_to_meet() const;
  std::map<std::string, int> ranks_expected() const;
  std::vector<HostAnswer> ask(const WordsOfHost& words, std::int64_t limit_ms, bool here_too = false,
                              HostMeeting* meeting = nullptr);
  bool lives_elsewhere();
  void ask_for_room();
  void ask_for_another_start(const Question& question, const std::vector<HostAnswer>& given);
  void give_up_asking();

  Env* env_;
  StopRequest* stop_;
  LaunchOptions options_;
  LaunchPaths places_;
  Config config_;
  RunPaths paths_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<Notifier> notifier_;  // null: notify.command is not given, or another launcher has the run
  std::string end_sentence_ = {};       // how the run has ended
  std::unique_ptr<Claim> claim_;
  std::vector<LaunchHost> hosts_;     // those of the newest start answer; empty: mpirun finds them
  std::string hosts_trouble_;         // why reading them again failed last; empty: it did not
  bool has_slots_for_all_ = false;    // true of the hosts that were named first
  bool cut_short_ = false;            // the newest start was cut short
  std::string run_ids_;               // separated by commas; a start that found no state has made another one
  std::string token_;                 // host_command.h
  bool launched_before_ = false;      // an earlier launcher has started this run
  std::string save_request_;          // newest request; empty: none so far
  std::uint64_t log_bytes_ = 0;       // size of the log when the newest start began
  std::unique_ptr<LaunchMind> mind_;  // null until run()
  std::vector<HostView> told_views_;  // as they were written last
  std::vector<ExcludeEvent> unlogged_;  // of hosts that were left out before there was a log
  Drains drains_;
  std::string start_directory_ = {};    // of the newest start (launch_record.h)
  std::uint64_t seen_bytes_ = 0;        // size of the log that has been searched for rank counts
  std::vector<LaunchHost> asked_;       // hosts that are asked at the moment
  std::unique_ptr<Question> question_;  // under way; null: none
  bool ended_as_asked_ = false;         // the newest start ended because it was asked to
  std::int64_t waited_ms_ = 0;          // for hosts, before the start that is about to be made
  int ranks_before_ = 0;                // ranks that the start that failed had at its end
  std::int64_t failed_ns_ = -1;         // when it failed; -1: no start has
};

}  // namespace holdfast::launch
