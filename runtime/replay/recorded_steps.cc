#include "runtime/replay/recorded_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "runtime/core/json.h"
#include "runtime/run/event_reading.h"

namespace holdfast::replay {
namespace {

// StepCollector takes the events of a log in their order.
class StepCollector {
 public:
  StepCollector(std::uint64_t first, std::uint64_t last) : first_(first), last_(last) {}

  void take(const Json& event) {
    if (const auto start = event_as<StartEvent>(event)) begin(*start);
    if (const auto step = event_as<StepEvent>(event)) add(*step);
  }
  RecordedSteps recorded() && { return std::move(recorded_); }

 private:
  // Another generation, or another run in the same directory, leaves the steps beyond its first state.
  void begin(const StartEvent& start) {
    const bool goes_on = run_ == start.run && generation_ == start.generation;
    if (run_.has_value() && !goes_on) {
      const std::uint64_t from = start.resumed_from_step.value.value_or(0);
      recorded_.newest = std::min(recorded_.newest, from);
      recorded_.steps.erase(recorded_.steps.upper_bound(from), recorded_.steps.end());
    }
    run_ = start.run;
    generation_ = start.generation;
  }

  void add(const StepEvent& step) {
    recorded_.newest = std::max(recorded_.newest, step.step);
    if (step.step < first_ || step.step > last_) return;
    recorded_.steps[step.step] = {.numbers = {.loss = step.loss,
                                              .grad_norm = step.grad_norm,
                                              .learning_rate = step.learning_rate,
                                              .data = step.data_digest},
                                  .duration_ms = step.step_duration_ms};
  }

  std::uint64_t first_, last_;
  std::optional<std::string> run_;
  std::uint64_t generation_ = 0;
  RecordedSteps recorded_;
};

}  // namespace

bool is_same_number(double recorded, double computed) {
  if (!std::isfinite(recorded)) return !std::isfinite(computed);
  return std::bit_cast<std::uint64_t>(recorded) == std::bit_cast<std::uint64_t>(computed);
}

std::vector<std::string> differing_numbers(const RecordedNumbers& recorded, const RecordedNumbers& computed) {
  std::vector<std::string> names;
  if (!is_same_number(recorded.loss, computed.loss)) names.emplace_back("loss");
  if (!is_same_number(recorded.grad_norm, computed.grad_norm)) names.emplace_back("grad_norm");
  if (!is_same_number(recorded.learning_rate, computed.learning_rate)) names.emplace_back("learning_rate");
  if (recorded.data != computed.data) names.emplace_back("data");
  return names;
}

Result<RecordedSteps> read_recorded_steps(Env& env, const RunPaths& paths, std::uint64_t first,
                                          std::uint64_t last) {
  HF_TRY(const LogReader log, LogReader::open(env, paths));
  StepCollector collector(first, last);
  HF_TRY_VOID(log.for_each([&](const Json& event) { collector.take(event); }));
  RecordedSteps recorded = std::move(collector).recorded();
  recorded.warning = log.warning();
  return recorded;
}

}  // namespace holdfast::replay
