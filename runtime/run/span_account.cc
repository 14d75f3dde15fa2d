#include "runtime/run/span_account.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "runtime/run/event_reading.h"

namespace holdfast::run {
namespace {

// Steps that an account without spans knows the duration of: a run goes back by fewer.
constexpr std::size_t steps_remembered = 100'000;
constexpr std::size_t episodes_remembered = 1000;  // of slow ranks

std::int64_t microseconds_of(std::optional<double> milliseconds) {
  const double given_ms = milliseconds.has_value() && std::isfinite(*milliseconds) ? *milliseconds : 0.0;
  return static_cast<std::int64_t>(std::clamp(given_ms, 0.0, 1e14) * 1e3);
}

struct StepPart {
  std::int64_t lasted_us = 0;
  SpanUse use = SpanUse::saving;
};
// Returns what of a step is of other classes than the training.
std::array<StepPart, 3> parts_of_step(const StepEvent& step) {
  return {StepPart{microseconds_of(step.stall_ms), SpanUse::saving},
          StepPart{microseconds_of(step.data_ms), SpanUse::data},
          StepPart{microseconds_of(step.again_ms), SpanUse::checking}};
}

void read_times(const Json& state, const char* name, SpanTimes& times_us) {
  const auto found = state.find(name);
  if (found == state.end() || !found->is_array()) return;
  std::size_t use = 0;
  for (const Json& time : *found) {
    if (use < span_uses) read_event_field(time, times_us[use++]);
  }
}

}  // namespace

void SpanAccount::begin_from(const Json& state) {
  read_times(state, "times_us", times_us_);
  read_times(state, "rank_times_us", rank_times_us_);
  visit(*this, [&](const char* name, auto& value) {
    if (const auto found = state.find(name); found != state.end()) read_event_field(*found, value);
  });
  if (const auto episodes = state.find("slow"); episodes != state.end() && episodes->is_object()) {
    for (const JsonMember& member : episodes->items()) read_event_field(member.value, slow_us_[member.key]);
  }
}

void SpanAccount::put_state(Json& state) const {
  state["times_us"] = Json(times_us_);
  state["rank_times_us"] = Json(rank_times_us_);
  for (const auto& [episode, lost_us] : slow_us_) state["slow"][episode] = lost_us;
  visit(*this, [&](const char* name, const auto& value) { state[name] = value; });
}

void SpanAccount::remind(const StepEvent& step) {
  std::int64_t counted_us = microseconds_of(step.step_duration_ms);
  for (const StepPart& part : parts_of_step(step)) counted_us -= std::min(part.lasted_us, counted_us);
  computed_[step.step] = {.times = 1, .counted_us = counted_us, .ranks = ranks_};
}

void SpanAccount::advance(std::int64_t to_us, SpanUse use, std::optional<std::uint64_t> step) {
  if (to_us <= cut_us_) return;
  Piece piece{.span = {.use = use, .begin_us = cut_us_, .end_us = to_us}, .step = step};
  const std::int64_t lasted_us = to_us - cut_us_;
  if (step.has_value()) {
    Computed& computed = computed_[*step];
    piece.time = computed.times;
    computed.counted_us = lasted_us;
    computed.ranks = ranks_;
  }
  of(use) += lasted_us;
  rank_times_us_[static_cast<std::size_t>(use)] += lasted_us * ranks_;
  if (use == SpanUse::restart) {
    restart_us_ += lasted_us;
    restart_rank_us_ += lasted_us * ranks_;
  }
  if (keeps_spans_) pieces_.push_back(piece);
  cut_us_ = to_us;
}

void SpanAccount::move(SpanUse source, SpanUse target, std::int64_t lasted_us, std::int64_t rank_us) {
  of(source) -= lasted_us;
  of(target) += lasted_us;
  rank_times_us_[static_cast<std::size_t>(source)] -= rank_us;
  rank_times_us_[static_cast<std::size_t>(target)] += rank_us;
}

// Takes a part of a step out of the training. Returns how much of it there was.
std::int64_t SpanAccount::take_part(std::int64_t part_us, std::int64_t most_us, SpanUse use) {
  const std::int64_t taken_us = std::clamp<std::int64_t>(part_us, 0, std::max<std::int64_t>(most_us, 0));
  move(SpanUse::training, use, taken_us, taken_us * ranks_);
  return taken_us;
}

// Counts what a step took before it was computed again, but for its parts that are of other classes. What slow ranks have cost was
// part of it.
void SpanAccount::lose(std::int64_t counted_us, int ranks) {
  counted_us = std::min(counted_us, of(SpanUse::training) + of(SpanUse::straggling));
  const std::int64_t trained_us = std::min(counted_us, of(SpanUse::training));
  const std::int64_t straggled_us = counted_us - trained_us;
  move(SpanUse::training, SpanUse::lost, trained_us, trained_us * ranks);
  move(SpanUse::straggling, SpanUse::lost, straggled_us, straggled_us * ranks);
}

void SpanAccount::take_step(const StepEvent& step, SpanUse gap) {
  const std::int64_t begin_us = step.time_us - microseconds_of(step.step_duration_ms);
  if (gap == SpanUse::other)
    advance(std::min(begin_us, cut_us_ + microseconds_of(step.save_ms)), SpanUse::saving);
  advance(begin_us, gap);
  Computed& computed = computed_[step.step];
  lose(std::exchange(computed.counted_us, 0), computed.ranks);
  if (++computed.times > 1) ++steps_again_;
  advance(step.time_us, SpanUse::training, step.step);
  for (const StepPart& part : parts_of_step(step))
    computed.counted_us -= take_part(part.lasted_us, computed.counted_us, part.use);
  if (!keeps_spans_ && computed_.size() > steps_remembered) computed_.erase(computed_.begin());
}

void SpanAccount::take_straggler(const StragglerEvent& event) {
  const std::string episode = fmt::format("{} {} {} {}", event.of, event.rank.value_or(-1),
                                          event.peer.value_or(-1), event.since_step);
  if (slow_us_.size() >= episodes_remembered && !slow_us_.contains(episode)) slow_us_.erase(slow_us_.begin());
  std::int64_t& told_us = slow_us_[episode];
  const std::int64_t lost_us = microseconds_of(event.lost_seconds * 1e3);
  take_part(lost_us - told_us, of(SpanUse::training), SpanUse::straggling);
  told_us = std::max(told_us, lost_us);
}

void SpanAccount::take_waiting(std::int64_t waited_us, std::int64_t now_us, bool still_restarting) {
  const std::int64_t restart_us = std::exchange(restart_us_, 0), rank_us = std::exchange(restart_rank_us_, 0);
  if (still_restarting && waited_us > restart_us)
    advance(std::min(cut_us_ + waited_us - restart_us, now_us), SpanUse::waiting);
  waited_us = std::min(waited_us, restart_us);
  const double share =
      restart_us > 0 ? static_cast<double>(waited_us) / static_cast<double>(restart_us) : 0.0;
  move(SpanUse::restart, SpanUse::waiting, waited_us,
       static_cast<std::int64_t>(share * static_cast<double>(rank_us)));
  for (std::size_t i = pieces_.size(); i-- > 0 && waited_us > 0;) {
    if (pieces_[i].span.use != SpanUse::restart) continue;
    const std::int64_t begin_us = pieces_[i].span.begin_us;
    const std::int64_t end_us = std::min(begin_us + waited_us, pieces_[i].span.end_us);
    waited_us -= end_us - begin_us;
    pieces_[i].span.begin_us = end_us;
    pieces_.insert(pieces_.begin() + static_cast<std::ptrdiff_t>(i),
                   {.span = {.use = SpanUse::waiting, .begin_us = begin_us, .end_us = end_us}});
  }
}

SpanTimes SpanAccount::times_us(std::int64_t now_us, SpanUse gap) const {
  SpanTimes times_us = times_us_;
  times_us[static_cast<std::size_t>(gap)] += std::max<std::int64_t>(now_us - cut_us_, 0);
  return times_us;
}

SpanTimes SpanAccount::rank_times_us(std::int64_t now_us, SpanUse gap) const {
  SpanTimes times_us = rank_times_us_;
  times_us[static_cast<std::size_t>(gap)] += std::max<std::int64_t>(now_us - cut_us_, 0) * ranks_;
  return times_us;
}

// A step counts when it is the last time that it was computed.
std::vector<GoodputSpan> SpanAccount::spans() const {
  std::vector<GoodputSpan> spans;
  for (const Piece& piece : pieces_) {
    GoodputSpan span = piece.span;
    if (piece.step.has_value() && piece.time < computed_.at(*piece.step).times) span.use = SpanUse::lost;
    if (!spans.empty() && spans.back().use == span.use) {
      spans.back().end_us = span.end_us;
    } else {
      spans.push_back(span);
    }
  }
  return spans;
}

}  // namespace holdfast::run
