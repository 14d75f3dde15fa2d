// StepTimes: where one rank spent the time of one step, without what it waited for others. It is small and of
// a fixed size, because every rank sends those of its last steps to rank 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace holdfast::health {

// The parts of a rank's own time in a step.
enum class StepPhase : std::uint8_t {
  forward,
  backward,
  update,  // the optimizer's
  other,   // the rest of what the device computed: sums of gradients, norms, digests
  input,   // waiting for the loader
  host,    // the device had nothing to do, and nobody else was waited for: the host prepared, copied or slept
  count
};
inline constexpr std::size_t step_phases = static_cast<std::size_t>(StepPhase::count);

constexpr std::string_view name_of(StepPhase phase) {
  constexpr std::string_view names[step_phases] = {"forward", "backward", "update", "other", "input", "host"};
  return names[static_cast<std::size_t>(phase)];
}

struct StepTimes {
  std::array<float, step_phases> spent_ms{};  // by StepPhase
  float waited_ms = 0.0F;                     // for other ranks, while its own device had nothing to do

  void add(const StepTimes& other) {
    for (std::size_t phase = 0; phase < step_phases; ++phase) spent_ms[phase] += other.spent_ms[phase];
    waited_ms += other.waited_ms;
  }
  double own_ms() const {
    double sum = 0.0;
    for (const float each : spent_ms) sum += static_cast<double>(each);
    return sum;
  }
};
static_assert(std::is_trivially_copyable_v<StepTimes> && sizeof(StepTimes) == 28);

}  // namespace holdfast::health
