#include "runtime/report/timeline_operations.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "runtime/report/step_analysis.h"

namespace holdfast::report {
namespace {

constexpr int none = -1;
constexpr const char* host_kind = "host";

// Part that an operation has in a meeting: when its rank came to it, what it gave before, and what it did
// there: the waits, or the first thing afterwards.
struct Attendance {
  int worker = 0;
  std::int64_t arrival_ns = 0;
  int arrival = none;       // the last operation before
  int contribution = none;  // the last one whose result the others get; none: nothing
  std::vector<int> waits = {};
  int next = none;
};

// Meeting: what, step, data, stage, tensor and number; -1 for what does not tell meetings apart.
using MeetingKey = std::tuple<SpanKind, std::uint64_t, int, int, int, int>;
// Result of a forward or backward: is it a forward, step, data, tensor, part of the model, microbatch.
using ResultKey = std::tuple<bool, std::uint64_t, int, int, int, int>;

// Returns whether it is an exchange of slices in the middle of a computation; a host that is far ahead of its
// device waits for slices, too.
bool is_exchange(const Span& wait) {
  return wait.kind == SpanKind::wait_slices && wait.bytes > 0;
}

bool is_meeting(const Span& wait) {
  using enum SpanKind;
  return wait.kind == wait_lanes || wait.kind == wait_vote || wait.kind == wait_parameters ||
         wait.kind == wait_tied_weight || is_exchange(wait);
}

std::int64_t begin_of(const Span& span) {
  return span.begin.time_ns;
}

bool is_message(SpanKind kind) {
  return kind == SpanKind::wait_activation || kind == SpanKind::wait_gradient;
}

class TimelineJob {
 public:
  explicit TimelineJob(const Timeline& timeline) : timeline_(timeline) {}

  TracedJob build() {
    for (const RankTrace& rank : timeline_.ranks) {
      rank_ = &rank;
      const MeshCoordinate& at = rank.header.coordinate;
      job_.workers.push_back({.rank = rank.header.rank,
                              .replica = at.data * rank.header.mesh.tensor + at.tensor,
                              .stage = at.pipeline});
      chains_.emplace_back();
      update_ = none;
      for (const std::uint64_t step : timeline_.steps) add_step(step);
    }
    for (const Needed& needed : needed_) add_message(needed);
    for (const auto& [key, members] : meetings_) {
      if (members.size() > 1) add_meeting(members, std::get<0>(key) == SpanKind::wait_parameters);
    }
    job_.steps = static_cast<int>(timeline_.steps.size());
    return std::move(job_);
  }

 private:
  struct Needed {
    int operation = none;
    ResultKey result = {};
  };

  std::vector<int>& chain() { return chains_.back(); }
  const MeshCoordinate& at() const { return rank_->header.coordinate; }

  int kind_of(const std::string& name, int piece = 0) {
    const auto [found, is_new] = kinds_.emplace(std::pair(name, piece), static_cast<int>(job_.kinds.size()));
    if (is_new) job_.kinds.push_back({.name = name, .ideal = IdealDuration::median});
    return found->second;
  }

  // Adds what the rank did next.
  int add(int kind, std::int64_t begin_ns, std::int64_t end_ns) {
    const int operation = add_unordered(kind, begin_ns, end_ns);
    if (!chain().empty()) job_.order.emplace_back(chain().back(), operation);
    chain().push_back(operation);
    return operation;
  }
  int add_unordered(int kind, std::int64_t begin_ns, std::int64_t end_ns) {
    job_.operations.push_back({.worker = static_cast<int>(job_.workers.size()) - 1,
                               .kind = kind,
                               .duration_s = static_cast<double>(end_ns - begin_ns) / 1e9});
    times_.push_back({begin_ns, end_ns});
    return static_cast<int>(job_.operations.size()) - 1;
  }

  void add_step(std::uint64_t step) {
    waits_.clear();
    phases_.clear();
    for (const Span& span : rank_->spans) {
      if (span.step != step) continue;
      if (group_of(span.kind) == SpanGroup::wait) waits_.push_back(span);
      if (span.kind == SpanKind::evaluation || span.kind == SpanKind::save) phases_.push_back(span);
    }
    std::ranges::sort(waits_, {}, begin_of);
    attended_.clear();
    last_backwards_.clear();
    last_update_ = update_;
    first_forward_.reset();
    const RankStep done = analyse_rank(*rank_, step);
    auto idle = done.idle.begin();
    const auto add_idle_until = [&](std::int64_t end_ns) {
      for (; idle != done.idle.end() && idle->begin_ns < end_ns; ++idle) add_idle(*idle);
    };
    for (const Span& span : done.compute) {
      add_idle_until(span.begin.time_ns);
      add_compute(span);
    }
    add_idle_until(std::numeric_limits<std::int64_t>::max());
    attend(step);
  }

  // Adds a computation in pieces between the exchanges of slices in it.
  void add_compute(const Span& span) {
    const std::string name = os::name_of(span.kind);
    std::int64_t begin_ns = span.begin.time_ns;
    int piece = 0, first = none;
    const auto add_piece = [&](std::int64_t end_ns) {
      const int operation = add(kind_of(name, piece++), begin_ns, end_ns);
      if (first == none) first = operation;
      return operation;
    };
    auto at_begin = std::ranges::lower_bound(waits_, begin_ns, {}, begin_of);
    for (const Span& wait : std::ranges::subrange(at_begin, waits_.end())) {
      if (wait.begin.time_ns >= span.end.time_ns) break;
      if (!is_exchange(wait) || wait.end.time_ns > span.end.time_ns) continue;
      add_piece(wait.begin.time_ns);
      begin_ns = wait.end.time_ns;
      add_meeting_wait(wait, wait.begin.time_ns, wait.end.time_ns);
    }
    note_result(span, first, add_piece(span.end.time_ns));
  }

  // Notes what others need of a computation, and what it needs of others.
  void note_result(const Span& span, int first, int last) {
    if (span.kind == SpanKind::update) update_ = last;
    if (!is_forward_or_backward(span.kind)) return;
    const bool forward = span.kind == SpanKind::forward;
    if (forward && !first_forward_) first_forward_ = first;
    if (!forward) last_backwards_[wave_of(span)] = last;
    if (span.kind == SpanKind::backward_weight) return;
    results_[result_of(span, forward, 0)] = last;
    needed_.push_back({first, result_of(span, forward, forward ? -1 : 1)});
  }

  int wave_of(const Span& span) const {
    return span.microbatch / std::max(1, rank_->header.schedule.microbatches_per_lane);
  }

  // The first backward of a lane waits for the wave before.
  int wave_awaited(const Span& wait) const {
    return wait.kind == SpanKind::wait_lanes && wait.wave < 0 ? wave_of(wait) - 1 : wait.wave;
  }

  ResultKey result_of(const Span& span, bool forward, int parts_away) const {
    const int part = std::max<int>(0, span.chunk) * rank_->header.mesh.pipeline + at().pipeline;
    return {forward, span.step, at().data, at().tensor, part + parts_away, span.microbatch};
  }

  void add_idle(const Idle& idle) {
    if (!idle.waits) {
      const auto phase = std::ranges::find_if(phases_, [&](const Span& span) {
        return span.begin.time_ns <= idle.begin_ns && idle.begin_ns < span.end.time_ns;
      });
      add(kind_of(phase == phases_.end() ? host_kind : os::name_of(phase->kind)), idle.begin_ns, idle.end_ns);
      return;
    }
    if (idle.kind == SpanKind::wait_send) return;
    const auto after = std::ranges::upper_bound(waits_, idle.begin_ns, {}, begin_of);
    const Span* const wait =
        after != waits_.begin() && (after - 1)->kind == idle.kind ? &*(after - 1) : nullptr;
    if (wait != nullptr && is_meeting(*wait)) return add_meeting_wait(*wait, idle.begin_ns, idle.end_ns);
    const int operation = add(kind_of(os::name_of(idle.kind)), idle.begin_ns, idle.end_ns);
    if (wait != nullptr && is_message(idle.kind)) {
      const bool forward = idle.kind == SpanKind::wait_activation;
      needed_.push_back({operation, result_of(*wait, forward, forward ? -1 : 1)});
    }
  }

  void add_meeting_wait(const Span& wait, std::int64_t begin_ns, std::int64_t end_ns) {
    attended_[&wait].push_back(add(kind_of(os::name_of(wait.kind)), begin_ns, end_ns));
  }

  // Notes which meetings of the step this rank was in.
  void attend(std::uint64_t step) {
    std::map<SpanKind, int> numbers;
    std::map<MeetingKey, std::vector<const Span*>> spans;
    for (const Span& wait : waits_) {
      if (!is_meeting(wait)) continue;
      const bool by_number = wait.kind != SpanKind::wait_lanes && wait.kind != SpanKind::wait_parameters;
      const int number = by_number ? numbers[wait.kind]++ : wave_awaited(wait);
      spans[meeting_of(wait.kind, step, number)].push_back(&wait);
    }
    for (const auto& [key, waits] : spans) {
      const SpanKind kind = std::get<0>(key);
      // Takes the last of several waits in the lane reduction: the others are for room in it, or a part of it.
      const Span& arrived = kind == SpanKind::wait_lanes ? *waits.back() : *waits.front();
      Attendance attendance = arrive(arrived.begin.time_ns, waits.back()->end.time_ns);
      for (const Span* wait : waits) {
        if (const auto found = attended_.find(wait); found != attended_.end())
          attendance.waits.insert(attendance.waits.end(), found->second.begin(), found->second.end());
      }
      if (kind == SpanKind::wait_lanes) {
        const auto backward = last_backwards_.find(std::get<5>(key));
        if (backward != last_backwards_.end()) attendance.contribution = backward->second;
      }
      if (kind == SpanKind::wait_parameters) attendance.contribution = last_update_;
      meetings_[key].push_back(std::move(attendance));
    }
    const MeetingKey gather = meeting_of(SpanKind::wait_parameters, step, none);
    if (spans.contains(gather) || !first_forward_) return;
    const std::int64_t begin_ns = times_[index(*first_forward_)].begin_ns;
    Attendance attendance = arrive(begin_ns, begin_ns);
    attendance.contribution = last_update_;
    meetings_[gather].push_back(std::move(attendance));
  }

  MeetingKey meeting_of(SpanKind kind, std::uint64_t step, int number) const {
    switch (kind) {
      case SpanKind::wait_vote:
        return {kind, step, none, none, none, number};
      case SpanKind::wait_tied_weight:
        return {kind, step, at().data, none, at().tensor, number};
      case SpanKind::wait_slices:
        return {kind, step, at().data, at().pipeline, none, number};
      default:
        return {kind, step, none, at().pipeline, at().tensor, number};
    }
  }

  Attendance arrive(std::int64_t begin_ns, std::int64_t end_ns) const {
    const int worker = static_cast<int>(chains_.size()) - 1;
    Attendance attendance{.worker = worker, .arrival_ns = begin_ns, .arrival = last_done(worker, begin_ns)};
    const std::vector<int>& chain = chains_.back();
    const auto next = std::ranges::lower_bound(
        chain, end_ns, {}, [this](int operation) { return times_[index(operation)].begin_ns; });
    if (next != chain.end()) attendance.next = *next;
    return attendance;
  }

  // Returns the first operation of a worker that had not ended by then.
  std::vector<int>::const_iterator first_undone(int worker, std::int64_t time_ns) const {
    return std::ranges::upper_bound(chains_[index(worker)], time_ns, {},
                                    [this](int operation) { return times_[index(operation)].end_ns; });
  }

  // Returns the last operation of a worker that had ended by then.
  int last_done(int worker, std::int64_t time_ns) const {
    const auto after = first_undone(worker, time_ns);
    return after == chains_[index(worker)].begin() ? none : *(after - 1);
  }

  void add_message(const Needed& needed) {
    const auto result = results_.find(needed.result);
    if (result == results_.end()) return;
    // Clocks of two hosts are not the same to the nanosecond.
    if (times_[index(result->second)].end_ns > times_[index(needed.operation)].end_ns) return;
    follow(needed.operation, result->second, times_[index(result->second)].end_ns);
  }

  // Lets a wait, or what came after one, come after another operation, which ended at `end_ns`; what it took
  // before then was not its own.
  void follow(int operation, int before, std::int64_t end_ns) {
    job_.order.emplace_back(before, operation);
    const Interval& time = times_[index(operation)];
    double& duration_s = job_.operations[index(operation)].duration_s;
    duration_s = std::min(
        duration_s, std::max(0.0, static_cast<double>(time.end_ns - std::max(time.begin_ns, end_ns)) / 1e9));
  }

  // Lets a wait for a part of what the others give come after all that they had done by its end. An operation of
  // the host counts as done by then if it ends within `grain_ns` after it: such a one waits for nobody, so that
  // no circle can come of it.
  void follow_progress(int wait, const Attendance& member, const std::vector<Attendance>& members,
                       std::int64_t grain_ns) {
    const std::int64_t end_ns = times_[index(wait)].end_ns;
    for (const Attendance& other : members) {
      if (other.worker == member.worker) continue;
      const std::vector<int>& chain = chains_[index(other.worker)];
      const auto after = first_undone(other.worker, end_ns - 1);
      int done = after == chain.begin() ? none : *(after - 1);
      if (after != chain.end() && job_.operations[index(*after)].kind == kind_of(host_kind)) {
        const Interval& time = times_[index(*after)];
        if (time.begin_ns <= end_ns && time.end_ns <= end_ns + grain_ns) done = *after;
      }
      done = std::min(done, other.arrival);
      if (done != none) follow(wait, done, times_[index(done)].end_ns);
    }
  }

  void add_meeting(const std::vector<Attendance>& members, bool gathers) {
    std::int64_t contributed_ns = std::numeric_limits<std::int64_t>::min(), arrived_ns = contributed_ns;
    for (const Attendance& member : members) {
      if (member.contribution != none)
        contributed_ns = std::max(contributed_ns, times_[index(member.contribution)].end_ns);
      arrived_ns = std::max({arrived_ns, member.arrival_ns, contributed_ns});
    }
    // Points in time, at which all have given their part, or have come.
    const int kind = kind_of("meeting");
    const int contributed = add_unordered(kind, 0, 0), arrived = add_unordered(kind, 0, 0);
    for (const Attendance& member : members) {
      if (member.contribution != none) job_.order.emplace_back(member.contribution, contributed);
      if (member.arrival != none) job_.order.emplace_back(member.arrival, arrived);
    }
    job_.order.emplace_back(contributed, arrived);
    const auto pass = [&](const Attendance& member, int operation, std::int64_t passed_ns) {
      const std::int64_t begin_ns = times_[index(operation)].begin_ns;
      // Parameters are passed on just before a rank notes that it waits for them, or has them.
      const std::int64_t grain_ns = gathers ? (passed_ns - begin_ns) / 10 : 0;
      if (begin_ns >= member.arrival_ns && arrived_ns <= passed_ns) {
        follow(operation, arrived, arrived_ns);
      } else if (begin_ns >= member.arrival_ns && arrived_ns <= passed_ns + grain_ns) {
        follow_progress(operation, member, members, grain_ns);
      } else if (contributed_ns <= passed_ns) {
        follow(operation, contributed, contributed_ns);
      } else if (passed_ns > begin_ns) {
        follow_progress(operation, member, members, 0);
      }
    };
    for (const Attendance& member : members) {
      for (const int wait : member.waits) pass(member, wait, times_[index(wait)].end_ns);
      if (member.waits.empty() && member.next != none)
        pass(member, member.next, times_[index(member.next)].begin_ns);
    }
  }

  const Timeline& timeline_;
  TracedJob job_;
  std::vector<Interval> times_;           // by operation
  std::vector<std::vector<int>> chains_;  // by worker: all that it did, in order
  std::map<std::pair<std::string, int>, int> kinds_;
  std::map<ResultKey, int> results_;
  std::vector<Needed> needed_;
  std::map<MeetingKey, std::vector<Attendance>> meetings_;
  // These are of the rank at hand.
  const RankTrace* rank_ = nullptr;
  int update_ = none, last_update_ = none;
  // These are of its step at hand.
  std::vector<Span> waits_, phases_;
  std::map<const Span*, std::vector<int>> attended_;  // operations by the span of waits_
  std::map<int, int> last_backwards_;                 // by wave
  std::optional<int> first_forward_;
};

}  // namespace

TracedJob job_of(const Timeline& timeline) {
  return TimelineJob(timeline).build();
}

}  // namespace holdfast::report
