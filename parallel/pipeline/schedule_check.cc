#include "parallel/pipeline/schedule_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "runtime/core/check.h"

namespace holdfast {
namespace {

const char* text_of(Work work) {
  switch (work) {
    case Work::forward:
      return "forward";
    case Work::backward:
      return "backward";
    case Work::backward_input:
      return "backward of inputs";
    case Work::backward_weight:
      return "backward of weights";
  }
  return "unknown work";
}

bool adds_weight_gradients(Work work) {
  return work == Work::backward || work == Work::backward_weight;
}

bool sends_gradients(Work work) {
  return work == Work::backward || work == Work::backward_input;
}

class Problems {
 public:
  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    sentences_.push_back(fmt::format(format, std::forward<Values>(values)...));
  }
  bool empty() const { return sentences_.empty(); }
  std::vector<std::string> take() { return std::move(sentences_); }

 private:
  std::vector<std::string> sentences_;
};

std::string place_of(const Schedule& schedule, int stage, std::size_t index) {
  const Action& action = schedule.actions[static_cast<std::size_t>(stage)][index];
  return fmt::format("stage {}, action {} ({} of microbatch {}, chunk {})", stage, index,
                     text_of(action.work), action.microbatch, action.chunk);
}

// One stage by itself: are its actions complete, in order, and linked to the right stages?
class StageCheck {
 public:
  StageCheck(const Schedule& schedule, int stage, Problems& problems)
      : schedule_(schedule),
        shape_(schedule.shape),
        stage_(stage),
        problems_(problems),
        passes_(static_cast<std::size_t>(shape_.chunks * shape_.microbatches())),
        chunks_(static_cast<std::size_t>(shape_.chunks)) {}

  void check() {
    const std::vector<Action>& actions = schedule_.actions[static_cast<std::size_t>(stage_)];
    for (std::size_t index = 0; index < actions.size(); ++index) check_action(actions[index], index);
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      for (int microbatch = 0; microbatch < shape_.microbatches(); ++microbatch) {
        check_complete(pass(chunk, microbatch), chunk, microbatch);
      }
    }
    if (kept_most_ > activations_in_flight_max(shape_, stage_)) {
      problems_.add(
          "stage {} keeps the activations of {} microbatches at once, of which {} promises at most {}",
          stage_, kept_most_, name_of(shape_.kind), activations_in_flight_max(shape_, stage_));
    }
  }

 private:
  struct Pass {  // how often each work was met
    int forward = 0, backward = 0, backward_input = 0, backward_weight = 0;
    int& of(Work work) {
      switch (work) {
        case Work::forward:
          return forward;
        case Work::backward:
          return backward;
        case Work::backward_input:
          return backward_input;
        case Work::backward_weight:
          break;
      }
      return backward_weight;
    }
  };
  struct Chunk {
    int last_forward = -1;
    int last_weight = -1;
  };

  Pass& pass(int chunk, int microbatch) {
    return passes_[static_cast<std::size_t>(chunk * shape_.microbatches() + microbatch)];
  }

  void check_action(const Action& action, std::size_t index) {
    if (action.chunk < 0 || action.chunk >= shape_.chunks || action.microbatch < 0 ||
        action.microbatch >= shape_.microbatches()) {
      problems_.add("{}: the shape has {} chunks and {} microbatches", place_of(schedule_, stage_, index),
                    shape_.chunks, shape_.microbatches());
      return;
    }
    check_links(action, index);
    check_order(action, index);
    ++pass(action.chunk, action.microbatch).of(action.work);
    kept_ += action.work == Work::forward ? 1 : adds_weight_gradients(action.work) ? -1 : 0;
    kept_most_ = std::max(kept_most_, kept_);
  }

  void check_links(const Action& action, std::size_t index) {
    const int part = action.chunk * shape_.stages + stage_;
    int source = part == 0 ? no_stage : (part - 1) % shape_.stages;
    int target = part == shape_.parts() - 1 ? no_stage : (part + 1) % shape_.stages;
    if (sends_gradients(action.work)) std::swap(source, target);
    if (action.work == Work::backward_weight) source = target = no_stage;
    if (action.source != source || action.target != target) {
      problems_.add("{} goes from stage {} to stage {}, expected {} to {}",
                    place_of(schedule_, stage_, index), action.source, action.target, source, target);
    }
    const bool last = (action.microbatch + 1) % shape_.microbatches_per_lane == 0;
    if (action.completes_lane != (last && adds_weight_gradients(action.work))) {
      problems_.add(
          "{} {} the gradients of a lane, which {} microbatches do", place_of(schedule_, stage_, index),
          action.completes_lane ? "claims to complete" : "does not complete", shape_.microbatches_per_lane);
    }
  }

  void check_order(const Action& action, std::size_t index) {
    const Pass& before = pass(action.chunk, action.microbatch);
    Chunk& chunk = chunks_[static_cast<std::size_t>(action.chunk)];
    if (action.work != Work::forward && before.forward == 0) {
      problems_.add("{} comes before the forward", place_of(schedule_, stage_, index));
    }
    if (action.work == Work::backward_weight && before.backward_input == 0) {
      problems_.add("{} comes before the backward of inputs", place_of(schedule_, stage_, index));
    }
    const auto in_order = [&](int& last, const char* what) {
      if (action.microbatch <= last) {
        problems_.add("{} comes after that of microbatch {}: {} must be in the order of microbatches",
                      place_of(schedule_, stage_, index), last, what);
      }
      last = std::max(last, action.microbatch);
    };
    if (action.work == Work::forward) in_order(chunk.last_forward, "forwards of a chunk");
    if (adds_weight_gradients(action.work)) in_order(chunk.last_weight, "weight gradients of a chunk");
  }

  void check_complete(const Pass& pass, int chunk, int microbatch) {
    const bool whole = pass.backward == 1 && pass.backward_input == 0 && pass.backward_weight == 0;
    const bool split = pass.backward == 0 && pass.backward_input == 1 && pass.backward_weight == 1;
    if (pass.forward == 1 && (whole || split)) return;
    problems_.add(
        "stage {}, microbatch {}, chunk {}: {} forwards, {} backwards, {} of inputs and {} of weights; "
        "expected one forward, and one backward or one of each part",
        stage_, microbatch, chunk, pass.forward, pass.backward, pass.backward_input, pass.backward_weight);
  }

  const Schedule& schedule_;
  ScheduleShape shape_;
  int stage_;
  Problems& problems_;
  std::vector<Pass> passes_;  // [chunk * microbatches + microbatch]
  std::vector<Chunk> chunks_;
  int kept_ = 0, kept_most_ = 0;
};

// All stages together, each going on as far as its messages let it, until nothing moves.
class Execution {
 public:
  Execution(const Schedule& schedule, Problems& problems)
      : schedule_(schedule),
        shape_(schedule.shape),
        problems_(problems),
        next_(static_cast<std::size_t>(shape_.stages)),
        channels_(static_cast<std::size_t>(2 * shape_.stages * shape_.stages)) {}

  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage) {
        while (step(stage)) moved = true;
      }
    }
    std::string stuck;
    for (int stage = 0; stage < shape_.stages; ++stage) {
      const std::size_t next = next_[static_cast<std::size_t>(stage)];
      const std::vector<Action>& actions = schedule_.actions[static_cast<std::size_t>(stage)];
      if (next == actions.size()) continue;
      stuck += fmt::format("{}{} waits for stage {}", stuck.empty() ? "" : "; ",
                           place_of(schedule_, stage, next), actions[next].source);
    }
    if (!stuck.empty()) problems_.add("deadlock: {}", stuck);
  }

 private:
  struct Message {
    int part = 0;  // that needs it
    int microbatch = 0;
    bool operator==(const Message&) const = default;
  };

  std::deque<Message>& channel(int source, int target, bool gradients) {
    return channels_[static_cast<std::size_t>(2 * (source * shape_.stages + target) + (gradients ? 1 : 0))];
  }

  // False: it waits, or has nothing left.
  bool step(int stage) {
    std::size_t& next = next_[static_cast<std::size_t>(stage)];
    const std::vector<Action>& actions = schedule_.actions[static_cast<std::size_t>(stage)];
    if (next == actions.size()) return false;
    const Action& action = actions[next];
    const int part = action.chunk * shape_.stages + stage;
    const bool gradients = sends_gradients(action.work);
    if (action.source != no_stage && !receive(stage, {part, action.microbatch}, next)) return false;
    if (action.target != no_stage) {
      const int needed_by = gradients ? part - 1 : part + 1;
      channel(stage, action.target, gradients).push_back({needed_by, action.microbatch});
    }
    ++next;
    return true;
  }

  bool receive(int stage, const Message& wanted, std::size_t index) {
    const Action& action = schedule_.actions[static_cast<std::size_t>(stage)][index];
    std::deque<Message>& messages = channel(action.source, stage, sends_gradients(action.work));
    if (messages.empty()) return false;
    const auto found = std::ranges::find(messages, wanted);
    if (found != messages.begin() && action.source != stage) {
      if (!std::exchange(out_of_order_, true)) {
        problems_.add(
            "{} wants what stage {} has not sent next: the next message is for microbatch {}, part {}",
            place_of(schedule_, stage, index), action.source, messages.front().microbatch,
            messages.front().part);
      }
      return false;
    }
    if (found == messages.end()) return false;
    messages.erase(found);
    return true;
  }

  const Schedule& schedule_;
  ScheduleShape shape_;
  Problems& problems_;
  std::vector<std::size_t> next_;              // [stage]: of its actions
  std::vector<std::deque<Message>> channels_;  // [2 * (source * stages + target) + gradients]
  bool out_of_order_ = false;                  // said once: everything behind it is stuck
};

}  // namespace

std::vector<std::string> schedule_problems(const Schedule& schedule) {
  Problems problems;
  if (std::ssize(schedule.actions) != schedule.shape.stages) {
    problems.add("there are actions of {} stages, expected {}", schedule.actions.size(),
                 schedule.shape.stages);
    return problems.take();
  }
  for (int stage = 0; stage < schedule.shape.stages; ++stage) StageCheck(schedule, stage, problems).check();
  if (problems.empty()) Execution(schedule, problems).run();
  return problems.take();
}

}  // namespace holdfast
