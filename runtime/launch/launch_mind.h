// LaunchMind decides what `holdfast launch` does: on which hosts the next start of a run is made and when, which
// host is left out and why, and when the launch ends. Observations and the clock in, decisions out. Pure: the
// launcher (launcher.cc) asks the hosts, runs the starts and says what was decided.
//
//   mind.name_hosts(now_ns, hosts);
//   while (true) {
//     do { mind.heard(now_ns, answers); choice = mind.choose(now_ns); } while (choice waits);
//     mind.begins(now_ns, ranks);        // mpirun was started
//     mind.trains(now_ns, ranks);        // and its ranks train; then has(...), wants_to_grow(...) now and then
//     decision = mind.ended(now_ns, end);
//   }
//
// Its rules:
//
//   - An error of a run's inputs ends the launch only if it is wrong everywhere. What one host reports of itself
//     leaves that host out, whatever code its start ended with. A start that has trained goes on with the hosts that it
//     trained on, whatever hosts that came later say.
//   - A host is left out only with evidence against it: it does not answer or is not ready; it and others do not
//     reach each other (host_links.h); it reported that it is unfit; a start that it joined failed; or short starts in
//     a row lost the ranks of this host, or did not hear it (watchdog/fewest_hosts.h). It comes back after a pause that grows
//     (watchdog/growing_pauses.h). What kills ranks twice soon after they joined costs no third start within the hour.
//   - Too few hosts are no reason to end: hosts whose pause is not over are used then, and if there are none, the
//     launch waits for hosts.
//   - "Does not fit" of fewer ranks than have trained, or than are wanted, is "too few hosts", too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/launch/host_links.h"
#include "runtime/launch/host_probe.h"
#include "runtime/launch/host_ready.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/launch/scale_up.h"
#include "watchdog/fewest_hosts.h"

namespace holdfast::launch {

enum class LaunchPhase {
  ask,    // asks the hosts, and chooses those of the next start
  wait,   // too few hosts are left
  start,  // mpirun runs, and no rank trains yet
  train,  // ranks train
  leave,  // the run was asked to end for another start
  pause,  // a start has ended, and another one follows
  end,
};
inline constexpr std::size_t launch_phases = 7;

enum class LaunchOutcome {
  enough,   // there are hosts for a start
  too_few,  // there are not
  again,    // the hosts are asked
  begins,   // mpirun was started
  trains,   // the ranks train
  leaves,   // the run was asked to end
  ended,    // the start has ended, and another one follows
  over,     // no further start follows
};
inline constexpr std::size_t launch_outcomes = 8;

// Returns the phase that follows. None: a phase does not end like that.
std::optional<LaunchPhase> next_phase(LaunchPhase phase, LaunchOutcome outcome);

enum class HostState : std::uint8_t {
  ready,        // a start may use it
  unfit,        // it answers, and is not ready, or a start on it failed because of it
  suspected,    // other hosts did not hear it, or its ranks died, in starts that ended
  unreachable,  // it does not answer
  drained,      // the run was asked to leave it
  condemned,    // it has failed too often to be used while others are left
};
const char* name_of(HostState state);

struct HostView {
  std::string name = {};
  HostState state = HostState::ready;
  std::string reason = {};
  std::int64_t since_ns = 0;
  int failures = 0;           // in a row
  std::int64_t until_ns = 0;  // end of its pause; 0: there is none
  bool operator==(const HostView&) const = default;
};

// Something to tell: a line for the console, and an event where a host is left out.
struct LaunchNews {
  std::string sentence = {};
  std::optional<HostView> excluded = {};
};

// UnfitHost is what ranks of a host report of it.
struct UnfitHost {
  std::string host = {};
  Reach reach = Reach::host;
  std::string sentence = {};
};

struct EndedStart {
  StartEnd end = {};
  std::vector<UnfitHost> unfit = {};
  std::vector<SilentPair> silent = {};
  std::set<std::string> died_on = {};   // hosts with ranks that died without a word
  std::set<std::string> ended_on = {};  // hosts with ranks that said how they ended
  bool is_as_asked = false;             // it ended because it was asked to, and its state is sealed
  std::int64_t lost_work_ms = 0;        // that its end may have cost, by the interval of its saves
};

struct LaunchMindSettings {
  std::string own_host = {};  // of the launcher
  std::string program = {};   // for messages
  std::int64_t grow_after_ms = 10'000;
  std::int64_t settled_ms = GrowingPauses::default_settled_ms;
  std::int64_t wait_for_hosts_ms = 1'800'000;
  bool has_begun = false;  // an earlier start of the run has read its inputs
  // Returns how many ranks, at least `min_ranks`, a start on the hosts that answer would have; 0: too few hosts.
  std::function<int(const std::vector<LaunchHost>& hosts, int min_ranks)> ranks_on = {};
  // Returns what a whole run has; without it all ranks compute.
  std::function<ScaleUp::Whole()> whole = {};
};

class LaunchMind {
 public:
  explicit LaunchMind(LaunchMindSettings settings);

  LaunchPhase phase() const { return phase_; }
  // Takes what there is to tell since the last call.
  std::vector<LaunchNews> take_news();
  std::vector<HostView> views() const;

  // Takes the list of hosts, which may have changed; empty: mpirun finds them, and this host stands for all.
  void name_hosts(std::int64_t now_ns, const std::vector<LaunchHost>& hosts);
  // Returns the list, with all slots of each host.
  std::vector<LaunchHost> named() const;
  // Returns the name that a host has in the list, which may be another one than it calls itself by.
  std::string name_in_list(const std::string& own_name) const;
  // Takes the hosts that the run leaves or has left, each with the reason; empty: it was asked to.
  void set_drained(std::map<std::string, std::string> hosts) { drained_ = std::move(hosts); }
  // Takes which hosts gave wrong numbers lately, each with a sentence. They are used only while others will not do.
  void set_faulty(std::map<std::string, std::string> hosts);
  // Marks the hosts that other hosts have lost. They get less time to answer.
  void suspect(const std::set<std::string>& own_names);
  // Takes the answers of all hosts, in the order of the list, when no start runs, and which of them could not connect
  // to which.
  void heard(std::int64_t now_ns, std::span<const HostAnswer> answers, std::span<const LinkFault> links = {});

  struct Choice {
    bool starts = false;  // else the launch waits, or has ended
    std::vector<LaunchHost> hosts =
        {};                     // `answers` is true of those that the start may use; empty as the list is
    std::string sentence = {};  // why the launch has ended
  };
  // Takes all hosts of the list for the first start of a run: none of them has been asked.
  void take_all() { follow(LaunchOutcome::enough); }
  Choice choose(std::int64_t now_ns);
  bool may_use(const std::string& host, std::int64_t now_ns) const;
  // Returns whether the run that trains has ranks on the host, and whether all its ranks are on hosts of the list.
  bool has_ranks(const std::string& host) const { return trained_.contains(host); }
  bool knows_where_ranks_are() const;
  int min_ranks() const { return min_ranks_that_fit_; }
  // Returns which hosts are not ready, and why, as clauses; empty: all are.
  std::string why_missing() const;

  // Records that mpirun was started with these ranks, by host.
  void begins(std::int64_t now_ns, const ScaleUp::Ranks& given, int ranks, bool is_narrower);
  // Records that ranks of the start train.
  void trains(std::int64_t now_ns);
  // Records where the ranks are, as the run says, which hosts do not hear each other, of which hosts ranks left as unfit
  // while the start goes on without them, and how many ranks wait as spares, if the run has said that.
  void has(std::int64_t now_ns, const ScaleUp::Ranks& ranks, std::span<const SilentPair> silent = {},
           std::span<const UnfitHost> unfit = {}, std::optional<int> spares = {});
  // Decides what follows.
  RestartDecision ended(std::int64_t now_ns, EndedStart ended, bool stop_requested);
  // Decides what follows when something failed that the launcher itself needs for a start.
  RestartDecision own_call_failed(std::int64_t now_ns, const Error& error);
  // Records that the run was asked to end for another start.
  void leaves() { follow(LaunchOutcome::leaves); }
  bool is_leaving() const { return phase_ == LaunchPhase::leave; }
  bool is_training() const { return phase_ == LaunchPhase::train || phase_ == LaunchPhase::leave; }

  // More ranks while a start trains. Return the hosts that might give it some, by LaunchHost::answers, none if it is
  // not worth the question now; and whether another start is worth it, after their answers.
  std::vector<LaunchHost> candidates(std::int64_t now_ns);
  bool is_worth_another_start(std::int64_t now_ns, std::span<const LaunchHost> asked,
                              std::span<const HostAnswer> answers, std::span<const LinkFault> links = {});
  void postpone(std::int64_t now_ns) { scale_up_.postpone(now_ns); }
  const ScaleUp& scale_up() const { return scale_up_; }
  // Returns how the newest start ended, as far as that decides about the next one.
  const StartEnd& last_end() const { return last_end_; }

 private:
  static constexpr std::int64_t ms = 1'000'000;
  struct Host {
    LaunchHost named = {};
    HostState state = HostState::ready;
    std::string reason = {};
    std::int64_t since_ns = 0;
    bool is_reached = true;  // by the newest answer, and ready
    // Room that it has proved in the newest answer, if that is for fewer ranks than planned.
    std::optional<RoomOfHost> room = {};
    // Number of ranks that train on a host of which some are unfit, as one of its GPUs is gone. While its pause lasts
    // it is used with so many slots. 0: any other host.
    int fit_ranks = 0;
  };
  // Evidence is what speaks against hosts at the end of a start.
  struct Evidence {
    std::vector<SilentPair> silent = {};
    std::set<std::string> died_on = {};
    bool mentions(const std::string& host) const;
  };
  void follow(LaunchOutcome outcome);
  Host* find(const std::string& name);
  bool is_usable(const Host& host, std::int64_t now_ns) const;
  void say(std::string sentence) { news_.push_back({.sentence = std::move(sentence)}); }
  void set(std::int64_t now_ns, Host& host, HostState state, std::string reason);
  HostView view_of(const Host& host) const;
  void exclude_unfit(std::int64_t now_ns, const std::string& name, const std::string& reason, int behind);
  void unfit(std::int64_t now_ns, const UnfitHost& host);
  void leave_out(std::int64_t now_ns, Host& host, HostState state, const std::string& reason);
  void tell_excluded(std::int64_t now_ns, Host& host);
  void take_back(std::int64_t now_ns, Host& host);
  bool is_partly_fit(const Host& host, std::int64_t now_ns) const;
  void tell_room(std::int64_t now_ns, Host& host, const RoomOfHost& room);
  std::vector<LaunchHost> marked(std::int64_t now_ns, const std::function<bool(const Host&)>& answers) const;
  int ranks_on(const std::vector<LaunchHost>& hosts) const;
  void drop_faulty(std::vector<LaunchHost>& chosen) const;
  std::vector<LaunchHost> linked(std::vector<LaunchHost> wanted) const;
  std::vector<LaunchHost> linked_to_run(std::vector<LaunchHost> wanted,
                                        std::span<const LinkFault> links) const;
  void leave_out_unlinked(std::int64_t now_ns, const std::vector<LaunchHost>& wanted,
                          const std::vector<LaunchHost>& chosen, std::span<const LinkFault> links);
  bool has_one_host() const {
    return hosts_.size() == 1;
  }  // it has no other to go to, and ranks grow in place
  // launch_mind_end.cc
  ScaleUp::Ranks in_list(const ScaleUp::Ranks& ranks) const;
  EndedStart in_list(EndedStart ended) const;
  std::vector<std::string> joined() const;
  bool is_given_ranks(const std::string& host) const;
  bool leaves_out_unfit(std::int64_t now_ns, EndedStart& ended);
  bool leaves_out_reported(std::int64_t now_ns, EndedStart& ended);
  bool needs_left_out(std::int64_t now_ns) const;
  bool is_new(const std::string& host) const;
  std::vector<LinkedHost> linked_hosts() const;
  std::vector<SilentPair> in_list(std::span<const SilentPair> silent) const;
  bool leaves_out_suspects(std::int64_t now_ns, const EndedStart& ended);
  bool lacks_ranks(std::int64_t now_ns, const EndedStart& ended) const;
  bool has_begun() const { return settings_.has_begun || fewest_trained_.has_value(); }
  RestartLimits limits_after(const EndedStart& ended) const;

  LaunchMindSettings settings_;
  LaunchPhase phase_ = LaunchPhase::ask;
  std::vector<Host> hosts_;
  bool is_implicit_ = true;  // no hosts were named
  std::map<std::string, std::string> known_as_;
  std::map<std::string, std::string> drained_;
  std::map<std::string, std::string> faulty_;
  std::vector<LinkFault> links_;  // between hosts that were asked for the next start
  ScaleUp scale_up_;
  std::vector<LaunchNews> news_;
  std::int64_t short_since_ns_ = -1;  // since when hosts are missing for a start; -1: they are not
  int min_ranks_that_fit_ = 1;
  // The newest start.
  ScaleUp::Ranks given_;
  int ranks_ = 0;
  bool is_narrower_ = false, has_reported_ = false;
  std::set<std::string> failed_in_start_;  // hosts whose failure in it is counted
  std::set<std::string> unfit_in_start_;   // hosts whose ranks have left it as unfit
  std::int64_t begun_ns_ = 0, trained_ns_ = -1;
  // Ranks of the newest start that trained, at its end, and the fewest of all such starts.
  ScaleUp::Ranks trained_;
  std::optional<int> fewest_trained_ = {};
  bool has_trained_narrower_ = false;
  std::vector<StartEnd> starts_;  // that ended without an explanation, or leave too few hosts
  StartEnd last_end_;
  std::optional<Evidence> last_evidence_ = {};
  std::int64_t own_calls_fail_since_ns_ = -1;
  int own_calls_failed_ = 0;
};

}  // namespace holdfast::launch
