#include "parallel/pipeline/schedule_time.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/core/check.h"

namespace holdfast::parallel {
namespace {

constexpr double not_yet = std::numeric_limits<double>::infinity();

double duration_of(Work work, const PartDurations& part) {
  switch (work) {
    case Work::forward:
      return part.forward;
    case Work::backward:
      return part.backward_input + part.backward_weight;
    case Work::backward_input:
      return part.backward_input;
    case Work::backward_weight:
      break;
  }
  return part.backward_weight;
}

class Clock {
 public:
  Clock(const Schedule& schedule, std::span<const PartDurations> parts, std::span<const double> transfers)
      : schedule_(schedule),
        shape_(schedule.shape),
        parts_(parts),
        transfers_(transfers),
        activations_end_(results(), not_yet),
        gradients_end_(results(), not_yet),
        free_(static_cast<std::size_t>(shape_.stages)) {
    HF_CHECK(std::ssize(parts) == shape_.parts() && std::ssize(schedule.actions) == shape_.stages);
    HF_CHECK(std::ssize(transfers) == shape_.stages);
    time_.actions.resize(schedule.actions.size());
  }

  ScheduleTime run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t stage = 0; stage < schedule_.actions.size(); ++stage) {
        while (step(stage)) moved = true;
      }
    }
    for (std::size_t stage = 0; stage < schedule_.actions.size(); ++stage) {
      HF_CHECK(time_.actions[stage].size() == schedule_.actions[stage].size(), "stage {} waits forever",
               stage);
      time_.duration = std::max(time_.duration, free_[stage]);
    }
    for (const std::vector<ScheduleTime::Span>& actions : time_.actions) {
      double busy = 0.0;
      for (const ScheduleTime::Span& action : actions) busy += action.end - action.begin;
      time_.bubble_shares.push_back(time_.duration > 0.0 ? 1.0 - busy / time_.duration : 0.0);
    }
    return std::move(time_);
  }

 private:
  std::size_t results() const { return static_cast<std::size_t>(shape_.parts() * shape_.microbatches()); }
  std::size_t result(int part, int microbatch) const {
    return static_cast<std::size_t>(part * shape_.microbatches() + microbatch);
  }

  // Returns the time at which the message of an action arrives; not_yet if it has not been sent.
  double arrival(const Action& action, int part, int stage) const {
    if (action.source == no_stage) return 0.0;
    const double sent = action.work == Work::forward ? activations_end_[result(part - 1, action.microbatch)]
                                                     : gradients_end_[result(part + 1, action.microbatch)];
    if (action.source == stage) return sent;
    const int lower = action.work == Work::forward ? action.source : stage;  // of the two ends
    return sent + transfers_[static_cast<std::size_t>(lower)];
  }

  bool step(std::size_t stage) {
    const std::vector<Action>& actions = schedule_.actions[stage];
    const std::size_t index = time_.actions[stage].size();
    if (index == actions.size()) return false;
    const Action& action = actions[index];
    const int part = action.chunk * shape_.stages + static_cast<int>(stage);
    const double message = arrival(action, part, static_cast<int>(stage));
    if (std::isinf(message)) return false;
    const double begin = std::max(free_[stage], message);
    const double end = begin + duration_of(action.work, parts_[static_cast<std::size_t>(part)]);
    if (action.work == Work::forward) activations_end_[result(part, action.microbatch)] = end;
    if (action.work == Work::backward || action.work == Work::backward_input) {
      gradients_end_[result(part, action.microbatch)] = end;
    }
    free_[stage] = end;
    time_.actions[stage].push_back({begin, end});
    return true;
  }

  const Schedule& schedule_;
  ScheduleShape shape_;
  std::span<const PartDurations> parts_;
  std::span<const double> transfers_;                    // by stage: to and from the next one
  std::vector<double> activations_end_, gradients_end_;  // [part * microbatches + microbatch]
  std::vector<double> free_;                             // [stage]: from when on
  ScheduleTime time_;
};

}  // namespace

double ScheduleTime::bubble_share() const {
  double sum = 0.0;
  for (const double share : bubble_shares) sum += share;
  return bubble_shares.empty() ? 0.0 : sum / static_cast<double>(bubble_shares.size());
}

ScheduleTime schedule_time(const Schedule& schedule, std::span<const PartDurations> parts, double transfer) {
  return schedule_time(schedule, parts,
                       std::vector<double>(static_cast<std::size_t>(schedule.shape.stages), transfer));
}

ScheduleTime schedule_time(const Schedule& schedule, std::span<const PartDurations> parts,
                           std::span<const double> transfers) {
  return Clock(schedule, parts, transfers).run();
}

std::string describe(const ScheduleShape& shape, const ScheduleTime& time) {
  const auto plural = [](int number, const char* ending) { return number == 1 ? "" : ending; };
  const int microbatches = shape.microbatches();
  std::string text =
      fmt::format("{}: {} stage{}", name_of(shape.kind), shape.stages, plural(shape.stages, "s"));
  if (shape.chunks > 1) text += fmt::format(" of {} chunks", shape.chunks);
  text += fmt::format(", {} microbatch{}, bubble {:.1f} %, activations in flight ", microbatches,
                      plural(microbatches, "es"), 100.0 * time.bubble_share());
  for (int stage = 0; stage < shape.stages; ++stage) {
    text += fmt::format("{}{}", stage == 0 ? "" : ", ", activations_in_flight_max(shape, stage));
  }
  return text;
}

}  // namespace holdfast::parallel
