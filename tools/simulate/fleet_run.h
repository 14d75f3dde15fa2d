// FleetRun is one run on a fleet over one schedule of faults. What the program would decide is decided by the program's own
// objects: which hosts a start has, when it is made again and which host is left out (LaunchMind), how many ranks it has
// (ranks_on_hosts_left), whether ranks that are left may go on (has_quorum) and as what (plan_recovery, assign_ranks), where
// replicas are (buddies_of), when to save (hazard), when a slow host is left (ranks_worth_leaving, breaker_lets_leave). What
// hosts, racks, storage and people do is a model: the schedule, and the times of the cluster file (docs/simulator.md).
//
// Pure: a cluster and a seed give the same outcome to the last bit.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/launch_mind.h"
#include "tools/simulate/fault_schedule.h"
#include "tools/simulate/recovery_table.h"
#include "tools/simulate/training_clock.h"

namespace holdfast::launch::fleet {

struct FleetOutcome {
  std::uint64_t seed = 0;
  SpanTimes times_us = {};
  std::int64_t narrower_us = 0;           // what steps took longer because fewer copies computed
  std::int64_t steps = 0;                 // that count
  std::vector<std::int64_t> faults = {};  // that hit the run, by kind
  std::int64_t starts = 0;                // in all
  std::int64_t in_place = 0, restarts = 0,
               from_disk = 0;  // recoveries; restarts after a fault; states that came from the disk
  std::int64_t growths = 0,
               left = 0;         // starts to use more hosts; hosts that were left as slow or with a notice
  std::int64_t spares_used = 0;  // recoveries after which as many copies computed as before, on fewer ranks
  std::int64_t launches_ended = 0;  // that a person had to make again
  std::int64_t excluded = 0;        // times that LaunchMind left a host out
  std::int64_t spans_us() const;
  double ettr() const;  // training by all
};

class FleetRun {
 public:
  // `table` serves all runs of a cluster; `cluster` outlives this.
  FleetRun(const Cluster& cluster, RecoveryTable& table, std::uint64_t seed, std::int64_t end_us);
  FleetOutcome run();

 private:
  static constexpr std::int64_t never_us = std::numeric_limits<std::int64_t>::max() / 4;
  struct SimulatedHost {
    std::int64_t away_until_us = 0;
    int ranks = 0;                   // of this start
    int listed = 0;                  // place in the list of LaunchMind
    std::int64_t left_until_us = 0;  // the run was asked to leave it, and it is not mended before
    double slow_factor = 1.0;
    std::int64_t slow_until_us = 0, slow_since_us = 0, repair_us = 0, ladder_us = never_us;
  };
  // Impact is what an event means for the start that is under way.
  struct Impact {
    bool breaks = false;  // ranks are gone
    bool ends = false;    // all are
    bool is_silent = false;
    std::vector<int> hosts = {};  // that lost ranks
    double notice_seconds = 0.0;
    std::optional<TrainingClock::Mark> last_right = {};  // where wrong numbers were found
  };
  // Hosts whose schedule is empty stand for each other, and are one entry of the list.
  void list_hosts(const std::vector<FleetEvent>& events);
  void make_mind(bool has_begun);
  std::vector<HostAnswer> answers() const;
  bool is_up(const SimulatedHost& host) const { return host.away_until_us <= clock_.now_us(); }
  bool is_left(const SimulatedHost& host) const { return host.left_until_us > clock_.now_us(); }
  bool is_quiet(const SimulatedHost& host) const { return has_quiet_ && host.listed == 0; }
  std::int64_t now_ns() const { return clock_.now_us() * 1000; }
  bool is_over() const { return clock_.now_us() >= end_us_; }

  // Lets time pass, and what happens meanwhile; returns the first impact that breaks the start, at whose time it stops.
  std::optional<Impact> pass(double seconds, SpanUse use);
  std::optional<Impact> pass_until(std::int64_t to_us, SpanUse use);
  Impact happen(const FleetEvent& event);
  Impact lose(const FleetEvent& event, const FaultKind& fault);
  void warn(const FleetEvent& event);
  void be_slow(const FleetEvent& event, const FaultKind& fault);
  void lose_ranks(const Impact& impact);
  void merge(Impact& impact, const Impact& later) const;

  // One start.
  std::optional<std::vector<LaunchHost>> choose();
  std::int64_t next_change_us() const;
  void give_ranks(const std::vector<LaunchHost>& hosts);
  bool begin();
  void train();
  void start_failed(Impact impact);
  void ended(EndedStart how);
  EndedStart end_of(const Impact& impact) const;
  void launch_again();

  // In place.
  bool recover(Impact impact);
  bool is_whole_in_ram();
  bool is_newest_in_ram();
  void find_state();
  void compute_with(int copies);

  // Decides about other hosts while the run trains.
  void plan_look();
  void look();
  void leave_slow_host(SimulatedHost& host, int index);
  void ask_to_end();
  void note_left();
  void take_news();
  double slowest() const;
  std::int64_t next_slow_us() const;
  void note_slow();

  ScaleUp::Ranks ranks_by_name() const;
  std::vector<int> ranks_by_host() const;
  int ranks_of_start() const;
  int ranks_on(const std::vector<LaunchHost>& hosts, int min_ranks) const;
  const std::string& name_of_host(const SimulatedHost& host) const {
    return list_[static_cast<std::size_t>(host.listed)].name;
  }

  const Cluster* cluster_;
  RecoveryTable* table_;
  std::int64_t end_us_;
  std::vector<FleetEvent> events_;
  std::size_t next_ = 0;
  TrainingClock clock_;
  std::vector<SimulatedHost> hosts_;
  std::vector<LaunchHost> list_;
  std::vector<int> touched_;  // hosts with a schedule
  bool has_quiet_ = false;    // the first of the list stands for all others
  std::unique_ptr<LaunchMind> mind_;
  FleetOutcome outcome_;

  // The start.
  bool is_running_ = false, is_asked_ = false, was_asked_ = false, has_trained_ = false;
  std::int64_t ending_us_ = never_us;  // when the step ends after which the run ends as asked
  std::int64_t look_us_ = never_us, disturbed_us_ = 0, grow_us_ = never_us;
  bool is_launcher_lost_ = false;
  int copies_ = 0;
  std::uint64_t steps_before_ = 0, newest_step_ = 0;
  std::vector<std::int64_t> slow_left_ns_;  // when hosts were left as slow
  // The state in RAM: on which hosts it was made, and which of these are lost.
  int epoch_ = 0, state_epoch_ = -1;
  std::vector<int> layout_, state_layout_;  // ranks by host, of the epoch and of the state
  std::map<int, std::int64_t> lost_us_;     // by host: when its memory was lost last
  std::int64_t epoch_began_us_ = 0;
  std::map<int, TrainingClock::Mark> last_right_;  // by host that computes wrong: the newest state before
};

}  // namespace holdfast::launch::fleet
