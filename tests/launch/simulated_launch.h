// SimulatedLaunch drives a LaunchMind over hosts that exist only here, on virtual time, through a schedule of what
// happens to them, and checks what must hold for every schedule:
//
//   - Once nothing happens any more, a run whose fit hosts have room for it trains within 60 s.
//   - The launch ends with 2 to 5 only if the inputs themselves are wrong, or all hosts of its first start lack them.
//   - No host is left out that did nothing.
//   - No host costs the run more than 6 starts in an hour.
//   - No start has two hosts of which it was known that they do not reach each other.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/launch/launch_mind.h"

namespace holdfast::test {

struct LaunchFault {
  enum class Kind { unfit, fit, lies, down, up, cut, mend, ranks_die, mpirun_dies, inputs_wrong };
  std::int64_t at_s = 0;
  Kind kind = Kind::unfit;
  std::size_t host = 0, other = 0;
  std::string text() const {
    constexpr const char* names[] = {"unfit", "fit",  "lies",      "down",        "up",
                                     "cut",   "mend", "ranks_die", "mpirun_dies", "inputs_wrong"};
    return fmt::format("{} s: {} h{} h{}", at_s, names[static_cast<int>(kind)], host, other);
  }
};
using LaunchSchedule = std::vector<LaunchFault>;

inline LaunchSchedule random_schedule(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
  LaunchSchedule schedule;
  std::int64_t at_s = static_cast<std::int64_t>(below(30));
  for (std::size_t i = 0, n = 1 + below(10); i < n; ++i) {
    LaunchFault fault{.at_s = at_s, .host = below(4), .other = below(4)};
    fault.kind = static_cast<LaunchFault::Kind>(below(9));
    if (below(60) == 0) fault.kind = LaunchFault::Kind::inputs_wrong;
    schedule.push_back(fault);
    at_s += static_cast<std::int64_t>(below(4) == 0 ? below(900) : below(30));
  }
  return schedule;
}

class SimulatedLaunch {
 public:
  static constexpr std::int64_t second = 1'000'000'000, start_s = 4, ask_s = 1, wait_s = 5;

  explicit SimulatedLaunch(LaunchSchedule schedule)
      : schedule_(std::move(schedule)),
        mind_({.own_host = "h0", .program = "holdfast", .ranks_on = [](const auto& hosts, int least) {
                 int room = 0;
                 for (const auto& host : hosts) room += host.answers ? host.slots : 0;
                 return room >= std::max(least, 4) ? room : 0;
               }}) {
    for (std::size_t i = 0; i < 4; ++i) list_.push_back({.name = fmt::format("h{}", i), .slots = 2});
    mind_.name_hosts(0, list_);
  }

  // Returns what does not hold; empty: all does.
  std::string run() {
    const std::int64_t last_s = schedule_.empty() ? 0 : schedule_.back().at_s;
    const std::int64_t until_s = last_s + 300;
    while (now_s_ < until_s && wrong_.empty() && mind_.phase() != LaunchPhase::end) step();
    return wrong_;
  }

 private:
  using Kind = LaunchFault::Kind;
  struct SimulatedHost {
    bool fit = true, up = true, lies = false;
    bool did_something = false;
  };

  void pass(std::int64_t duration_s) {
    const std::int64_t until_s = now_s_ + duration_s;
    while (next_ < schedule_.size() && schedule_[next_].at_s <= until_s) {
      now_s_ = std::max(now_s_, schedule_[next_].at_s);
      happen(schedule_[next_++]);
    }
    now_s_ = until_s;
    check_liveness();
  }

  void happen(const LaunchFault& fault) {
    SimulatedHost& host = hosts_[fault.host];
    last_fault_s_ = now_s_;
    const auto link = std::minmax(fault.host, fault.other);
    host.did_something =
        host.did_something || (fault.kind != Kind::mpirun_dies && fault.kind != Kind::inputs_wrong);
    if (fault.kind == Kind::cut || fault.kind == Kind::mend) hosts_[fault.other].did_something = true;
    const bool is_used = used_.contains(fault.host);
    switch (fault.kind) {
      case Kind::unfit:
        host.fit = false, host.lies = false;
        break;
      case Kind::lies:
        host.fit = false, host.lies = true;
        break;
      case Kind::fit:
        host.fit = true;
        break;
      case Kind::down:
        host.up = fault.host == 0;
        breaks_ = breaks_ || (is_used && !host.up);
        break;
      case Kind::up:
        host.up = true;
        break;
      case Kind::cut:
        if (fault.host != fault.other) cuts_.insert(link);
        break;
      case Kind::mend:
        cuts_.erase(link);
        break;
      case Kind::ranks_die:
        if (is_used) died_.insert(fault.host);
        break;
      case Kind::mpirun_dies:
        breaks_ = true;
        break;
      case Kind::inputs_wrong:
        inputs_wrong_ = true;
        break;
    }
  }

  void ask() {
    pass(ask_s);
    std::vector<HostAnswer> answers;
    for (const SimulatedHost& host : hosts_) answers.push_back(answer_of(host));
    shown_.clear();
    for (const auto& [one, other] : cuts_) {
      const bool attend = answers[one].code == 0 && answers[other].code == 0;
      if (attend) shown_.push_back({.from = list_[one].name, .of = list_[other].name, .where = "10.0.0.1"});
    }
    mind_.heard(now(), answers, shown_);
    take_news();
  }
  static HostAnswer answer_of(const SimulatedHost& host) {
    if (!host.up) return {};
    return host.fit || host.lies ? HostAnswer{.code = 0}
                                 : HostAnswer{.code = 4, .output = "here\nits data are gone"};
  }

  void step() {
    ask();
    const LaunchMind::Choice choice = mind_.choose(now());
    take_news();
    if (!choice.starts) return choice.sentence.empty() ? pass(wait_s) : void();
    train(choice.hosts);
  }

  void train(const std::vector<LaunchHost>& hosts) {
    ScaleUp::Ranks ranks;
    used_.clear(), died_.clear(), breaks_ = false;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      if (hosts[i].answers) used_.insert(i), ranks[hosts[i].name] = 2;
    }
    for (const LinkFault& link : shown_) {
      if (ranks.contains(link.from) && ranks.contains(link.of))
        wrong_ = fmt::format("a start has {} and {}, which do not reach each other", link.from, link.of);
    }
    mind_.begins(now(), ranks, static_cast<int>(2 * ranks.size()), false);
    pass(start_s);
    died_.clear();
    EndedStart ended = failed_to_begin();
    if (ended.end.fault.empty()) {
      mind_.trains(now());
      mind_.has(now(), ranks);
      trains_ = true;
      ended = watch(ranks);
    }
    trains_ = false;
    if (!ended.unfit.empty() || !ended.silent.empty()) count_left_out(ended);
    if (mind_.phase() == LaunchPhase::end || !wrong_.empty() || over_) return;
    const RestartDecision decision = mind_.ended(now(), ended, false);
    take_news();
    if (!decision.restart) return check_end(decision);
    pass((decision.delay_ms + 999) / 1000);
  }

  EndedStart failed_to_begin() {
    EndedStart ended;
    ended.end = {.record = StartEnd::Record::failed, .step_before = step_, .step = step_};
    for (const std::size_t host : used_) {
      if (inputs_wrong_) ended.end.code = ExitCode::config, ended.end.fault = "inputs";
      if (inputs_wrong_) continue;
      if (!hosts_[host].fit)
        ended.unfit.push_back({.host = list_[host].name, .sentence = "its data are gone"}),
            ended.end.code = ExitCode::data, ended.end.fault = "unfit";
    }
    if (!ended.end.fault.empty()) return ended;
    const bool is_down = std::ranges::any_of(used_, [&](std::size_t host) { return !hosts_[host].up; });
    if (is_down || breaks_) ended.end.record = StartEnd::Record::none, ended.end.fault = "mpirun ended";
    return ended;
  }

  // Trains until something ends the start.
  EndedStart watch(ScaleUp::Ranks ranks) {
    EndedStart ended;
    ended.end = {.record = StartEnd::Record::failed, .step_before = step_};
    const std::int64_t end_s = (schedule_.empty() ? 0 : schedule_.back().at_s) + 301;
    while (true) {
      pass(2);
      ended.end.step = ++step_;
      if (now_s_ > end_s) return over_ = true, ended;
      for (const auto& [one, other] : cuts_) {
        if (!used_.contains(one) || !used_.contains(other)) continue;
        ended.silent.push_back({.from = list_[one].name, .of = list_[other].name});
        ended.silent.push_back({.from = list_[other].name, .of = list_[one].name});
      }
      if (!ended.silent.empty() || breaks_) return ended.end.fault = "lost", ended;
      for (const std::size_t host : std::exchange(died_, {}))
        ranks.erase(list_[host].name), used_.erase(host);
      if (2 * ranks.size() < 4) return ended.end.fault = "too few", ended;
      mind_.has(now(), ranks);
      take_news();
      const std::vector<LaunchHost> asked = mind_.candidates(now());
      if (asked.empty()) continue;
      std::vector<HostAnswer> answers;
      for (const SimulatedHost& host : hosts_) answers.push_back(answer_of(host));
      const bool grows = mind_.is_worth_another_start(now(), asked, answers);  // before they meet
      take_news();
      if (!grows) continue;
      mind_.leaves();
      ended.is_as_asked = true;
      ended.end.fault = "as asked";
      return ended;
    }
  }

  void count_left_out(const EndedStart& ended) {
    for (const UnfitHost& unfit : ended.unfit) {
      std::vector<std::int64_t>& times = cost_s_[unfit.host];
      times.push_back(now_s_);
      const auto recent =
          std::ranges::count_if(times, [&](std::int64_t at_s) { return at_s > now_s_ - 3'600; });
      if (recent > 7) wrong_ = fmt::format("{} cost {} starts in an hour", unfit.host, recent);
    }
  }

  void take_news() {
    for (const LaunchNews& news : mind_.take_news()) {
      if (!news.excluded.has_value()) continue;
      const auto index = static_cast<std::size_t>(news.excluded->name[1] - '0');
      if (!hosts_[index].did_something)
        wrong_ = fmt::format("{} did nothing: {}", news.excluded->name, news.sentence);
    }
  }

  void check_end(const RestartDecision& decision) {
    const int code = static_cast<int>(decision.code);
    const bool is_unfit = std::ranges::none_of(used_, [&](std::size_t host) { return hosts_[host].fit; });
    const bool fails_alone = inputs_wrong_ || (step_ == 0 && is_unfit);
    if (code >= 2 && code <= 5 && !fails_alone)
      wrong_ = fmt::format("ended with {}: {}", code, decision.sentence);
    over_ = true;
  }

  // A set of hosts with room for the run is fit, and connected, and each of them may be used at least in need.
  void check_liveness() {
    if (trains_) idle_since_s_ = now_s_;
    if (trains_ || inputs_wrong_ || over_ || !wrong_.empty()) return;
    std::vector<std::size_t> fit;
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      const bool is_spent = mind_.scale_up().pauses().is_condemned(list_[i].name);
      if (!is_spent && hosts_[i].up && hosts_[i].fit) fit.push_back(i);
      // An unfit host that says it is fit may be tried first, and each cut link too.
      if (hosts_[i].lies && !hosts_[i].fit) return;
    }
    if (fit.size() < 2 || !cuts_.empty()) return;
    if (now_s_ - std::max(last_fault_s_, idle_since_s_) > 60)
      wrong_ = fmt::format("nothing trains {} s after the last fault", now_s_ - last_fault_s_);
  }
  std::int64_t now() const { return now_s_ * second; }

  LaunchSchedule schedule_;
  LaunchMind mind_;
  std::vector<LaunchHost> list_;
  std::vector<SimulatedHost> hosts_ = std::vector<SimulatedHost>(4);
  std::set<std::pair<std::size_t, std::size_t>> cuts_;
  std::vector<LinkFault> shown_;  // by the newest question
  std::set<std::size_t> used_, died_;
  bool breaks_ = false, trains_ = false, inputs_wrong_ = false, over_ = false;
  std::size_t next_ = 0;
  std::int64_t now_s_ = 0, last_fault_s_ = 0, idle_since_s_ = 0;
  std::uint64_t step_ = 0;
  std::map<std::string, std::vector<std::int64_t>> cost_s_;
  std::string wrong_;
};

}  // namespace holdfast::test
