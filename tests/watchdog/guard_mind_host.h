// MindHost: a host on a clock that the test moves. It gives a GuardMind what a guard would give it, tick by
// tick, and does what the mind says: a process that is killed has ended by the next tick.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/watchdog/milliseconds.h"
#include "watchdog/guard_mind.h"

namespace holdfast::test {

inline constexpr std::int64_t tick_ms = 25, for_ever_ms = 1'000'000'000;

// Host "a". Its ranks have the numbers of their slots. Times are in ms since the guard began.
class MindHost {
 public:
  using Kind = GuardAction::Kind;
  static constexpr std::uint64_t mebibyte = 1'048'576;

  struct Rank {
    SlotView slot = {};
    SlotProcess process = {.state = 'S', .resident_bytes = mebibyte};
    ProcessWork work = {};
    bool looks = false;  // while it waits
    bool held = false;   // by the system: SIGKILL does not end it
    std::optional<ProcessEnd> end = {};
    bool ended() const { return process.state == 'X'; }
  };
  struct Done {
    std::int64_t at_ms;
    GuardAction action;
  };

  explicit MindHost(int count, const GuardMindSettings& settings = {})
      : ranks(static_cast<std::size_t>(count)), mind(settings, "a", ranks.size()) {
    for (int rank = 0; rank < count; ++rank) {
      slot(rank).process = 100 + rank;
      slot(rank).started_ticks = 7;
      slot(rank).launched_rank = rank;
      computes(rank, for_ever_ms);
    }
    mind.begin_tick(now_ns(), wall_ms * 1'000);
    look();
  }

  Rank& rank(int number) { return ranks[static_cast<std::size_t>(number)]; }
  SlotView& slot(int number) { return rank(number).slot; }
  void computes(int number, std::int64_t deadline_ms) {
    SlotView& slot = this->slot(number);
    slot.phase = Phase::step;
    slot.step = 9;
    slot.deadline_ns = deadline_ms * ms;
    slot.begun_ns = slot.heartbeat_ns = now_ns();
    slot.wait_begun_ns = 0;
    rank(number).looks = false;
  }
  void waits(int number, std::int64_t deadline_ms) {
    computes(number, deadline_ms);
    slot(number).wait_operation = "an all-reduce";
    slot(number).wait_begun_ns = now_ns();
    rank(number).looks = true;
  }
  void stops(int number) {
    rank(number).process.state = 'T';
    rank(number).work.stopped = true;
    rank(number).looks = false;
  }
  void continues(int number) {
    rank(number).process.state = 'S';
    rank(number).work.stopped = false;
  }
  void dies(int number, std::optional<ProcessEnd> end = {}) {
    rank(number).process = {};
    rank(number).end = end;
  }

  // One tick of the guard, as long as that after the one before.
  void tick(std::int64_t passed_ms = tick_ms, std::int64_t wall_passed_ms = -1) {
    now_ms += passed_ms;
    wall_ms += wall_passed_ms < 0 ? passed_ms : wall_passed_ms;
    for (Rank& each : ranks) {
      if (each.looks) each.slot.heartbeat_ns = now_ns();
    }
    mind.begin_tick(now_ns(), wall_ms * 1'000);
    look();
    find_hangs();
  }
  void pass(
      std::int64_t duration_ms, const std::function<void()>& before_tick = [] {}) {
    for (std::int64_t passed_ms = 0; passed_ms < duration_ms; passed_ms += tick_ms) {
      before_tick();
      tick();
    }
  }

  std::vector<std::string> texts(Kind kind) const {
    std::vector<std::string> found;
    for (const Done& each : done) {
      if (each.action.kind == kind) found.push_back(each.action.text);
    }
    return found;
  }
  GuardActions actions() const {
    GuardActions found;
    for (const Done& each : done) found.push_back(each.action);
    return found;
  }
  // Slots, in the order in which they were killed.
  std::vector<std::uint32_t> killed() const {
    std::vector<std::uint32_t> found;
    for (const Done& each : done) {
      if (each.action.kind == Kind::kill) found.push_back(each.action.slot);
    }
    return found;
  }
  std::int64_t killed_ms(int number) const {
    const auto found = std::ranges::find_if(done, [&](const Done& each) {
      return each.action.kind == Kind::kill && each.action.slot == static_cast<std::uint32_t>(number);
    });
    return found == done.end() ? -1 : found->at_ms;
  }
  std::int64_t now_ns() const { return (now_ms + 1'000'000) * ms; }

  std::int64_t now_ms = 0, wall_ms = 5'000'000;
  std::vector<Rank> ranks;
  std::vector<WatchedRank> distant;
  bool has_peers = false;
  std::vector<std::string> leaves_because_of;
  int work_looks = 0, distant_looks = 0, process_looks = 0;
  std::vector<Done> done;
  GuardMind mind;

 private:
  std::vector<SlotProcess> processes() {
    ++process_looks;
    std::vector<SlotProcess> all;
    for (const Rank& each : ranks) all.push_back(each.process);
    return all;
  }
  void look() {
    for (std::size_t index = 0; index < ranks.size(); ++index) {
      Rank& each = ranks[index];
      SlotLook look = {.slot = each.slot, .ended = each.ended(), .end = each.end};
      if (mind.wants_work(index, each.slot)) {
        ++work_looks;
        look.work = each.work;
      }
      mind.look_at(index, look);
      each.slot.life_ns = mind.life_ns(index);
    }
    const bool wanted = mind.wants_processes();
    act(mind.end_look(wanted ? processes() : std::vector<SlotProcess>(), has_peers));
  }
  void find_hangs() {
    HostEvidence evidence;
    for (const Rank& each : ranks) evidence.slots.push_back(each.slot);
    evidence.leaves_because_of = leaves_because_of;
    if (mind.wants_distant(evidence)) {
      ++distant_looks;
      evidence.distant = distant;
    }
    if (mind.wants_processes(evidence)) evidence.processes = processes();
    act(mind.find_hangs(evidence));
  }
  void act(const GuardActions& actions) {
    for (const GuardAction& action : actions) {
      done.push_back({now_ms, action});
      if (action.kind == Kind::kill && !ranks[action.slot].held) ranks[action.slot].process = {};
    }
  }
};

}  // namespace holdfast::test
