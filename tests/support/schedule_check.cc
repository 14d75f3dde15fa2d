#include "tests/support/schedule_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "runtime/core/check.h"

namespace holdfast::test {
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

// Returns the maximum number of microbatches that a stage may hold between the start of backward_input and the end of
// backward_weight.
int weight_gradients_pending_max(const ScheduleShape& shape, int stage) {
  return shape.kind == ScheduleKind::zero_bubble ? std::min(shape.microbatches(), stage + 1) : 0;
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
    if (kept_max_ > activations_in_flight_max(shape_, stage_)) {
      problems_.add(
          "stage {} keeps the activations of {} microbatches at once, of which {} promises at most {}",
          stage_, kept_max_, name_of(shape_.kind), activations_in_flight_max(shape_, stage_));
    }
    if (pending_max_ > weight_gradients_pending_max(shape_, stage_)) {
      problems_.add(
          "stage {} keeps the gradients of {} microbatches at once, of which {} promises at most {}", stage_,
          pending_max_, name_of(shape_.kind), weight_gradients_pending_max(shape_, stage_));
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
    int last_input = -1;
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
    kept_max_ = std::max(kept_max_, kept_);
    pending_ += action.work == Work::backward_input ? 1 : action.work == Work::backward_weight ? -1 : 0;
    pending_max_ = std::max(pending_max_, pending_);
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
    if (sends_gradients(action.work)) in_order(chunk.last_input, "input gradients of a chunk");
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
  int kept_ = 0, kept_max_ = 0;        // activations
  int pending_ = 0, pending_max_ = 0;  // between the two parts of their backward
};

// All stages together. Everything moves as soon as it can, which takes nothing from anybody: what is stuck
// then is stuck in every other order too.
class Execution {
 public:
  Execution(const Schedule& schedule, Problems& problems)
      : schedule_(schedule),
        shape_(schedule.shape),
        problems_(problems),
        passes_(static_cast<std::size_t>(shape_.parts() * shape_.microbatches())) {
    for (int stage = 0; stage < shape_.stages; ++stage) add_stage(stage);
  }

  void run() {
    bool moved = true;
    while (moved && problems_.empty()) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage) {
        for (const bool gradients : {false, true}) moved |= receive(stage, gradients);
        while (step(stage)) moved = true;
      }
    }
    if (!problems_.empty()) return;
    std::string stuck;
    for (int stage = 0; stage < shape_.stages; ++stage) {
      const std::size_t next = at(stage).next;
      if (next == actions_of(stage).size()) continue;
      const Action& action = actions_of(stage)[next];
      stuck +=
          fmt::format("{}{} waits for stage {}", stuck.empty() ? "" : "; ", place_of(schedule_, stage, next),
                      input_is_there(stage, action) ? action.target : action.source);
    }
    if (!stuck.empty()) problems_.add("deadlock: {}", stuck);
  }

 private:
  struct Message {
    int part = 0;  // that reads it
    int microbatch = 0;
    bool operator==(const Message&) const = default;
  };
  // Messages that arrive at a stage from one other stage.
  struct Inbox {
    std::vector<Message> wanted;  // in the order of the actions
    std::vector<Message> sent;    // so far
    std::size_t arrived = 0;
  };
  struct Stage {
    std::size_t next = 0;  // of its actions
    std::vector<int> buffers;
    Inbox activations, gradients;
    Inbox& inbox(bool of_gradients) { return of_gradients ? gradients : activations; }
  };
  struct Pass {  // of a microbatch through a part: what has happened to it
    bool activations_there = false, gradients_there = false;  // have arrived
    bool activations_made = false, gradients_made = false;    // for the next part, for the one before
    bool finished = false;                                    // its last action was run
  };

  const std::vector<Action>& actions_of(int stage) const {
    return schedule_.actions[static_cast<std::size_t>(stage)];
  }
  Stage& at(int stage) { return stages_[static_cast<std::size_t>(stage)]; }
  int part_of(int stage, int chunk) const { return chunk * shape_.stages + stage; }
  Pass& pass(int part, int microbatch) {
    return passes_[static_cast<std::size_t>(part * shape_.microbatches() + microbatch)];
  }
  bool is_message(int stage, int other) const { return other != no_stage && other != stage; }

  void add_stage(int stage) {
    stages_.emplace_back().buffers = activation_buffers(shape_, actions_of(stage));
    for (const Action& action : actions_of(stage)) {
      if (!is_message(stage, action.source)) continue;
      at(stage)
          .inbox(sends_gradients(action.work))
          .wanted.push_back({part_of(stage, action.chunk), action.microbatch});
    }
  }

  // Returns whether the gradients that this part sends have arrived at the stage that reads them.
  bool gradients_have_left(int part, int microbatch) {
    const bool sent = part > 0 && shape_.stages > 1;
    return !sent || pass(part - 1, microbatch).gradients_there;
  }

  bool receive(int stage, bool gradients) {
    Inbox& inbox = at(stage).inbox(gradients);
    const std::size_t before = inbox.arrived;
    for (; inbox.arrived < inbox.sent.size(); ++inbox.arrived) {
      const Message& message = inbox.sent[inbox.arrived];
      if (const Message& wanted = inbox.wanted[inbox.arrived]; message != wanted) {
        problems_.add(
            "stage {} wants the {} of microbatch {}, part {}, but those of microbatch {}, part {}, come "
            "first",
            stage, gradients ? "gradients" : "activations", wanted.microbatch, wanted.part,
            message.microbatch, message.part);
        break;
      }
      const int places = at(stage).buffers[static_cast<std::size_t>(message.part / shape_.stages)] + 1;
      const int last_user = message.microbatch - places;
      if (last_user >= 0 && !pass(message.part, last_user).finished) break;
      if (last_user >= 0 && gradients && !gradients_have_left(message.part, last_user)) break;
      Pass& here = pass(message.part, message.microbatch);
      (gradients ? here.gradients_there : here.activations_there) = true;
    }
    return inbox.arrived > before;
  }

  // Returns whether the action's input is there: a message, or a result of the stage itself.
  bool input_is_there(int stage, const Action& action) {
    if (action.source == no_stage) return true;
    const int part = part_of(stage, action.chunk);
    const Pass& here = pass(part, action.microbatch);
    if (sends_gradients(action.work)) {
      return is_message(stage, action.source) ? here.gradients_there
                                              : pass(part + 1, action.microbatch).gradients_made;
    }
    return is_message(stage, action.source) ? here.activations_there
                                            : pass(part - 1, action.microbatch).activations_made;
  }

  // Returns whether the previous contents of the action's output buffer have left. A gradient that arrived is
  // written in place, and receive() made room for it.
  bool output_is_free(int stage, const Action& action) {
    if (!is_message(stage, action.target)) return true;
    const int part = part_of(stage, action.chunk);
    const int buffers = at(stage).buffers[static_cast<std::size_t>(action.chunk)];
    if (action.work == Work::forward) {
      const int before = action.microbatch - buffers;
      return before < 0 || pass(part + 1, before).activations_there;
    }
    const int before = action.microbatch - buffers - 1;
    return action.source != no_stage || before < 0 || gradients_have_left(part, before);
  }

  // False: it waits, or has nothing left.
  bool step(int stage) {
    std::size_t& next = at(stage).next;
    if (next == actions_of(stage).size()) return false;
    const Action& action = actions_of(stage)[next];
    if (!input_is_there(stage, action) || !output_is_free(stage, action)) return false;
    const int part = part_of(stage, action.chunk);
    const bool gradients = sends_gradients(action.work);
    if (is_message(stage, action.target)) {
      at(action.target).inbox(gradients).sent.push_back({gradients ? part - 1 : part + 1, action.microbatch});
    }
    Pass& here = pass(part, action.microbatch);
    here.activations_made |= action.work == Work::forward;
    here.gradients_made |= gradients;
    here.finished |= adds_weight_gradients(action.work);
    ++next;
    return true;
  }

  const Schedule& schedule_;
  ScheduleShape shape_;
  Problems& problems_;
  std::vector<Stage> stages_;
  std::vector<Pass> passes_;  // [part * microbatches + microbatch]
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

}  // namespace holdfast::test
