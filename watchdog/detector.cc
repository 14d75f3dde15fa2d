#include "watchdog/detector.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "watchdog/deadlines.h"

namespace holdfast {
namespace {

// Over its time, but how it stands among the others is open.
struct Standing {
  bool watched = false;  // it lives, and does not leave
  bool stuck = false;    // stopped, or says that it waits and does not look
  bool waits = false;    // and looks
  std::int64_t over_ns = 0;
};

// Never 0 of what took some time.
std::string duration(std::int64_t nanoseconds) {
  const double seconds = static_cast<double>(nanoseconds) / 1e9;
  if (seconds < 0.001) return fmt::format("{:.1g} ms", seconds * 1e3);
  if (seconds < 0.01) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 1) return fmt::format("{} ms", nanoseconds / 1'000'000);
  return seconds < 100 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::int64_t begun_of(const WatchedRank& rank) {
  return std::max(rank.slot.begun_ns, rank.anew_ns);
}

std::int64_t beat_of(const WatchedRank& rank) {
  return std::max(rank.slot.beat_ns, begun_of(rank));
}

std::int64_t over_ns(const WatchedRank& rank, std::int64_t now_ns) {
  const std::int64_t since_ns = rank.slot.phase == Phase::spare ? beat_of(rank) : begun_of(rank);
  return rank.slot.deadline_ns > 0 ? now_ns - since_ns - rank.slot.deadline_ns : 0;
}

// Without a sign that it waits for anybody, for longer than that may last at least.
bool may_be_alone(const WatchedRank& rank, std::int64_t now_ns) {
  return rank.slot.alone_ns > 0 && now_ns - beat_of(rank) > rank.slot.alone_ns;
}

Standing standing_of(const WatchedRank& rank, std::int64_t now_ns, std::int64_t silent_ns) {
  const SlotView& slot = rank.slot;
  Standing standing;
  standing.watched = slot.process > 0 && !slot.left && !rank.ended;
  if (!standing.watched) return standing;
  const bool says_that_it_waits = slot.wait_begun_ns > 0;
  const bool silent = now_ns - beat_of(rank) > silent_ns;
  standing.stuck = rank.stopped || (says_that_it_waits && silent);
  standing.waits = says_that_it_waits && !standing.stuck;
  standing.over_ns = over_ns(rank, now_ns);
  return standing;
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

// `measure`: what its time was compared with; empty: its limit.
std::string culprit_sentence(const WatchedRank& rank, const std::string& measure, std::int64_t now_ns) {
  const SlotView& slot = rank.slot;
  const std::string compared = slot.usual_ns > 0      ? duration(slot.usual_ns) + " are usual"
                               : !measure.empty()     ? measure
                               : slot.deadline_ns > 0 ? duration(slot.deadline_ns) + " are the limit"
                                                      : "others wait for it";
  std::string text = fmt::format("{} hangs: {} for {}, {}", who(rank), at(slot),
                                 duration(now_ns - begun_of(rank)), compared);
  if (rank.stopped) text += "; it is stopped";
  if (slot.wait_begun_ns > 0) {
    text += fmt::format("; it waits for {}", awaited(slot));
    if (!rank.stopped) text += fmt::format(" and has not looked for {}", duration(now_ns - beat_of(rank)));
  } else if (slot.phase == Phase::spare && !rank.stopped) {
    text += fmt::format("; no sign of life for {}", duration(now_ns - beat_of(rank)));
  } else if (!rank.stopped) {
    text += "; it waits for nobody";
  }
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

class Graph {
 public:
  Graph(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t silent_ns)
      : ranks_(ranks), now_ns_(now_ns) {
    for (const WatchedRank& rank : ranks) standings_.push_back(standing_of(rank, now_ns, silent_ns));
    awaited_ = awaited_by_all();
  }

  struct Culprit {
    std::size_t index = 0;
    std::string measure = {};  // culprit_sentence()
  };
  // One, or those that hang in the first steps; empty: nobody.
  std::vector<Culprit> culprits() const {
    std::optional<std::size_t> found;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const Standing& one = standings_[each];
      if (!one.watched || one.waits) continue;
      if (one.over_ns <= 0 && !(one.stuck && is_awaited(each))) continue;
      if (!found.has_value() || one.over_ns > standings_[*found].over_ns) found = each;
    }
    if (!found.has_value()) return alone_for_long();
    const std::optional<std::int64_t> slowest_ns = slowest_of_others(*found);
    return {{.index = *found, .measure = slowest_ns.has_value() ? needed_by_others(*slowest_ns) : ""}};
  }

  // Those that wait for as long again as they may; empty while somebody is left who may be what they wait
  // for.
  std::vector<std::size_t> hopeless() const {
    std::vector<std::size_t> over;
    std::uint32_t members = 0;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const Standing& one = standings_[each];
      const SlotView& slot = ranks_[each].slot;
      members = std::max(members, slot.members);
      if (!one.watched || slot.phase == Phase::spare) continue;
      if (!one.waits) return {};
      if (one.over_ns > slot.deadline_ns && slot.deadline_ns > 0) over.push_back(each);
    }
    return ranks_.size() < members ? std::vector<std::size_t>() : over;
  }

 private:
  bool has_seat(std::size_t index) const {
    return standings_[index].watched && ranks_[index].slot.phase != Phase::spare;
  }
  bool is_at_the_same(std::size_t index, std::size_t other) const {
    const SlotView &one = ranks_[index].slot, &two = ranks_[other].slot;
    return one.phase == two.phase && one.step == two.step && one.epoch == two.epoch;
  }
  static std::string needed_by_others(std::int64_t slowest_ns) {
    return "others needed " + duration(slowest_ns);
  }

  // How long those needed that do the same work as this one, up to the wait, in the same step. None: too many
  // may be at work, or nobody is there to compare with.
  std::optional<std::int64_t> slowest_of_others(std::size_t index) const {
    const SlotView& slot = ranks_[index].slot;
    if (slot.alone_ns <= 0 || slot.role < 0 || awaited_.empty()) return std::nullopt;
    std::optional<std::int64_t> slowest_ns;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const SlotView& other = ranks_[each].slot;
      if (!has_seat(each) || !standings_[each].waits || other.role != slot.role) continue;
      if (!is_at_the_same(index, each)) return std::nullopt;
      slowest_ns = std::max(slowest_ns.value_or(0), other.wait_begun_ns - other.begun_ns);
    }
    return slowest_ns;
  }

  // What it has needed at most so far, or the others for this step, whatever their work is.
  std::int64_t longest_here(std::size_t index) const {
    std::int64_t longest_ns = ranks_[index].slot.longest_ns;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const SlotView& other = ranks_[each].slot;
      if (has_seat(each) && standings_[each].waits && is_at_the_same(index, each))
        longest_ns = std::max(longest_ns, other.wait_begun_ns - other.begun_ns);
    }
    return longest_ns;
  }

  // Of those that are about to give up waiting, maybe a step ahead of this one, the shortest patience; 0:
  // nobody. One that is shorter than what a rank has in any case names nobody: it is over before.
  std::int64_t patience_that_ends(std::size_t index) const {
    std::int64_t patience_ns = 0;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const SlotView& other = ranks_[each].slot;
      if (!has_seat(each) || !standings_[each].waits) continue;
      if (other.phase == Phase::recovery || other.epoch != ranks_[index].slot.epoch) continue;
      const bool ends = now_ns_ - other.wait_begun_ns > Deadlines::alone_until(0, other.wait_patience_ns);
      if (!ends || other.wait_patience_ns < ranks_[index].slot.alone_ns) continue;
      patience_ns = patience_ns == 0 ? other.wait_patience_ns : std::min(patience_ns, other.wait_patience_ns);
    }
    return patience_ns;
  }

  // By what measure it has computed alone for too long, for the sentence; none: it has not.
  std::optional<std::string> alone_too_long(std::size_t index) const {
    const WatchedRank& rank = ranks_[index];
    const SlotView& slot = rank.slot;
    if (slot.alone_ns <= 0 || slot.role < 0) return std::nullopt;
    const std::int64_t since_ns = now_ns_ - beat_of(rank);
    const std::optional<std::int64_t> slowest_ns = slowest_of_others(index);
    if (slowest_ns.has_value() && since_ns > Deadlines::alone_among(slot.alone_ns, *slowest_ns))
      return needed_by_others(*slowest_ns);
    if (!slowest_ns.has_value() && rank.stopped && since_ns > slot.alone_ns) return "others wait for it";
    const std::int64_t idle_ns = now_ns_ - std::max(beat_of(rank), rank.worked_ns);
    if (slot.longest_ns > 0 && idle_ns > Deadlines::alone_among(slot.alone_ns, longest_here(index)))
      return fmt::format("it needed {} before", duration(slot.longest_ns));
    const std::int64_t patience_ns = patience_that_ends(index);
    if (patience_ns > 0 && idle_ns > Deadlines::alone_until(slot.alone_ns, patience_ns))
      return fmt::format("others wait {} at most", duration(patience_ns));
    return std::nullopt;
  }

  // Those that do not wait, while all others do: one, or fewer than these. Empty where they are more, and
  // while somebody is out of sight. Who has died in this epoch was one of its members.
  std::vector<std::size_t> awaited_by_all() const {
    std::vector<std::size_t> awaited;
    std::uint64_t epoch = 0;
    std::uint32_t members = 0, seen = 0;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      if (!standings_[each].watched) continue;
      epoch = std::max(epoch, ranks_[each].slot.epoch);
      members = std::max(members, ranks_[each].slot.members);
    }
    std::size_t waiting = 0;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const bool died = ranks_[each].ended && ranks_[each].slot.epoch == epoch;
      if (standings_[each].watched || died) ++seen;
      if (!has_seat(each)) continue;
      if (standings_[each].waits) ++waiting;
      if (!standings_[each].waits) awaited.push_back(each);
    }
    const bool few = awaited.size() < waiting || (awaited.size() == 1 && waiting == 1);
    return seen < members || !few ? std::vector<std::size_t>() : awaited;
  }

  // All of them or nobody: while one may be at work the others may wait for it in a way that does not show.
  std::vector<Culprit> alone_for_long() const {
    std::vector<Culprit> found;
    for (const std::size_t each : awaited_) {
      std::optional<std::string> measure = alone_too_long(each);
      if (!measure.has_value()) return {};
      found.push_back({.index = each, .measure = std::move(*measure)});
    }
    return found;
  }

  // By somebody who is over his time: for this rank, or for he does not know whom.
  bool is_awaited(std::size_t index) const {
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const Standing& one = standings_[each];
      const int peer = ranks_[each].slot.wait_peer;
      if (each == index || !one.waits || one.over_ns <= 0) continue;
      if (peer < 0 || peer == ranks_[index].slot.launched_rank) return true;
    }
    return false;
  }

  std::span<const WatchedRank> ranks_;
  std::int64_t now_ns_;
  std::vector<Standing> standings_;
  std::vector<std::size_t> awaited_;  // by all others
};

}  // namespace

bool may_hang(const WatchedRank& rank, std::int64_t now_ns) {
  return over_ns(rank, now_ns) > 0 || may_be_alone(rank, now_ns);
}

HangVerdict find_culprit(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t silent_ns) {
  const Graph graph(ranks, now_ns, silent_ns);
  HangVerdict verdict;
  for (const Graph::Culprit& each : graph.culprits()) {
    std::string sentence = culprit_sentence(ranks[each.index], each.measure, now_ns);
    if (verdict.kind == HangVerdict::Kind::none) {
      verdict = {.kind = HangVerdict::Kind::culprit, .index = each.index, .sentence = std::move(sentence)};
    } else {
      verdict.others.push_back({.index = each.index, .sentence = std::move(sentence)});
    }
  }
  if (verdict.kind != HangVerdict::Kind::none) return verdict;
  const std::vector<std::size_t> over = graph.hopeless();
  if (over.empty()) return {};
  return {.kind = HangVerdict::Kind::no_sink, .index = 0, .sentence = no_sink_sentence(ranks, over, now_ns)};
}

}  // namespace holdfast
