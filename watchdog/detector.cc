#include "watchdog/detector.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "watchdog/fewest_hosts.h"

namespace holdfast::watchdog {
namespace {

// Condition of one rank, not yet compared with the others.
struct Condition {
  bool watched = false;  // it lives, and does not leave
  bool stuck = false;    // stopped, or says that it waits and does not look
  bool waits = false;    // and looks
  std::int64_t over_ns = 0;
};

// Formats a duration; never as 0 if it took any time.
std::string duration(std::int64_t nanoseconds) {
  const double seconds = static_cast<double>(nanoseconds) / 1e9;
  if (seconds < 0.001) return fmt::format("{:.1g} ms", seconds * 1e3);
  if (seconds < 0.01) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 1) return fmt::format("{} ms", nanoseconds / 1'000'000);
  return seconds < 100 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::int64_t begun_of(const WatchedRank& rank) {
  return std::max(rank.slot.begun_ns, rank.evidence_since_ns);
}

std::int64_t beat_of(const WatchedRank& rank) {
  return std::max(rank.slot.heartbeat_ns, begun_of(rank));
}

std::int64_t ceiling_of(const SlotView& slot) {
  return std::max(slot.ceiling_ns, slot.deadline_ns);
}

bool waits_for_storage(const WatchedRank& rank) {
  return rank.slot.storage_begun_ns > 0 && !rank.stopped;
}

std::int64_t over_ceiling_ns(const WatchedRank& rank, std::int64_t now_ns) {
  return now_ns - begun_of(rank) - ceiling_of(rank.slot);
}

// Returns how much longer than it may the rank has been stopped; negative where it is not.
std::int64_t over_stopped_ns(const WatchedRank& rank, std::int64_t now_ns) {
  if (rank.stopped_since_ns <= 0 || rank.slot.floor_ns <= 0) return std::numeric_limits<std::int64_t>::min();
  return now_ns - std::max(rank.stopped_since_ns, begun_of(rank)) - rank.slot.floor_ns;
}

// Returns how much longer than its deadline or its ceiling the rank has taken. Counts a spare by its beats, and all
// others by their signs of life. That a rank has just got what it waited for is one: those that it waited for may
// have taken longer than its own deadline.
std::int64_t over_phase_ns(const WatchedRank& rank, std::int64_t now_ns) {
  const SlotView& slot = rank.slot;
  if (slot.phase == Phase::spare) return now_ns - beat_of(rank) - slot.deadline_ns;
  const std::int64_t past_ceiling_ns = over_ceiling_ns(rank, now_ns);
  if (waits_for_storage(rank)) return past_ceiling_ns;
  const std::int64_t since_ns =
      std::max(slot.wait_begun_ns > 0 ? begun_of(rank) : beat_of(rank), slot.life_ns);
  return std::max(past_ceiling_ns, now_ns - since_ns - slot.deadline_ns);
}

std::int64_t over_ns(const WatchedRank& rank, std::int64_t now_ns) {
  if (rank.slot.deadline_ns <= 0) return 0;
  return std::max(over_phase_ns(rank, now_ns), over_stopped_ns(rank, now_ns));
}

// Returns the rank that has waited for longest beyond its deadline to come together with the others in a recovery; null:
// none has.
const WatchedRank* longest_in_recovery(std::span<const WatchedRank> ranks, std::int64_t now_ns) {
  const WatchedRank* longest = nullptr;
  for (const WatchedRank& rank : ranks) {
    const SlotView& slot = rank.slot;
    if (slot.process <= 0 || slot.left || rank.ended) continue;
    if (slot.phase != Phase::recovery || slot.wait_begun_ns <= 0 || over_ns(rank, now_ns) <= 0) continue;
    if (longest == nullptr || over_ns(rank, now_ns) > over_ns(*longest, now_ns)) longest = &rank;
  }
  return longest;
}

// Returns how much longer than those may wait that are in a recovery a rank has kept them waiting in a step, without a
// sign of life. They end where it has not come by the end of their time, whatever its step may take.
std::int64_t over_recovery_ns(const WatchedRank& rank, const WatchedRank* recovering, std::int64_t now_ns) {
  const bool works = rank.slot.phase == Phase::step || rank.slot.phase == Phase::evaluation;
  if (recovering == nullptr || !works || waits_for_storage(rank))
    return std::numeric_limits<std::int64_t>::min();
  const std::int64_t since_ns = std::max({begun_of(*recovering), beat_of(rank), rank.slot.life_ns});
  return now_ns - since_ns - recovering->slot.deadline_ns;
}

Condition condition_of(const WatchedRank& rank, const WatchedRank* recovering, std::int64_t now_ns,
                       std::int64_t silent_ns) {
  const SlotView& slot = rank.slot;
  Condition condition;
  condition.watched = slot.process > 0 && !slot.left && !rank.ended;
  if (!condition.watched) return condition;
  const bool says_that_it_waits = slot.wait_begun_ns > 0;
  const bool silent = now_ns - beat_of(rank) > silent_ns;
  condition.stuck = rank.stopped || (says_that_it_waits && silent);
  condition.waits = says_that_it_waits && !condition.stuck;
  condition.over_ns = over_ns(rank, now_ns);
  if (!condition.waits)
    condition.over_ns = std::max(condition.over_ns, over_recovery_ns(rank, recovering, now_ns));
  return condition;
}

std::string who(const WatchedRank& rank) {
  return fmt::format("rank {} (host {})", rank.slot.launched_rank, rank.host);
}

std::string at(const SlotView& slot) {
  return slot.phase == Phase::step ? fmt::format("step {}", slot.step)
                                   : fmt::format("{}, step {}", name_of(slot.phase), slot.step);
}

std::string awaited(const SlotView& slot) {
  std::string text = slot.wait_operation.empty() ? "the others" : slot.wait_operation;
  if (slot.wait_number > 0) text += fmt::format(" (number {})", slot.wait_number);
  if (slot.wait_peer >= 0) text += fmt::format(" with rank {}", slot.wait_peer);
  return text;
}

// Says what its time is compared with.
std::string measure_of(const SlotView& slot) {
  if (slot.median_ns == 0)
    return slot.deadline_ns > 0 ? duration(slot.deadline_ns) + " are the limit" : "others wait for it";
  const char* of_kind = slot.kind == WorkKind::first         ? " for a first one"
                        : slot.kind == WorkKind::beside_save ? " beside a save"
                                                             : "";
  return duration(slot.median_ns) + " are usual" + of_kind;
}

// Describes the rank's signs of life, where there were some; a spare has heartbeats instead.
std::string life_clause(const WatchedRank& rank, std::int64_t now_ns) {
  const SlotView& slot = rank.slot;
  if (slot.phase == Phase::spare)
    return rank.stopped ? "" : fmt::format("; no sign of life for {}", duration(now_ns - beat_of(rank)));
  if (slot.life_ns <= begun_of(rank)) return {};
  const std::int64_t quiet_ns = now_ns - slot.life_ns;
  if (quiet_ns > slot.deadline_ns) return fmt::format("; no sign of life for {}", duration(quiet_ns));
  if (over_ceiling_ns(rank, now_ns) <= 0) return {};
  return fmt::format("; there are signs of life, but {} are the most", duration(ceiling_of(slot)));
}

// Returns whether nothing but the kernel of a plug-in keeps the rank.
bool hangs_in_plugin(const WatchedRank& rank) {
  return rank.slot.wait_begun_ns <= 0 && !waits_for_storage(rank) && rank.slot.phase != Phase::spare &&
         !rank.stopped && !rank.slot.plugin.empty();
}

std::string hang_sentence(const WatchedRank& rank, const WatchedRank* recovering, std::int64_t now_ns) {
  const SlotView& slot = rank.slot;
  std::string text = fmt::format("{} hangs: {} for {}, {}", who(rank), at(slot),
                                 duration(now_ns - begun_of(rank)), measure_of(slot));
  text += life_clause(rank, now_ns);
  if (rank.stopped) text += "; it is stopped";
  if (rank.stopped && over_phase_ns(rank, now_ns) <= 0 && over_stopped_ns(rank, now_ns) > 0)
    text += fmt::format(", which it may be for {}", duration(slot.floor_ns));
  if (slot.wait_begun_ns > 0) {
    text += fmt::format("; it waits for {}", awaited(slot));
    if (!rank.stopped) text += fmt::format(" and has not looked for {}", duration(now_ns - beat_of(rank)));
  } else if (waits_for_storage(rank)) {
    text += fmt::format("; it waits for storage ({})", slot.storage_what);
  } else if (slot.phase != Phase::spare && !rank.stopped) {
    text +=
        hangs_in_plugin(rank) ? fmt::format("; it runs {}", text_of(slot.plugin)) : "; it waits for nobody";
  }
  if (over_ns(rank, now_ns) <= 0 && over_recovery_ns(rank, recovering, now_ns) > 0)
    text +=
        fmt::format("; others wait for it in a recovery for {}", duration(now_ns - begun_of(*recovering)));
  return text;
}

std::string no_sink_sentence(std::span<const WatchedRank> ranks, const std::vector<std::size_t>& over,
                             std::int64_t now_ns) {
  constexpr std::size_t shown = 2;  // what fits on the board
  std::string text = "all ranks wait for each other:";
  for (std::size_t each = 0; each < std::min(shown, over.size()); ++each) {
    const WatchedRank& rank = ranks[over[each]];
    text += fmt::format("{} rank {}, {}, for {} for {}", each > 0 ? ";" : "", rank.slot.launched_rank,
                        at(rank.slot), awaited(rank.slot), duration(now_ns - rank.slot.wait_begun_ns));
  }
  if (over.size() > shown) text += fmt::format("; and {} more", over.size() - shown);
  return text;
}

// Returns which hosts wait for each other. Where some do so in both directions, only those count: the others may wait
// because of them. All ranks count, whether they are over their time or not: which ones are changes from look to look.
std::vector<SilentPair> pairs_that_wait(std::span<const WatchedRank> ranks) {
  std::vector<SilentPair> pairs;
  for (const WatchedRank& waiter : ranks) {
    if (waiter.slot.wait_begun_ns <= 0 || waiter.ended) continue;
    const auto peer = std::ranges::find_if(
        ranks, [&](const WatchedRank& rank) { return rank.slot.launched_rank == waiter.slot.wait_peer; });
    if (peer == ranks.end() || peer->host == waiter.host) continue;
    pairs.push_back({.from = waiter.host, .of = peer->host});
  }
  std::vector<SilentPair> mutual;
  for (const SilentPair& pair : pairs) {
    if (std::ranges::find(pairs, SilentPair{.from = pair.of, .of = pair.from}) != pairs.end())
      mutual.push_back(pair);
  }
  return mutual.empty() ? pairs : mutual;
}

// Returns HangReport::hosts. All guards get the same, from the same facts.
std::vector<std::string> hosts_to_end(std::span<const WatchedRank> ranks,
                                      const std::vector<std::size_t>& over, std::int64_t now_ns) {
  constexpr std::int64_t patience =
      2;  // in deadlines: by then the guards of these hosts should have ended them
  std::map<int, std::string> by_rank;
  for (const WatchedRank& rank : ranks) by_rank.emplace(rank.slot.launched_rank, rank.host);
  for (const std::size_t each : over) {
    if (over_ns(ranks[each], now_ns) > patience * ranks[each].slot.deadline_ns) return {};
  }
  std::vector<LinkedHost> hosts;
  for (const auto& [rank, host] : by_rank) {
    if (std::ranges::find(hosts, host, &LinkedHost::name) == hosts.end()) hosts.push_back({.name = host});
  }
  if (!hosts.empty()) hosts.front().is_own = true;  // where mpirun usually runs
  return fewest_hosts(pairs_that_wait(ranks), hosts);
}

class Graph {
 public:
  Graph(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t silent_ns) : ranks_(ranks) {
    recovering_ = longest_in_recovery(ranks, now_ns);
    for (const WatchedRank& rank : ranks)
      conditions_.push_back(condition_of(rank, recovering_, now_ns, silent_ns));
  }

  // Returns the ranks that hang, the one that is over its time for longest first; empty if there is none.
  std::vector<std::size_t> hung() const {
    std::optional<std::size_t> found;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      if (is_sink(each) && (!found.has_value() || conditions_[each].over_ns > conditions_[*found].over_ns))
        found = each;
    }
    if (!found.has_value()) return {};
    std::vector<std::size_t> hung = {*found};
    if (is_learned(*found)) return hung;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      if (each != *found && !is_learned(each) && is_almost_sink(each)) hung.push_back(each);
    }
    if (hung.size() >= count_waiting()) hung.resize(1);
    return hung;
  }

  const WatchedRank* recovering() const { return recovering_; }

  // Returns those that wait for as long again as they may; none while somebody may be what they wait for: who
  // does not wait, or waits within a limit of its own, as the leader does for new ranks in a recovery while
  // the others are in their next step.
  std::vector<std::size_t> deadlocked_ranks() const {
    std::vector<std::size_t> over;
    std::uint32_t members = 0;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const Condition& one = conditions_[each];
      const SlotView& slot = ranks_[each].slot;
      members = std::max(members, slot.members);
      if (!one.watched || slot.phase == Phase::spare) continue;
      if (!one.waits) return {};
      if (slot.deadline_ns <= 0) continue;
      if (one.over_ns <= 0) return {};
      if (one.over_ns > slot.deadline_ns) over.push_back(each);
    }
    return ranks_.size() < members ? std::vector<std::size_t>() : over;
  }

 private:
  // Returns whether the rank is over its time for another reason than waiting for another rank, or keeps
  // others waiting beyond theirs.
  bool is_sink(std::size_t index) const {
    const Condition& one = conditions_[index];
    return one.watched && !one.waits && (one.over_ns > 0 || (one.stuck && is_awaited(index)));
  }
  // Allows for a tolerance: ranks that stopped at the same moment are not seen to be over their times in the
  // same tick.
  bool is_almost_sink(std::size_t index) const {
    constexpr std::int64_t parts = 10;
    const Condition& one = conditions_[index];
    return is_sink(index) ||
           (one.watched && !one.waits && one.over_ns > -ranks_[index].slot.deadline_ns / parts);
  }
  bool is_learned(std::size_t index) const {
    const SlotView& slot = ranks_[index].slot;
    return slot.median_ns > 0 || (slot.phase != Phase::step && slot.phase != Phase::evaluation);
  }
  std::size_t count_waiting() const {
    std::size_t count = 0;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const Condition& one = conditions_[each];
      if (one.watched && one.waits && ranks_[each].slot.phase != Phase::spare) ++count;
    }
    return count;
  }
  // Returns whether a rank that is over its time waits for this rank, or for one that it does not know.
  bool is_awaited(std::size_t index) const {
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const Condition& one = conditions_[each];
      const int peer = ranks_[each].slot.wait_peer;
      if (each == index || !one.waits || one.over_ns <= 0) continue;
      if (peer < 0 || peer == ranks_[index].slot.launched_rank) return true;
    }
    return false;
  }

  std::span<const WatchedRank> ranks_;
  const WatchedRank* recovering_ = nullptr;
  std::vector<Condition> conditions_;
};

}  // namespace

bool may_hang(const WatchedRank& rank, std::int64_t now_ns) {
  return over_ns(rank, now_ns) > 0;
}

HangReport find_hung_rank(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t silent_ns) {
  const Graph graph(ranks, now_ns, silent_ns);
  HangReport report;
  for (const std::size_t each : graph.hung()) {
    std::string sentence = hang_sentence(ranks[each], graph.recovering(), now_ns);
    if (report.kind == HangReport::Kind::none) {
      report = {.kind = HangReport::Kind::rank,
                .index = each,
                .sentence = std::move(sentence),
                .in_plugin = hangs_in_plugin(ranks[each])};
    } else {
      report.others.push_back(
          {.index = each, .sentence = std::move(sentence), .in_plugin = hangs_in_plugin(ranks[each])});
    }
  }
  if (report.kind != HangReport::Kind::none) return report;
  const std::vector<std::size_t> over = graph.deadlocked_ranks();
  if (over.empty()) return {};
  return {.kind = HangReport::Kind::deadlock,
          .index = 0,
          .sentence = no_sink_sentence(ranks, over, now_ns),
          .hosts = hosts_to_end(ranks, over, now_ns)};
}

std::string storage_sentence(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t quiet_ns) {
  std::string numbers;
  const WatchedRank* longest = nullptr;
  std::size_t count = 0;
  for (const WatchedRank& rank : ranks) {
    const SlotView& slot = rank.slot;
    const bool watched = slot.process > 0 && !slot.left && !rank.ended;
    if (!watched || !waits_for_storage(rank)) continue;
    if (now_ns - std::max(slot.storage_begun_ns, slot.life_ns) <= quiet_ns) continue;
    numbers += fmt::format("{}{}", count++ > 0 ? ", " : "", slot.launched_rank);
    if (longest == nullptr || slot.storage_begun_ns < longest->slot.storage_begun_ns) longest = &rank;
  }
  if (longest == nullptr) return {};
  return fmt::format("{} {} (host {}) {} for storage for {} ({}): nobody is ended for it before {}",
                     count > 1 ? "ranks" : "rank", numbers, longest->host, count > 1 ? "wait" : "waits",
                     duration(now_ns - longest->slot.storage_begun_ns), longest->slot.storage_what,
                     duration(ceiling_of(longest->slot)));
}

}  // namespace holdfast::watchdog
