// SpanAccount: shares the time of a run out to its classes (span_times.h), moment by moment, with the ranks that each moment had. Of a
// step that is computed again the time before moves to the class of what is lost. Whether a span counts is known when the log has been read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/event.h"
#include "runtime/run/span_times.h"

namespace holdfast::run {

struct GoodputSpan {
  SpanUse use = SpanUse::training;
  std::int64_t begin_us = 0, end_us = 0;
};

class SpanAccount {
 public:
  // Without `keeps_spans` only the times are of use, and of steps only as many are remembered as a run may go back.
  explicit SpanAccount(bool keeps_spans) : keeps_spans_(keeps_spans) {}
  // Goes on from what another one without spans has written.
  void begin_from(const Json& state);
  void put_state(Json& state) const;
  // Takes a step that it knew before; its time is in the state.
  void remind(const StepEvent& step);

  // Sets how many ranks there are from now on.
  void has_ranks(int ranks) { ranks_ = ranks; }
  // Says when the time begins.
  void begin_at(std::int64_t time_us) { cut_us_ = time_us; }
  std::int64_t shared_until_us() const { return cut_us_; }
  // Shares out what is before `to_us`. A clock that was set back adds nothing.
  void advance(std::int64_t to_us, SpanUse use) { advance(to_us, use, {}); }
  // Takes a step. `gap`: class of the time before it.
  void take_step(const StepEvent& step, SpanUse gap);
  // Takes what a slow rank has cost so far. Each event of an episode tells it since its begin.
  void take_straggler(const StragglerEvent& event);
  void begin_restart() { restart_us_ = restart_rank_us_ = 0; }
  // Takes what a restart waited for hosts. `still_restarting`: the time until `now_us` is not shared out.
  void take_waiting(std::int64_t waited_us, std::int64_t now_us, bool still_restarting);

  // Return the time of each class, and the same times ranks, with what is up to `now_us`, which is of class `gap`.
  SpanTimes times_us(std::int64_t now_us, SpanUse gap) const;
  SpanTimes rank_times_us(std::int64_t now_us, SpanUse gap) const;
  std::uint64_t steps_again() const { return steps_again_; }
  // Returns the spans, one after another, without gaps; neighbours differ in use.
  std::vector<GoodputSpan> spans() const;

 private:
  struct Piece {
    GoodputSpan span;
    std::optional<std::uint64_t> step = {};  // that was made in it
    std::uint64_t time = 0;                  // counted from 1
  };
  struct Computed {
    std::uint64_t times = 0;
    std::int64_t counted_us = 0;  // of the last time
    int ranks = 0;                // likewise
  };
  void advance(std::int64_t to_us, SpanUse use, std::optional<std::uint64_t> step);
  void move(SpanUse source, SpanUse target, std::int64_t lasted_us, std::int64_t rank_us);
  std::int64_t take_part(std::int64_t part_us, std::int64_t most_us, SpanUse use);
  void lose(std::int64_t counted_us, int ranks);
  std::int64_t& of(SpanUse use) { return times_us_[static_cast<std::size_t>(use)]; }
  static void visit(auto& self, const auto& use) {
    use("cut_us", self.cut_us_);
    use("restart_us", self.restart_us_);
    use("restart_rank_us", self.restart_rank_us_);
    use("steps_again", self.steps_again_);
    use("ranks", self.ranks_);
  }

  bool keeps_spans_;
  int ranks_ = 0;
  std::int64_t cut_us_ = 0;  // what was before is shared out
  std::vector<Piece> pieces_;
  std::map<std::uint64_t, Computed> computed_;         // by step
  SpanTimes times_us_{}, rank_times_us_{};             // of the pieces so far
  std::map<std::string, std::int64_t> slow_us_;        // what each episode of a slow rank has cost
  std::int64_t restart_us_ = 0, restart_rank_us_ = 0;  // of the newest restart
  std::uint64_t steps_again_ = 0;
};

}  // namespace holdfast::run
