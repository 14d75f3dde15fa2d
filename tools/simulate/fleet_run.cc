// FleetRun: the run from its first start to the end of the days.
#include "tools/simulate/fleet_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace holdfast::launch::fleet {
namespace {

constexpr std::int64_t wait_step_us = 5'000'000;  // between two looks of a launcher that has too few hosts
constexpr const char* quiet_name = "quiet";

}  // namespace

std::int64_t FleetOutcome::spans_us() const {
  return std::accumulate(times_us.begin(), times_us.end(), narrower_us);
}

double FleetOutcome::ettr() const {
  const std::int64_t all = spans_us();
  return all > 0 ? static_cast<double>(times_us[static_cast<std::size_t>(SpanUse::training)]) /
                       static_cast<double>(all)
                 : 0.0;
}

FleetRun::FleetRun(const Cluster& cluster, RecoveryTable& table, std::uint64_t seed, std::int64_t end_us)
    : cluster_(&cluster),
      table_(&table),
      end_us_(end_us),
      events_(draw_schedule(cluster, seed, end_us)),
      clock_(cluster),
      hosts_(static_cast<std::size_t>(cluster.hosts)) {
  outcome_.seed = seed;
  outcome_.faults.resize(cluster.faults.size());
  list_hosts(events_);
  make_mind(/*has_begun=*/false);
}

void FleetRun::list_hosts(const std::vector<FleetEvent>& events) {
  std::vector<bool> is_touched(hosts_.size());
  for (const FleetEvent& event : events) {
    for (int host = event.host; host < event.host + event.hosts; ++host)
      is_touched[static_cast<std::size_t>(host)] = true;
  }
  const auto slots = static_cast<int>(cluster_->ranks_per_host);
  const auto quiet = static_cast<int>(std::ranges::count(is_touched, false));
  has_quiet_ = quiet > 0;
  if (has_quiet_) list_.push_back({.name = quiet_name, .slots = quiet * slots});
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    if (!is_touched[host]) continue;
    hosts_[host].listed = static_cast<int>(list_.size());
    touched_.push_back(static_cast<int>(host));
    list_.push_back({.name = fmt::format("h{}", host), .slots = slots});
  }
}

void FleetRun::make_mind(bool has_begun) {
  mind_ = std::make_unique<LaunchMind>(
      LaunchMindSettings{.own_host = "launcher",
                         .program = "holdfast",
                         .grow_after_ms = std::llround(cluster_->grow_after_seconds * 1e3),
                         .settled_ms = std::llround(cluster_->settle_after_seconds * 1e3),
                         .wait_for_hosts_ms = std::llround(cluster_->wait_for_hosts_seconds * 1e3),
                         .has_begun = has_begun,
                         .ranks_on = [this](const std::vector<LaunchHost>& hosts,
                                            int min_ranks) { return ranks_on(hosts, min_ranks); },
                         .whole =
                             [this] {
                               const auto spares = static_cast<int>(cluster_->spares);
                               const auto slots = static_cast<int>(cluster_->ranks_per_host);
                               return ScaleUp::Whole{.computing = cluster_->ranks_wanted() - spares,
                                                     .kept_spares = std::min(spares, slots)};
                             }});
  mind_->name_hosts(now_ns(), list_);
}

int FleetRun::ranks_on(const std::vector<LaunchHost>& hosts, int min_ranks) const {
  const RanksWanted wanted{.ranks = cluster_->ranks_wanted(),
                           .per_copy = cluster_->per_copy(),
                           .min_copies = static_cast<int>(cluster_->min_data_parallel),
                           .spares = static_cast<int>(cluster_->spares),
                           .within_slots = true};
  const int ranks = ranks_on_hosts_left(hosts, wanted).value_or(0);
  return ranks >= min_ranks ? ranks : 0;
}

FleetOutcome FleetRun::run() {
  while (!is_over()) {
    if (const std::optional<std::vector<LaunchHost>> hosts = choose(); hosts.has_value()) {
      give_ranks(*hosts);
      if (begin()) train();
    }
  }
  outcome_.times_us = clock_.times_us();
  outcome_.narrower_us = clock_.narrower_us();
  outcome_.steps = clock_.steps();
  return outcome_;
}

std::optional<FleetRun::Impact> FleetRun::pass(double seconds, SpanUse use) {
  return pass_until(clock_.now_us() + us_of(seconds), use);
}

std::optional<FleetRun::Impact> FleetRun::pass_until(std::int64_t to_us, SpanUse use) {
  to_us = std::min(to_us, end_us_);
  while (next_ < events_.size() && events_[next_].at_us <= to_us) {
    const FleetEvent& event = events_[next_++];
    clock_.spend(std::max(event.at_us, clock_.now_us()), use);
    Impact impact = happen(event);
    if (impact.breaks) return impact;
  }
  clock_.spend(to_us, use);
  return std::nullopt;
}

std::vector<HostAnswer> FleetRun::answers() const {
  std::vector<HostAnswer> answers(list_.size(), HostAnswer{.code = 0});
  for (const int host : touched_) {
    const SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (!is_up(of)) answers[static_cast<std::size_t>(of.listed)] = HostAnswer{};
  }
  return answers;
}

// Returns when waiting for hosts may be over: a host is back, or its pause has an end.
std::int64_t FleetRun::next_change_us() const {
  constexpr std::int64_t pause_us = GrowingPauses::longest_needed_pause_ms * 1000;
  std::int64_t change_us = end_us_;
  for (const int host : touched_) {
    const SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    change_us = std::min(change_us, is_up(of) ? clock_.now_us() + pause_us : of.away_until_us);
  }
  const std::int64_t wait_us = std::max<std::int64_t>(change_us - clock_.now_us(), 1);
  return clock_.now_us() + (wait_us + wait_step_us - 1) / wait_step_us * wait_step_us;
}

// Asks the hosts until there are enough for a start; nothing: the days are over, or the launch has ended.
std::optional<std::vector<LaunchHost>> FleetRun::choose() {
  const SpanUse use = outcome_.starts == 0 || was_asked_ ? SpanUse::start_up : SpanUse::restart;
  const std::int64_t waiting_since_us = clock_.now_us();
  while (!is_over()) {
    pass(cluster_->ask, use);
    note_left();
    mind_->heard(now_ns(), answers());
    LaunchMind::Choice choice = mind_->choose(now_ns());
    take_news();
    if (choice.starts) return std::move(choice.hosts);
    if (!choice.sentence.empty()) {
      launch_again();
      return std::nullopt;
    }
    const std::int64_t until_us = waiting_since_us + us_of(cluster_->wait_for_hosts_seconds + 1.0);
    const std::int64_t change_us = next_change_us();
    pass_until(until_us > clock_.now_us() ? std::min(change_us, until_us) : change_us, SpanUse::waiting);
  }
  return std::nullopt;
}

void FleetRun::take_news() {
  for (const LaunchNews& news : mind_->take_news()) outcome_.excluded += news.excluded.has_value() ? 1 : 0;
}

// Somebody sees that the launch has ended, and launches again.
void FleetRun::launch_again() {
  ++outcome_.launches_ended;
  pass(std::max(cluster_->person, 1.0), SpanUse::waiting);
  make_mind(/*has_begun=*/true);
  was_asked_ = false;
}

// mpirun fills the hosts that answer in their order, whether anything will happen to them or not.
void FleetRun::give_ranks(const std::vector<LaunchHost>& hosts) {
  int left = ranks_on(hosts, mind_->min_ranks());
  const auto slots = static_cast<int>(cluster_->ranks_per_host);
  for (SimulatedHost& host : hosts_) {
    const LaunchHost& listed = hosts[static_cast<std::size_t>(host.listed)];
    host.ranks = is_quiet(host) ? slots : listed.answers ? listed.slots : 0;
    host.ranks = std::min(host.ranks, left);
    left -= host.ranks;
  }
}

ScaleUp::Ranks FleetRun::ranks_by_name() const {
  ScaleUp::Ranks ranks;
  int quiet = 0;
  for (const SimulatedHost& host : hosts_) quiet += is_quiet(host) ? host.ranks : 0;
  if (quiet > 0) ranks[quiet_name] = quiet;
  for (const int host : touched_) {
    const SimulatedHost& of = hosts_[static_cast<std::size_t>(host)];
    if (of.ranks > 0) ranks[name_of_host(of)] = of.ranks;
  }
  return ranks;
}

std::vector<int> FleetRun::ranks_by_host() const {
  std::vector<int> ranks;
  for (const SimulatedHost& host : hosts_) {
    if (host.ranks > 0) ranks.push_back(host.ranks);
  }
  return ranks;
}

int FleetRun::ranks_of_start() const {
  return std::accumulate(hosts_.begin(), hosts_.end(), 0,
                         [](int sum, const SimulatedHost& host) { return sum + host.ranks; });
}

void FleetRun::compute_with(int copies) {
  copies_ = copies;
  ++epoch_;
  epoch_began_us_ = clock_.now_us();
  clock_.begin_epoch(epoch_);
  layout_.clear();
  for (const SimulatedHost& host : hosts_) layout_.push_back(host.ranks);
  note_slow();
}

// Makes the start; returns whether it trains.
bool FleetRun::begin() {
  const bool is_first = outcome_.starts++ == 0;
  const SpanUse use = is_first || was_asked_ ? SpanUse::start_up : SpanUse::restart;
  is_running_ = true, has_trained_ = false, is_asked_ = false;
  ending_us_ = look_us_ = grow_us_ = never_us;
  steps_before_ = newest_step_;
  const ScaleUp::Ranks ranks = ranks_by_name();
  const int count = ranks_of_start();
  mind_->begins(now_ns(), ranks, count, count < cluster_->per_copy());
  const bool from_disk = !is_first && !is_newest_in_ram();
  std::optional<Impact> impact;
  if (from_disk && clock_.storage_until_us() > clock_.now_us())
    impact = pass_until(clock_.storage_until_us(), use);
  const double seconds = is_first ? cluster_->start : cluster_->restart + (from_disk ? cluster_->load : 0.0);
  if (!impact.has_value()) impact = pass(seconds, use);
  const int copies = impact.has_value() ? 0 : table_->copies_of(ranks_by_host());
  if (impact.has_value() || copies == 0) {
    start_failed(impact.value_or(Impact{.breaks = true, .ends = true}));
    return false;
  }
  if (is_over()) return is_running_ = false;
  if (!is_first) find_state();
  clock_.begin_start();
  has_trained_ = true;
  was_asked_ = false;
  mind_->trains(now_ns());
  mind_->has(now_ns(), ranks, {}, {}, count - copies * cluster_->per_copy());
  disturbed_us_ = clock_.now_us();
  compute_with(copies);
  plan_look();
  const auto has_to_go = [&](int host) {
    return is_left(hosts_[static_cast<std::size_t>(host)]) &&
           hosts_[static_cast<std::size_t>(host)].ranks > 0;
  };
  if (std::ranges::any_of(touched_, has_to_go)) ask_to_end();
  return true;
}

void FleetRun::start_failed(Impact impact) {
  pass(impact.notice_seconds, SpanUse::restart);
  clock_.note_failure();
  lose_ranks(impact);
  ended(end_of(impact));
}

// Returns the hosts' evidence of how the start ended.
EndedStart FleetRun::end_of(const Impact& impact) const {
  EndedStart end;
  end.end = {.record = StartEnd::Record::none,
             .step_before = steps_before_,
             .step = newest_step_,
             .fault = "ranks were lost"};
  end.lost_work_ms = std::llround(clock_.most_lost_ms());
  if (impact.ends) return end;
  for (const int host : impact.hosts)
    end.died_on.insert(name_of_host(hosts_[static_cast<std::size_t>(host)]));
  for (const SimulatedHost& host : hosts_) {
    if (host.ranks == 0) continue;
    end.ended_on.insert(name_of_host(host));
    break;
  }
  return end;
}

void FleetRun::ended(EndedStart how) {
  is_running_ = false;
  if (is_over()) return;
  was_asked_ = how.is_as_asked;
  if (!was_asked_) ++outcome_.restarts;
  if (std::exchange(is_launcher_lost_, false)) {
    for (SimulatedHost& host : hosts_) host.ranks = 0;
    return make_mind(/*has_begun=*/true);
  }
  const RestartDecision decision = mind_->ended(now_ns(), std::move(how), /*stop_requested=*/false);
  take_news();
  for (SimulatedHost& host : hosts_) {
    host.ranks = 0;
    if (is_left(host)) host.slow_until_us = 0;  // it is mended meanwhile
  }
  if (!decision.restart) return launch_again();
  pass(static_cast<double>(decision.delay_ms) / 1e3, SpanUse::restart);
}

// Trains until the start ends.
void FleetRun::train() {
  while (is_running_ && !is_over()) {
    const std::int64_t event_us = next_ < events_.size() ? events_[next_].at_us : never_us;
    const std::int64_t done_us = cluster_->steps > 0.0 ? clock_.done_us(cluster_->steps) : never_us;
    const std::int64_t to_us =
        std::min({end_us_, event_us, look_us_, ending_us_, grow_us_, next_slow_us(), done_us});
    clock_.train(std::max(to_us, clock_.now_us()));
    newest_step_ = std::max(newest_step_, static_cast<std::uint64_t>(clock_.steps()));
    const std::int64_t now_us = clock_.now_us();
    if (cluster_->steps > 0.0 && clock_.done_us(cluster_->steps) <= now_us) end_us_ = now_us;
    if (now_us >= end_us_) break;
    if (event_us <= now_us) {
      const Impact impact = happen(events_[next_++]);
      if (impact.breaks && !recover(impact)) return;
    } else if (ending_us_ <= now_us) {
      clock_.spend(std::min(now_us + us_of(cluster_->snapshot), end_us_), SpanUse::saving);
      clock_.seal();
      state_epoch_ = epoch_, state_layout_ = layout_, lost_us_.clear();
      return ended({.end = {.step_before = steps_before_, .step = newest_step_, .fault = "as asked"},
                    .is_as_asked = true});
    } else if (look_us_ <= now_us) {
      look();
    } else if (grow_us_ <= now_us) {  // ranks that one host has got back
      grow_us_ = never_us;
      if (const std::optional<Impact> impact = pass(cluster_->grow_time, SpanUse::recovery);
          impact.has_value()) {
        if (!recover(*impact)) return;
        continue;
      }
      give_ranks(list_);
      ++outcome_.growths;
      compute_with(table_->copies_of(ranks_by_host()));
    } else {
      note_slow();
    }
  }
  is_running_ = false;
}

}  // namespace holdfast::launch::fleet
