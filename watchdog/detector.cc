#include "watchdog/detector.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace holdfast {
namespace {

// Over its time, but how it stands among the others is open.
struct Standing {
  bool watched = false;  // it lives, and does not leave
  bool stuck = false;    // stopped, or says that it waits and does not look
  bool waits = false;    // and looks
  std::int64_t over_ns = 0;
};

std::string duration(std::int64_t nanoseconds) {
  const double seconds = static_cast<double>(nanoseconds) / 1e9;
  if (seconds < 1) return fmt::format("{} ms", nanoseconds / 1'000'000);
  return seconds < 100 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::int64_t beat_of(const SlotView& slot) {
  return std::max(slot.beat_ns, slot.begun_ns);
}

Standing standing_of(const WatchedRank& rank, std::int64_t now_ns, std::int64_t silent_ns) {
  const SlotView& slot = rank.slot;
  Standing standing;
  standing.watched = slot.process > 0 && !slot.left && !rank.ended;
  if (!standing.watched) return standing;
  const bool says_that_it_waits = slot.wait_begun_ns > 0;
  const bool silent = now_ns - beat_of(slot) > silent_ns;
  standing.stuck = rank.stopped || (says_that_it_waits && silent);
  standing.waits = says_that_it_waits && !standing.stuck;
  const std::int64_t since_ns = slot.phase == Phase::spare ? beat_of(slot) : slot.begun_ns;
  standing.over_ns = slot.deadline_ns > 0 ? now_ns - since_ns - slot.deadline_ns : 0;
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

std::string culprit_sentence(const WatchedRank& rank, std::int64_t now_ns) {
  const SlotView& slot = rank.slot;
  const std::string measure = slot.usual_ns > 0      ? duration(slot.usual_ns) + " are usual"
                              : slot.deadline_ns > 0 ? duration(slot.deadline_ns) + " are the limit"
                                                     : "others wait for it";
  std::string text =
      fmt::format("{} hangs: {} for {}, {}", who(rank), at(slot), duration(now_ns - slot.begun_ns), measure);
  if (rank.stopped) text += "; it is stopped";
  if (slot.wait_begun_ns > 0) {
    text += fmt::format("; it waits for {}", awaited(slot));
    if (!rank.stopped) text += fmt::format(" and has not looked for {}", duration(now_ns - beat_of(slot)));
  } else if (slot.phase == Phase::spare && !rank.stopped) {
    text += fmt::format("; no sign of life for {}", duration(now_ns - beat_of(slot)));
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
  Graph(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t silent_ns) : ranks_(ranks) {
    for (const WatchedRank& rank : ranks) standings_.push_back(standing_of(rank, now_ns, silent_ns));
  }

  std::optional<std::size_t> culprit() const {
    std::optional<std::size_t> found;
    for (std::size_t each = 0; each < ranks_.size(); ++each) {
      const Standing& one = standings_[each];
      if (!one.watched || one.waits || !(one.over_ns > 0 || (one.stuck && is_awaited(each)))) continue;
      if (!found.has_value() || one.over_ns > standings_[*found].over_ns) found = each;
    }
    return found;
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
  std::vector<Standing> standings_;
};

}  // namespace

HangVerdict find_culprit(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t silent_ns) {
  const Graph graph(ranks, now_ns, silent_ns);
  if (const std::optional<std::size_t> culprit = graph.culprit(); culprit.has_value()) {
    return {.kind = HangVerdict::Kind::culprit,
            .index = *culprit,
            .sentence = culprit_sentence(ranks[*culprit], now_ns)};
  }
  const std::vector<std::size_t> over = graph.hopeless();
  if (over.empty()) return {};
  return {.kind = HangVerdict::Kind::no_sink, .index = 0, .sentence = no_sink_sentence(ranks, over, now_ns)};
}

}  // namespace holdfast
