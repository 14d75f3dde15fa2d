#include "tools/chaos/number_fault.h"

#include <fmt/core.h>

#include <array>
#include <string_view>

#include "runtime/core/check.h"

namespace holdfast::chaos {
namespace {

constexpr std::uint64_t bits_of_number = 32;  // of one that is narrower they are counted modulo its bits

// Takes choices from one number, one after the other.
class Choices {
 public:
  explicit Choices(std::uint64_t draw) : left_(draw) {}
  std::uint64_t below(std::uint64_t count) {
    const std::uint64_t choice = left_ % count;
    left_ /= count;
    return choice;
  }
  template <std::size_t count>
  std::string_view one_of(const std::array<std::string_view, count>& list) {
    return list[below(count)];
  }

 private:
  std::uint64_t left_;
};

// Points at which memory is at rest: the next update reads it.
constexpr std::array<std::string_view, 3> rest_points = {"step.begin", "step.after_vote", "step.end"};
constexpr std::array<std::string_view, 2> moments = {"moment1", "moment2"};
constexpr std::array<std::string_view, 5> memories_of_nan = {"weights", "moment1", "parameters", "gradients",
                                                             "activations"};
constexpr std::array<std::string_view, 2> sample_actions = {"nan", "scramble"};
constexpr std::array<std::string_view, 3> rate_factors = {"10", "100", "1000"};

// Returns the only point of lanes at which this memory can be changed; empty: it belongs to the rank.
std::string_view lane_point_of(std::string_view memory) {
  if (memory == "gradients") return "step.before_reduce";
  return memory == "activations" ? "step.before_backward" : "";
}

// Points of lanes are passed once for each lane of the rank.
std::string at_step(std::string_view point, bool of_lane, const NumberPlace& place, Choices& choices) {
  const std::uint64_t pass =
      of_lane ? (place.step - 1) * place.lanes_of_rank + 1 + choices.below(place.lanes_of_rank) : place.step;
  return fmt::format("{}@{}:{}", point, pass, place.rank);
}

std::string flip_of(std::string_view memory, bool is_at_rest, const NumberPlace& place, Choices& choices) {
  const std::uint64_t bit = choices.below(bits_of_number);
  std::string_view point = lane_point_of(memory);
  const bool of_lane = !point.empty();
  if (!of_lane) point = is_at_rest ? choices.one_of(rest_points) : "step.begin";
  return fmt::format("{}=flip:{}:{}", at_step(point, of_lane, place, choices), memory, bit);
}

std::string nan_of(const NumberPlace& place, Choices& choices) {
  const std::string_view memory = choices.one_of(memories_of_nan);
  const std::string_view point = lane_point_of(memory);
  return fmt::format("{}=nan:{}",
                     at_step(point.empty() ? "step.begin" : point, !point.empty(), place, choices), memory);
}

}  // namespace

NumberPromise promise_of(ChaosFault fault) {
  switch (fault) {
    case ChaosFault::flip_weights:
    case ChaosFault::flip_moments:
    case ChaosFault::nan:
    case ChaosFault::wrong_rate:
      return NumberPromise::healed;
    case ChaosFault::bad_sample:
      return NumberPromise::same_as_twin;
    default:
      return NumberPromise::healed_if_found;
  }
}

std::string number_fault_point(ChaosFault fault, const NumberPlace& place) {
  Choices choices(place.draw);
  switch (fault) {
    case ChaosFault::flip_weights:
      return flip_of("weights", /*is_at_rest=*/true, place, choices);
    case ChaosFault::flip_moments:
      return flip_of(choices.one_of(moments), /*is_at_rest=*/true, place, choices);
    case ChaosFault::flip_parameters:
      return flip_of("parameters", /*is_at_rest=*/false, place, choices);
    case ChaosFault::flip_gradients:
      return flip_of("gradients", /*is_at_rest=*/false, place, choices);
    case ChaosFault::flip_activations:
      return flip_of("activations", /*is_at_rest=*/false, place, choices);
    case ChaosFault::nan:
      return nan_of(place, choices);
    case ChaosFault::wrong_product:
    case ChaosFault::wrong_product_always:
      return fmt::format("{}={}", at_step("step.begin", /*of_lane=*/false, place, choices),
                         facts_of(fault).name);
    case ChaosFault::bad_sample: {
      const std::uint64_t sample =
          (place.step - 1) * place.samples_of_step + 1 + choices.below(place.samples_of_step);
      return fmt::format("data.sample@{}={}", sample, choices.one_of(sample_actions));
    }
    case ChaosFault::wrong_rate: {
      const std::string point = at_step("step.before_update", /*of_lane=*/false, place, choices);
      return fmt::format("{}=scale_rate:{}", point, choices.one_of(rate_factors));
    }
    default:
      break;
  }
  HF_CHECK(false, "{} makes no number wrong", facts_of(fault).name);
  return "";
}

std::uint64_t step_of_sample(std::uint64_t sample, std::uint64_t samples_of_step) {
  return (sample - 1) / samples_of_step + 1;
}

}  // namespace holdfast::chaos
