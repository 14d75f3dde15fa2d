#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/core/check.h"

namespace holdfast::parallel {
namespace {

constexpr std::array<std::pair<ScheduleKind, const char*>, 4> kind_names = {{
    {ScheduleKind::gpipe, "gpipe"},
    {ScheduleKind::one_forward_one_backward, "1f1b"},
    {ScheduleKind::interleaved, "interleaved"},
    {ScheduleKind::zero_bubble, "zero_bubble"},
}};

// Schedules are made for the microbatches of all waves; what this pipeline has no lane for is left out at the
// end.
int planned_microbatches(const ScheduleShape& shape) {
  return shape.waves * shape.microbatches_per_lane;
}

// Returns the sizes of the groups in which microbatches go through the chunks. Fewer microbatches than stages
// are one group.
std::vector<int> group_sizes(const ScheduleShape& shape) {
  const int count = planned_microbatches(shape), groups = std::max(1, count / shape.stages);
  std::vector<int> sizes;
  for (int group = 0; group < groups; ++group) {
    sizes.push_back(count / groups + (group < count % groups ? 1 : 0));
  }
  return sizes;
}

struct Pass {  // of one microbatch through one chunk
  int chunk = 0;
  int microbatch = 0;
};

// Returns the passes in the order that all stages share; backwards go through the chunks in reverse.
std::vector<Pass> passes_in_order(const ScheduleShape& shape, bool backward) {
  std::vector<Pass> passes;
  int first = 0;
  for (const int size : group_sizes(shape)) {
    for (int turn = 0; turn < shape.chunks; ++turn) {
      const int chunk = backward ? shape.chunks - 1 - turn : turn;
      for (int i = 0; i < size; ++i) passes.push_back({.chunk = chunk, .microbatch = first + i});
    }
    first += size;
  }
  return passes;
}

// Forwards before the first backward, not counting the forward that comes with it.
int warm_up(const ScheduleShape& shape, int stage) {
  const int passes = planned_microbatches(shape) * shape.chunks;
  if (shape.kind == ScheduleKind::gpipe) return passes;
  const int stages_after = shape.stages - 1 - stage;
  if (shape.chunks == 1) return std::min(passes, stages_after);
  // A stage meets its first chunk's next microbatch again after a group has gone through the other chunks.
  // Twice the stages after it, because activations must come back from them before the first gradient does.
  return std::min(passes, 2 * stages_after + (shape.chunks - 1) * group_sizes(shape).front());
}

class StageWriter {
 public:
  StageWriter(const ScheduleShape& shape, int stage) : shape_(shape), stage_(stage) {}

  void add(Work work, Pass pass) {
    if (pass.microbatch >= shape_.microbatches()) return;
    Action action{.work = work, .chunk = pass.chunk, .microbatch = pass.microbatch};
    const int part = pass.chunk * shape_.stages + stage_;
    const int before = part > 0 ? (part - 1) % shape_.stages : no_stage;
    const int after = part + 1 < shape_.parts() ? (part + 1) % shape_.stages : no_stage;
    if (work != Work::backward_weight) {
      action.source = work == Work::forward ? before : after;
      action.target = work == Work::forward ? after : before;
    }
    action.completes_lane = (work == Work::backward || work == Work::backward_weight) &&
                            (pass.microbatch + 1) % shape_.microbatches_per_lane == 0;
    actions_.push_back(action);
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  ScheduleShape shape_;
  int stage_;
  std::vector<Action> actions_;
};

// gpipe, 1f1b and interleaved differ in how many forwards go first.
void write_alternating(StageWriter& writer, const ScheduleShape& shape, int stage) {
  const std::vector<Pass> forwards = passes_in_order(shape, false), backwards = passes_in_order(shape, true);
  const auto first = static_cast<std::size_t>(warm_up(shape, stage));
  std::size_t backward = 0;
  for (std::size_t forward = 0; forward < forwards.size(); ++forward) {
    writer.add(Work::forward, forwards[forward]);
    if (forward >= first) writer.add(Work::backward, backwards[backward++]);
  }
  while (backward < backwards.size()) writer.add(Work::backward, backwards[backward++]);
}

// Writes 1f1b with split backwards: stage s computes the weight gradient of a microbatch s backwards later.
// Together with the p - s microbatches before their backward, every stage holds p.
void write_zero_bubble(StageWriter& writer, const ScheduleShape& shape, int stage) {
  const int count = planned_microbatches(shape);
  int forward = 0, weight = 0;
  while (forward < warm_up(shape, stage)) writer.add(Work::forward, {.microbatch = forward++});
  for (int backward = 0; backward < count; ++backward) {
    if (forward < count) writer.add(Work::forward, {.microbatch = forward++});
    writer.add(Work::backward_input, {.microbatch = backward});
    if (backward >= stage) writer.add(Work::backward_weight, {.microbatch = weight++});
  }
  while (weight < count) writer.add(Work::backward_weight, {.microbatch = weight++});
}

void check_shape(const ScheduleShape& shape) {
  HF_CHECK(shape.stages >= 1 && shape.chunks >= 1 && shape.microbatches_per_lane >= 1 && shape.waves >= 1);
  HF_CHECK(shape.lanes == shape.waves || shape.lanes == shape.waves - 1);
  HF_CHECK(shape.chunks == 1 || shape.kind == ScheduleKind::interleaved);
}

}  // namespace

const char* name_of(ScheduleKind kind) {
  return std::ranges::find(kind_names, kind, &std::pair<ScheduleKind, const char*>::first)->second;
}

std::optional<ScheduleKind> schedule_kind_of(std::string_view name) {
  for (const auto& [kind, known] : kind_names) {
    if (name == known) return kind;
  }
  return std::nullopt;
}

std::vector<Action> actions_of_stage(const ScheduleShape& shape, int stage) {
  check_shape(shape);
  HF_CHECK(0 <= stage && stage < shape.stages);
  StageWriter writer(shape, stage);
  if (shape.kind == ScheduleKind::zero_bubble) {
    write_zero_bubble(writer, shape, stage);
  } else {
    write_alternating(writer, shape, stage);
  }
  return writer.take();
}

Schedule make_schedule(const ScheduleShape& shape) {
  Schedule schedule{.shape = shape, .actions = {}};
  for (int stage = 0; stage < shape.stages; ++stage)
    schedule.actions.push_back(actions_of_stage(shape, stage));
  return schedule;
}

int activations_in_flight_max(const ScheduleShape& shape, int stage) {
  check_shape(shape);
  const int all = shape.microbatches() * shape.chunks;
  if (shape.kind == ScheduleKind::zero_bubble) return std::min(all, shape.stages);
  return std::min(all, warm_up(shape, stage) + 1);
}

std::vector<int> activation_buffers(const ScheduleShape& shape, const std::vector<Action>& actions) {
  std::vector<int> kept(static_cast<std::size_t>(shape.chunks)), most(kept);
  for (const Action& action : actions) {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    if (action.work == Work::forward) most[chunk] = std::max(most[chunk], ++kept[chunk]);
    if (action.work == Work::backward || action.work == Work::backward_weight) --kept[chunk];
  }
  return most;
}

std::vector<int> weight_gradient_buffers(const ScheduleShape& shape, const std::vector<Action>& actions) {
  std::vector<int> kept(static_cast<std::size_t>(shape.chunks)), most(kept);
  for (const Action& action : actions) {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    if (action.work == Work::backward_input) most[chunk] = std::max(most[chunk], ++kept[chunk]);
    if (action.work == Work::backward_weight) --kept[chunk];
  }
  return most;
}

}  // namespace holdfast::parallel
