// FleetRun: what happens to hosts, how the ranks that are left recover, and when the run asks for other hosts.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/health/straggler_ladder.h"
#include "runtime/launch/drains.h"
#include "tools/simulate/fleet_run.h"

namespace holdfast::launch::fleet {
FleetRun::Impact FleetRun::happen(const FleetEvent& event) {
  const FaultKind& fault = cluster_->faults[static_cast<std::size_t>(event.kind)];
  switch (fault.effect) {
    case FaultEffect::notice:
      if (event.is_second) return lose(event, fault);
      warn(event);
      return {};
    case FaultEffect::slow:
      be_slow(event, fault);
      return {};
    case FaultEffect::storage:
      clock_.set_storage_until(event.at_us + event.lasts_us);
      ++outcome_.faults[static_cast<std::size_t>(event.kind)];
      return {};
    case FaultEffect::corruption:
      // Checkpoints from before it happened are right.
      if (!event.is_second) return last_right_[event.host] = clock_.newest_on_disk(), Impact{};
      return lose(event, fault);
    case FaultEffect::process:
    case FaultEffect::host:
    case FaultEffect::run:
      break;
  }
  return lose(event, fault);
}

// Takes hosts or ranks away.
FleetRun::Impact FleetRun::lose(const FleetEvent& event, const FaultKind& fault) {
  Impact impact;
  const bool is_process = fault.effect == FaultEffect::process;
  impact.ends = fault.effect == FaultEffect::run;
  impact.is_silent = !is_process && !impact.ends && fault.effect != FaultEffect::corruption;
  for (int host = event.host; host < event.host + event.hosts; ++host) {
    SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (!is_up(of)) continue;
    if (of.ranks > 0) impact.hosts.push_back(host);
    if (is_process) continue;
    of.away_until_us = event.at_us + event.lasts_us;
    of.slow_until_us = 0;
    lost_us_[host] = event.at_us;
  }
  impact.breaks = is_running_ && (impact.ends || !impact.hosts.empty());
  if (fault.effect == FaultEffect::corruption && impact.breaks) impact.last_right = last_right_[event.host];
  if (fault.memory_lost > 0.0) clock_.forget_ram();
  const double usual = impact.is_silent ? cluster_->notice_host : cluster_->notice_process;
  impact.notice_seconds = fault.notice_seconds >= 0.0 ? fault.notice_seconds : usual;
  is_launcher_lost_ = is_launcher_lost_ || (impact.breaks && impact.ends && fault.memory_lost > 0.0);
  if (!impact.breaks) return impact;
  ++outcome_.faults[static_cast<std::size_t>(event.kind)];
  if (is_process && has_trained_) --hosts_[static_cast<std::size_t>(event.host)].ranks;
  return impact;
}

// A host says that it will go: the run leaves it after its step, if it does such things.
void FleetRun::warn(const FleetEvent& event) {
  SimulatedHost& host = hosts_[static_cast<std::size_t>(event.host)];
  if (!is_up(host) || !(cluster_->drain > 0.0)) return;
  const FaultKind& fault = cluster_->faults[static_cast<std::size_t>(event.kind)];
  host.left_until_us = event.at_us + us_of(fault.warning_seconds) + event.lasts_us;
  note_left();
  if (host.ranks == 0 || !is_running_ || !has_trained_) return;
  ++outcome_.left;
  ask_to_end();
}

void FleetRun::be_slow(const FleetEvent& event, const FaultKind& fault) {
  for (int host = event.host; host < event.host + event.hosts; ++host) {
    SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (!is_up(of)) continue;
    of.slow_factor = fault.factor;
    of.slow_since_us = event.at_us;
    of.slow_until_us = event.at_us + event.lasts_us;
    of.repair_us = us_of(fault.away_hours * 3600.0);
    of.ladder_us = never_us;
    if (of.ranks > 0) ++outcome_.faults[static_cast<std::size_t>(event.kind)];
  }
  if (is_running_ && has_trained_) note_slow();
}

void FleetRun::lose_ranks(const Impact& impact) {
  for (const int host : impact.hosts) {
    SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (!is_up(of)) of.ranks = 0;
  }
}

void FleetRun::merge(Impact& impact, const Impact& later) const {
  impact.ends = impact.ends || later.ends;
  impact.is_silent = impact.is_silent || later.is_silent;
  impact.hosts.insert(impact.hosts.end(), later.hosts.begin(), later.hosts.end());
  impact.notice_seconds = later.notice_seconds;
  if (later.last_right.has_value()) impact.last_right = later.last_right;
}

// Recovers in place; returns whether the start goes on.
bool FleetRun::recover(Impact impact) {
  const int before = std::accumulate(layout_.begin(), layout_.end(), 0), copies = copies_;
  clock_.interrupt();
  std::optional<Impact> next = impact;
  bool goes_on = cluster_->in_place > 0.0;
  while (next.has_value()) {
    clock_.note_failure();
    lose_ranks(*next);
    goes_on = goes_on && !impact.ends;
    next = pass(next->notice_seconds, goes_on ? SpanUse::recovery : SpanUse::restart);
    if (!next.has_value()) {
      // Ranks that are left do not go back behind what was whole in RAM: a start on all hosts may find it.
      const bool is_from_disk = impact.last_right.has_value() || clock_.is_disk_newer();
      goes_on = goes_on && (is_from_disk || is_whole_in_ram()) &&
                table_->has_majority(before, ranks_of_start(), impact.is_silent) &&
                table_->copies_of(ranks_by_host()) > 0;
      if (goes_on && is_from_disk)
        next = pass_until(std::max(clock_.now_us(), clock_.storage_until_us()), SpanUse::recovery);
      const double seconds = cluster_->recover + (is_from_disk ? cluster_->load : 0.0);
      if (goes_on && !next.has_value()) next = pass(seconds, SpanUse::recovery);
    }
    if (next.has_value()) merge(impact, *next);
  }
  if (impact.last_right.has_value()) clock_.go_back_to(*impact.last_right);
  if (is_over()) {
    find_state();
    return is_running_ = false;
  }
  if (!goes_on) {
    ended(end_of(impact));
    return false;
  }
  if (!impact.last_right.has_value()) find_state();
  ++outcome_.in_place;
  disturbed_us_ = clock_.now_us();
  compute_with(table_->copies_of(ranks_by_host()));
  mind_->has(now_ns(), ranks_by_name(), {}, {}, ranks_of_start() - copies_ * cluster_->per_copy());
  if (copies_ == copies) ++outcome_.spares_used;
  if (is_asked_) ending_us_ = clock_.step_end_us();
  if (hosts_.size() == 1) grow_us_ = clock_.now_us() + us_of(cluster_->grow_wait);
  plan_look();
  return true;
}

// Returns whether the newest confirmed state in RAM is whole on the hosts that are left.
bool FleetRun::is_whole_in_ram() {
  clock_.settle();
  if (!clock_.has_ram()) return false;
  if (clock_.ram_epoch() != state_epoch_) {
    // Ranks that were lost before the epoch that made it have come back with nothing that counts.
    std::erase_if(lost_us_, [&](const auto& lost) { return lost.second < epoch_began_us_; });
    state_epoch_ = clock_.ram_epoch();
    state_layout_ = layout_;
  }
  std::vector<int> ranks;
  std::vector<bool> is_lost;
  int lost = 0;
  for (std::size_t host = 0; host < state_layout_.size(); ++host) {
    if (state_layout_[host] == 0) continue;
    ranks.push_back(state_layout_[host]);
    is_lost.push_back(lost_us_.contains(static_cast<int>(host)));
    lost += is_lost.back() ? 1 : 0;
  }
  if (lost == 0) return true;
  return cluster_->has_replicas() && table_->survives(ranks, is_lost);
}

bool FleetRun::is_newest_in_ram() {
  const bool is_whole = is_whole_in_ram();
  return is_whole && !clock_.is_disk_newer();
}

// Goes back to the newest state that is whole.
void FleetRun::find_state() {
  if (is_newest_in_ram()) return clock_.go_back_to_ram();
  clock_.go_back_to_disk();
  ++outcome_.from_disk;
  lost_us_.clear();
}

// Looks for hosts are made when the run lacks ranks. Those that can find nothing are left out: a host that is back is found
// by the next one.
void FleetRun::plan_look() {
  look_us_ = never_us;
  if (cluster_->grow != "auto" || is_asked_ || ranks_of_start() >= cluster_->ranks_wanted()) return;
  const ScaleUp& scale_up = mind_->scale_up();
  const std::int64_t now_us = clock_.now_us(), first_us = scale_up.due_ns() / 1000,
                     pause_us = scale_up.look_pause_ms() * 1000;
  const auto slots = static_cast<int>(cluster_->ranks_per_host);
  std::int64_t ready_us = never_us;
  for (const int host : touched_) {
    const SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (of.ranks >= slots) continue;
    const std::int64_t host_us =
        std::max({of.away_until_us, of.left_until_us, scale_up.left_until_ns(name_of_host(of)) / 1000});
    if (host_us > now_us || now_us <= disturbed_us_) ready_us = std::min(ready_us, std::max(host_us, now_us));
  }
  const auto is_free = [&](const SimulatedHost& host) { return is_quiet(host) && host.ranks < slots; };
  if (now_us <= disturbed_us_ && std::ranges::any_of(hosts_, is_free)) ready_us = now_us;
  if (ready_us == never_us) return;
  look_us_ = std::max(ready_us, first_us);
  if (look_us_ > first_us) look_us_ = first_us + (look_us_ - first_us + pause_us - 1) / pause_us * pause_us;
  look_us_ = std::max(look_us_, now_us + 1);
}

void FleetRun::look() {
  note_left();
  const std::vector<LaunchHost> asked = mind_->candidates(now_ns());
  if (!asked.empty() && mind_->is_worth_another_start(now_ns(), asked, answers())) {
    ++outcome_.growths;
    ask_to_end();
  }
  take_news();
  plan_look();
}

// Asks the run to end after its step, for another start.
void FleetRun::ask_to_end() {
  if (is_asked_) return;
  is_asked_ = true;
  look_us_ = never_us;
  ending_us_ = clock_.step_end_us();
  if (mind_->is_training()) mind_->leaves();
}

void FleetRun::note_left() {
  std::map<std::string, std::string> left;
  for (const int host : touched_) {
    const SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (is_left(of)) left.emplace(name_of_host(of), "");
  }
  mind_->set_drained(std::move(left));
}

double FleetRun::slowest() const {
  double slowest = 1.0;
  for (const int host : touched_) {
    const SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (of.ranks > 0 && of.slow_until_us > clock_.now_us()) slowest = std::max(slowest, of.slow_factor);
  }
  return slowest;
}

std::int64_t FleetRun::next_slow_us() const {
  std::int64_t next_us = never_us;
  for (const int host : touched_) {
    const SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (of.ranks > 0 && of.slow_until_us > clock_.now_us())
      next_us = std::min({next_us, of.slow_until_us, of.ladder_us});
  }
  return next_us;
}

// Takes the pace of the slowest host, and asks the ladder about each that is slow.
void FleetRun::note_slow() {
  const double slowest_factor = slowest();
  clock_.set_pace(copies_, slowest_factor);
  if (is_asked_) ending_us_ = clock_.step_end_us();
  if (slowest_factor <= 1.0 || cluster_->preset != "guard") return;
  for (const int host : touched_) {
    SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (of.ranks == 0 || of.slow_until_us <= clock_.now_us() || of.slow_factor <= 1.0) continue;
    if (of.ladder_us == never_us) {
      // It is named first, and has cost as much as a start then or later.
      const double cost_s = cluster_->restart / (1.0 - 1.0 / of.slow_factor);
      const double after_s = std::max(cluster_->straggler_named, cost_s);
      of.slow_since_us = std::max(of.slow_since_us, disturbed_us_);
      of.ladder_us = std::max(of.slow_since_us + us_of(after_s) + 1, clock_.now_us() + 1);
    }
    if (of.ladder_us <= clock_.now_us()) leave_slow_host(of, host);
  }
}

void FleetRun::leave_slow_host(SimulatedHost& host, int index) {
  const double seconds = static_cast<double>(clock_.now_us() - host.slow_since_us) / 1e6;
  const double step_s = clock_.step_seconds();
  const auto newest = static_cast<std::uint64_t>(clock_.steps());
  const auto slow_steps = static_cast<std::uint64_t>(std::max(seconds / step_s, 1.0));
  const StragglerVerdict verdict{.rank = index,
                                 .factor = host.slow_factor,
                                 .since_step = newest >= slow_steps ? newest - slow_steps + 1 : 0,
                                 .last_step = newest,
                                 .lost_seconds = seconds * (1.0 - 1.0 / host.slow_factor),
                                 .seconds = seconds};
  const double steps_left = static_cast<double>(end_us_ - clock_.now_us()) / 1e6 / cluster_->step;
  const RunOutlook outlook{.steps = newest + static_cast<std::uint64_t>(steps_left),
                           .restart_seconds = cluster_->restart,
                           .lanes = cluster_->lanes_or_data(),
                           .copies = copies_,
                           .ranks_per_copy = cluster_->per_copy()};
  const std::optional<std::int64_t> ranks = ranks_worth_leaving(verdict, outlook);
  host.ladder_us = clock_.now_us() + us_of(seconds);  // asked again when it has cost twice as much
  if (!ranks.has_value() || is_asked_ || !breaker_lets_leave(slow_left_ns_, now_ns(), hosts_.size())) return;
  std::vector<LaunchHost> others = list_;
  for (const int other : touched_) {
    const SimulatedHost& of = hosts_[static_cast<std::size_t>(other)];
    others[static_cast<std::size_t>(of.listed)].answers = is_up(of) && !is_left(of) && other != index;
  }
  if (ranks_on(others, static_cast<int>(*ranks)) == 0) return;
  slow_left_ns_.push_back(now_ns());
  host.left_until_us = clock_.now_us() + std::max<std::int64_t>(host.repair_us, 1);
  ++outcome_.left;
  note_left();
  ask_to_end();
}

}  // namespace holdfast::launch::fleet
