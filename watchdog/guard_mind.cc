#include "watchdog/guard_mind.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "runtime/core/check.h"

namespace holdfast::watchdog {
namespace {

using Kind = GuardAction::Kind;

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t report_for_ns = 500 * ms, distant_look_ns = 500 * ms;
constexpr char stopped = 'T';

}  // namespace

GuardMind::GuardMind(const GuardMindSettings& settings, std::string host, std::size_t slots)
    : settings_(settings), host_(std::move(host)), watched_(slots) {}

bool GuardMind::begin_tick(std::int64_t now_ns, std::int64_t wall_us) {
  const std::int64_t passed_ms = (now_ns - now_ns_) / ms;
  const std::int64_t wall_passed_ms = (wall_us - wall_us_) / 1'000;
  const std::int64_t limit_ms = settings_.tick_ms + settings_.late_ms;
  const bool late = std::exchange(ticks_, true) && (passed_ms > limit_ms || wall_passed_ms > limit_ms);
  now_ns_ = now_ns;
  wall_us_ = wall_us;
  // This process had no processor, so the ranks may have had none, either.
  if (late) {
    begin_anew({});
    note_late(std::max(passed_ms, wall_passed_ms));
  }
  return late;
}

void GuardMind::note_late(std::int64_t passed_ms) {
  constexpr std::int64_t forgotten_ns = 60'000 * ms;
  if (now_ns_ - late_.last_ns > forgotten_ns) late_ = {.since_ns = now_ns_ - passed_ms * ms};
  ++late_.count;
  late_.last_ns = now_ns_;
  late_.longest_ms = std::max(late_.longest_ms, passed_ms - settings_.tick_ms);
}

void GuardMind::report_late(GuardActions& actions) {
  constexpr const char* key = "late ticks";
  if (late_.count < settings_.late_told || now_ns_ < late_pauses_.until_ns(key)) return;
  late_pauses_.failed(key, now_ns_);
  actions.push_back(
      {.kind = GuardAction::Kind::say,
       .text = fmt::format("host {}: the guard came late {} times in {:.0f} s, by up to {:.1f} s: it had no "
                           "processor, or the machine "
                           "was suspended. It discards what it has seen each time, so ranks that hang are "
                           "ended later, or not at "
                           "all; leave a processor to the system (threads), or look at what else runs there",
                           host_, late_.count, static_cast<double>(now_ns_ - late_.since_ns) / 1e9,
                           static_cast<double>(late_.longest_ms) / 1e3)});
  late_ = {};
}

// Evidence begins anew, but for those that are stopped: nothing excuses them. Without `processes` it does for
// all.
void GuardMind::begin_anew(std::span<const SlotProcess> processes) {
  anew_ns_ = now_ns_;
  for (std::size_t index = 0; index < watched_.size(); ++index) {
    if (processes.empty() || processes[index].state != stopped) watched_[index].evidence_since_ns = now_ns_;
  }
  suspected_ = {};
}

bool GuardMind::wants_work(std::size_t index, const SlotView& slot) const {
  const Watched& watched = watched_[index];
  if (slot.process == 0 || (watched.is_of(slot) && watched.ended)) return false;
  SignsOfLife life = watched.is_of(slot) ? watched.life : SignsOfLife();
  life.look_at_board(slot, now_ns_);
  return life.wants_process_look(slot, now_ns_);
}

namespace {

// Returns whether a process ends so by what it does itself. SIGKILL is from a system without memory, or from a person,
// whatever it runs.
bool is_crash(const ProcessEnd& end) {
  constexpr std::array signals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  return end.killed && std::ranges::find(signals, end.code) != signals.end();
}

// Returns how a process ended that has run a kernel of a plug-in. Which of its threads has crashed is not known: it may be
// another.
KernelEnd kernel_end_of(const SlotLook& look) {
  return look.end.has_value() && is_crash(*look.end) ? KernelEnd::crash : KernelEnd::other;
}

// Returns "signal 11 (SIGSEGV), while it ran kernel mine of rotary, of the plug-in mine/kernel.so"; empty: not known.
std::string cause_of(const SlotLook& look) {
  if (!look.end.has_value()) return {};
  const bool is_in_plugin = !look.slot.plugin.empty() && kernel_end_of(look) == KernelEnd::crash;
  return text_of(*look.end) + (is_in_plugin ? ", while it ran " + text_of(look.slot.plugin) : "");
}

}  // namespace

void GuardMind::look_at(std::size_t index, const SlotLook& look) {
  const SlotView& slot = look.slot;
  Watched& watched = watched_[index];
  if (!watched.is_of(slot)) watched = {.identity = slot.identity()};
  if (!watched.lives()) return;
  watched.life.look_at_board(slot, now_ns_);
  if (look.work.has_value()) watched.life.look_at_process(*look.work, now_ns_, slot.wait_begun_ns > 0);
  if (!look.ended) return;
  watched.ended = true;
  if (slot.left) return;
  dead_.any = true;
  if (slot.phase == Phase::spare) dead_.lost_spares.push_back({.slot = slot, .host = host_});
  if (watched.killed_ns != 0) return;
  dead_.ranks.push_back({.slot = static_cast<std::uint32_t>(index),
                         .rank = slot.launched_rank,
                         .cause = cause_of(look),
                         .step = slot.completed_step(),
                         .fault = fault_of(slot, kernel_end_of(look), host_)});
}

// Tells of all in one sentence for each cause. The console hears of those whose cause is known; of the others
// the ranks that go on and the launcher say as much as can be said.
GuardActions GuardMind::report_deaths(std::span<const Death> deaths) const {
  std::vector<std::string> causes;
  for (const Death& death : deaths) {
    if (std::ranges::find(causes, death.cause) == causes.end()) causes.push_back(death.cause);
  }
  std::string all, known;
  for (const std::string& cause : causes) {
    std::string ranks;
    for (const Death& death : deaths) {
      if (death.cause == cause) ranks += fmt::format("{}rank {}", ranks.empty() ? "" : ", ", death.rank);
    }
    const std::string sentence =
        fmt::format("{} (host {}) died{}{}", ranks, host_, cause.empty() ? "" : ": ", cause);
    all += fmt::format("{}{}", all.empty() ? "" : "; ", sentence);
    if (!cause.empty()) known += fmt::format("{}{}", known.empty() ? "" : "; ", sentence);
  }
  GuardActions actions;
  // First: those that go on wait for it.
  for (const Death& death : deaths) {
    if (!death.fault.kernel.empty())
      actions.push_back(
          {.kind = Kind::judge_kernel, .slot = death.slot, .rank = death.rank, .fault = death.fault});
  }
  if (!all.empty()) actions.push_back({.kind = Kind::take_flight, .text = all});
  if (!known.empty()) actions.push_back({.kind = Kind::say, .text = known});
  for (const Death& death : deaths) {
    if (death.cause.empty()) continue;
    actions.push_back({.kind = Kind::report_end,
                       .slot = death.slot,
                       .rank = death.rank,
                       .text = death.cause,
                       .step = death.step});
  }
  return actions;
}

GuardActions GuardMind::end_look(std::span<const SlotProcess> processes, bool has_peers) {
  GuardActions actions = post_lost_spares(std::exchange(dead_.lost_spares, {}));
  if (std::exchange(dead_.any, false) && has_peers) reported_.since_ns = now_ns_;
  for (GuardAction& action : report_deaths(std::exchange(dead_.ranks, {})))
    actions.push_back(std::move(action));
  if (wants_processes()) {
    HF_CHECK(processes.size() == watched_.size());
    ended_ = count_ended();
    begin_anew(processes);
  }
  return actions;
}

GuardActions GuardMind::post_lost_spares(std::span<const WatchedRank> spares) {
  if (spares.empty()) return {};
  std::string names;
  for (const WatchedRank& spare : spares) {
    names +=
        fmt::format("{}rank {} (host {})", names.empty() ? "" : ", ", spare.slot.launched_rank, spare.host);
  }
  return {{.kind = Kind::post_lost_spares, .rank = spares.front().slot.launched_rank, .text = names}};
}

std::size_t GuardMind::count_ended() const {
  return static_cast<std::size_t>(std::ranges::count(watched_, true, &Watched::ended));
}

bool GuardMind::nobody_left() const {
  return std::ranges::none_of(watched_, &Watched::lives);
}

bool GuardMind::may_leave(std::int64_t now_ns) const {
  return nobody_left() && now_ns - reported_.since_ns > report_for_ns;
}

WatchedRank GuardMind::evidence_of(std::size_t index, const SlotView& slot) const {
  return {.slot = slot,
          .host = host_,
          .own_host = true,
          .stopped_since_ns = watched_[index].life.stopped_since_ns(),
          .ended = watched_[index].ended,
          .evidence_since_ns = watched_[index].evidence_since_ns};
}

// Cheap, for the ticks in which there is nothing to see.
bool GuardMind::own_may_hang(const HostEvidence& evidence) const {
  for (std::size_t index = 0; index < watched_.size(); ++index) {
    if (watched_[index].lives() && may_hang(evidence_of(index, evidence.slots[index]), now_ns_)) return true;
  }
  return false;
}

bool GuardMind::distant_may_hang(const HostEvidence& evidence) const {
  return std::ranges::any_of(evidence.distant, [&](WatchedRank rank) {
    rank.evidence_since_ns = anew_ns_;
    return may_hang(rank, now_ns_);
  });
}

bool GuardMind::is_distant_look_due() const {
  return now_ns_ - distant_.look_ns > distant_look_ns;
}

bool GuardMind::wants_distant(const HostEvidence& evidence) const {
  return distant_.may_hang || is_distant_look_due() || own_may_hang(evidence);
}

bool GuardMind::wants_processes(const HostEvidence& evidence) const {
  if (std::ranges::any_of(watched_, [&](const Watched& each) { return resists(each); })) return true;
  if (std::ranges::any_of(watched_, &Watched::is_dying)) return false;
  if (!evidence.leaves_because_of.empty()) return true;
  return own_may_hang(evidence) || (is_distant_look_due() ? distant_may_hang(evidence) : distant_.may_hang);
}

bool GuardMind::somebody_may_hang(const HostEvidence& evidence) {
  if (own_may_hang(evidence)) return true;
  if (is_distant_look_due()) {
    distant_.look_ns = now_ns_;
    distant_.may_hang = distant_may_hang(evidence);
  }
  return distant_.may_hang;
}

GuardActions GuardMind::find_hangs(const HostEvidence& evidence) {
  HF_CHECK(evidence.slots.size() == watched_.size());
  GuardActions actions;
  report_late(actions);
  look_at_killed(evidence, actions);
  report_storage(evidence, actions);
  if (!evidence.leaves_because_of.empty()) {
    leave(evidence, actions);
  } else if (somebody_may_hang(evidence)) {
    find_hang(evidence, actions);
  } else {
    suspected_ = {};
  }
  return actions;
}

// Returns whether the process has been dying for so long that it matters how much memory it still has.
bool GuardMind::resists(const Watched& watched) const {
  return !reported_.that_one_stays && watched.killed_ns != 0 && !watched.ended &&
         now_ns_ - watched.killed_ns >= settings_.kill_patience_ms * ms;
}

// A process that the system holds, for a device or a dead file system, keeps its peers waiting.
void GuardMind::look_at_killed(const HostEvidence& evidence, GuardActions& actions) {
  for (std::size_t index = 0; index < watched_.size(); ++index) {
    const Watched& each = watched_[index];
    if (!resists(each)) continue;
    HF_CHECK(evidence.processes.size() == watched_.size());
    if (now_ns_ - each.killed_ns < death_patience_ns(settings_.kill_patience_ms * ms, each.killed_bytes,
                                                     evidence.processes[index].resident_bytes))
      continue;
    reported_.that_one_stays = true;
    return end_all(fmt::format("process {} (host {}) does not die of SIGKILL: the system holds it",
                               each.identity.id, host_),
                   evidence, actions);
  }
}

// Once, until nobody waits so any more.
void GuardMind::report_storage(const HostEvidence& evidence, GuardActions& actions) {
  std::vector<WatchedRank> ranks;
  for (std::size_t index = 0; index < watched_.size(); ++index) {
    const SlotView& slot = evidence.slots[index];
    if (watched_[index].identity.id != 0 && slot.storage_begun_ns != 0)
      ranks.push_back(evidence_of(index, slot));
  }
  const std::string sentence =
      ranks.empty() ? "" : storage_sentence(ranks, now_ns_, settings_.storage_quiet_ms * ms);
  if (!sentence.empty() && !reported_.storage) actions.push_back({.kind = Kind::say, .text = sentence});
  reported_.storage = !ranks.empty() && (reported_.storage || !sentence.empty());
}

void GuardMind::find_hang(const HostEvidence& evidence, GuardActions& actions) {
  if (std::ranges::any_of(watched_, &Watched::is_dying)) return;  // one after the other
  HF_CHECK(evidence.processes.size() == watched_.size());
  std::vector<WatchedRank> ranks;
  std::vector<std::size_t> slots;
  for (std::size_t index = 0; index < watched_.size(); ++index) {
    if (watched_[index].identity.id == 0) continue;
    ranks.push_back(evidence_of(index, evidence.slots[index]));
    ranks.back().stopped = evidence.processes[index].state == stopped;
    if (!ranks.back().stopped) ranks.back().stopped_since_ns = 0;  // it was let go on after that look
    slots.push_back(index);
  }
  for (const WatchedRank& rank : evidence.distant) {
    ranks.push_back(rank);
    ranks.back().evidence_since_ns = anew_ns_;
  }
  const HangReport report = find_hung_rank(ranks, now_ns_, waiting_silent_ns);
  std::vector<HangReport::Another> hung = report.others;
  hung.insert(hung.begin(),
              {.index = report.index, .sentence = report.sentence, .in_plugin = report.in_plugin});
  Suspicion suspicion = {.kind = report.kind, .indices = {}};
  for (const HangReport::Another& each : hung) suspicion.indices.push_back(each.index);
  const bool again = suspicion == suspected_;
  suspected_ = std::move(suspicion);
  if (report.kind == HangReport::Kind::none || !again) return;
  if (report.kind == HangReport::Kind::deadlock) return end_deadlock(report, evidence, actions);
  std::erase_if(hung, [&](const HangReport::Another& each) { return !ranks[each.index].own_host; });
  for (HangReport::Another& each : hung) each.index = slots[each.index];
  end(hung, evidence, actions);
}

// Ends the ranks that hang. One record says what all were at, before any of them has gone. `index`: of the slot.
void GuardMind::end(std::span<const HangReport::Another> hung, const HostEvidence& evidence,
                    GuardActions& actions) {
  std::string sentences;
  for (const HangReport::Another& each : hung)
    sentences += fmt::format("{}{}", sentences.empty() ? "" : "; ", each.sentence);
  if (!hung.empty()) actions.push_back({.kind = Kind::take_flight, .text = sentences});
  const auto rank_of = [&](const HangReport::Another& each) {
    return evidence.slots[each.index].launched_rank;
  };
  for (const HangReport::Another& each : hung)
    actions.push_back({.kind = Kind::post_hang, .rank = rank_of(each), .text = each.sentence});
  for (const HangReport::Another& each : hung) {
    const SlotView& slot = evidence.slots[each.index];
    if (slot.plugin.empty()) continue;
    actions.push_back({.kind = Kind::judge_kernel,
                       .slot = static_cast<std::uint32_t>(each.index),
                       .rank = slot.launched_rank,
                       .fault = fault_of(slot, each.in_plugin ? KernelEnd::hang : KernelEnd::other, host_)});
  }
  for (const HangReport::Another& each : hung) {
    kill(each.index, evidence, actions);
    actions.push_back({.kind = Kind::say, .text = each.sentence + "; it is ended"});
    actions.push_back({.kind = Kind::report, .rank = rank_of(each), .text = each.sentence});
  }
}

// Ends the ranks of this host, which nothing but a link to other hosts has failed.
void GuardMind::leave(const HostEvidence& evidence, GuardActions& actions) {
  if (nobody_left() || std::ranges::any_of(watched_, &Watched::is_dying)) return;
  HF_CHECK(evidence.processes.size() == watched_.size());
  end_all(
      fmt::format("host {} and {} {} do not hear each other, and the other hosts hear both; without host {} "
                  "the others may go on",
                  host_, evidence.leaves_because_of.size() == 1 ? "host" : "hosts",
                  fmt::join(evidence.leaves_because_of, ", "), host_),
      evidence, actions);
}

// Ends the ranks of this host if it is among those whose end lets the others go on.
void GuardMind::end_deadlock(const HangReport& report, const HostEvidence& evidence, GuardActions& actions) {
  const bool is_suspect = std::ranges::find(report.hosts, host_) != report.hosts.end();
  if (!is_suspect && !report.hosts.empty()) return;
  const std::string why = is_suspect ? fmt::format("; without host {} the others may go on", host_) : "";
  end_all(report.sentence + why, evidence, actions);
}

void GuardMind::end_all(const std::string& sentence, const HostEvidence& evidence, GuardActions& actions) {
  actions.push_back({.kind = Kind::take_flight, .text = sentence});
  actions.push_back({.kind = Kind::post_hang, .rank = -1, .text = sentence});
  for (std::size_t index = 0; index < watched_.size(); ++index) {
    if (watched_[index].lives()) kill(index, evidence, actions);
  }
  actions.push_back({.kind = Kind::say, .text = sentence + "; all ranks of this host are ended"});
  actions.push_back({.kind = Kind::report, .rank = -1, .text = sentence});
}

void GuardMind::kill(std::size_t index, const HostEvidence& evidence, GuardActions& actions) {
  Watched& watched = watched_[index];
  if (watched.killed_ns == 0) {
    watched.killed_ns = now_ns_;
    watched.killed_bytes = evidence.processes[index].resident_bytes;
  }
  actions.push_back({.kind = Kind::kill, .slot = static_cast<std::uint32_t>(index)});
}

}  // namespace holdfast::watchdog
