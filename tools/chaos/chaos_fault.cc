#include "tools/chaos/chaos_fault.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/core/check.h"
#include "runtime/core/text.h"

namespace holdfast::chaos {
namespace {

// Words for many faults.
constexpr std::string_view word_for_numbers = "numbers", word_for_others = "all";

bool is_listed(std::span<const ChaosFault> faults, ChaosFault fault) {
  return std::ranges::find(faults, fault) != faults.end();
}

// Returns the faults that make numbers wrong, or all others.
std::vector<ChaosFault> faults_of(bool numbers) {
  std::vector<ChaosFault> faults;
  for (std::size_t i = 0; i < chaos_fault_kinds; ++i) {
    const auto fault = static_cast<ChaosFault>(i);
    if (facts_of(fault).of_numbers == numbers) faults.push_back(fault);
  }
  return faults;
}

}  // namespace

const ChaosFaultFacts& facts_of(ChaosFault fault) {
  static constexpr std::array<ChaosFaultFacts, chaos_fault_kinds> table = {{
      {.name = "kill", .text = "kill -9 of a rank", .kills_rank = true},
      {.name = "two_kills", .text = "kill -9 of two ranks at once", .kills_rank = true},
      {.name = "kill_in_recovery",
       .text = "kill -9 of a rank, and of others during recovery",
       .kills_rank = true},
      {.name = "all_killed", .text = "kill -9 of every rank", .kills_rank = true},
      {.name = "kill_at_point", .text = "a rank dies at a named place of the program", .kills_rank = true},
      {.name = "crash", .text = "a rank crashes", .kills_rank = true},
      {.name = "hang", .text = "a rank is stopped and hangs", .kills_rank = true},
      {.name = "livelock", .text = "a rank computes for ever", .kills_rank = true},
      {.name = "gpu_fault", .text = "a rank's GPU breaks", .kills_rank = true},
      {.name = "slow_rank", .text = "a rank is late for three steps"},
      {.name = "mpirun_killed", .text = "kill -9 of mpirun"},
      {.name = "job_killed", .text = "kill -9 of the launcher", .ends_job = true},
      {.name = "ram_lost", .text = "the whole job dies, and RAM snapshots are gone", .ends_job = true},
      {.name = "damaged_checkpoint",
       .text = "the whole job dies, and the newest checkpoint is damaged",
       .ends_job = true},
      {.name = "full_disk", .text = "the disk is full for a while", .lasts = true},
      {.name = "lost_host", .text = "a host is lost", .lasts = true},
      {.name = "cut_link", .text = "a host is cut off from the others", .lasts = true},
      {.name = "stalled_disk", .text = "the disk stalls", .lasts = true},
      {.name = "stalled_output", .text = "nobody reads the output", .lasts = true},
      {.name = "host_killed", .text = "kill -9 of all ranks of a host", .kills_rank = true, .lasts = true},
      {.name = "deaf_host", .text = "nothing reaches a host", .lasts = true},
      {.name = "mute_host", .text = "nothing that a host sends arrives", .lasts = true},
      {.name = "lossy_link", .text = "some of what a host sends and gets is lost", .lasts = true},
      {.name = "slow_link", .text = "all that a host sends and gets is late", .lasts = true},
      {.name = "replaced_host", .text = "a host is lost, and another one replaces it", .lasts = true},
      {.name = "unfit_host",
       .text = "a host is unfit for ranks, and has none left",
       .kills_rank = true,
       .lasts = true},
      {.name = "cut_pair", .text = "two hosts are cut off from each other", .lasts = true},
      {.name = "sick_host", .text = "a host is sick", .lasts = true},
      {.name = "stopped_host", .text = "a host is stopped, and continues", .lasts = true},
      {.name = "read_error", .text = "reads of training data fail"},
      {.name = "write_error", .text = "writes of checkpoints fail"},
      {.name = "load_error",
       .text = "the whole job dies, RAM snapshots are gone, and reads of checkpoints fail",
       .ends_job = true},
      {.name = "slow_storage", .text = "storage is slow", .lasts = true},
      {.name = "flip_weights", .text = "a bit of a rank's weights flips", .of_numbers = true},
      {.name = "flip_moments", .text = "a bit of a rank's moments flips", .of_numbers = true},
      {.name = "flip_parameters", .text = "a bit flips in what a rank computes with", .of_numbers = true},
      {.name = "flip_gradients", .text = "a bit of a lane's gradients flips", .of_numbers = true},
      {.name = "flip_activations", .text = "a bit of a lane's activations flips", .of_numbers = true},
      {.name = "nan", .text = "a number of a rank becomes NaN", .of_numbers = true},
      {.name = "wrong_product", .text = "a matrix product is wrong once", .of_numbers = true},
      {.name = "wrong_product_always", .text = "a matrix product is wrong from then on", .of_numbers = true},
      {.name = "bad_sample", .text = "a sample is spoiled", .of_numbers = true},
      {.name = "wrong_rate", .text = "a rank updates with a wrong learning rate", .of_numbers = true},
  }};
  return table[static_cast<std::size_t>(fault)];
}

bool is_at_place(ChaosFault fault) {
  switch (fault) {
    case ChaosFault::kill_at_point:
    case ChaosFault::livelock:
    case ChaosFault::gpu_fault:
    case ChaosFault::slow_rank:
    case ChaosFault::read_error:
    case ChaosFault::write_error:
      return true;
    default:
      return facts_of(fault).of_numbers;
  }
}

Result<std::vector<ChaosFault>> read_faults(std::string_view list) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < chaos_fault_kinds; ++i)
    names.push_back(facts_of(static_cast<ChaosFault>(i)).name);
  std::vector<std::string_view> words = names;
  words.insert(words.end(), {word_for_numbers, word_for_others});
  std::vector<ChaosFault> faults;
  for (const std::string& word : split_list(list)) {
    const auto found = std::ranges::find(names, word);
    if (found != names.end()) {
      faults.push_back(static_cast<ChaosFault>(found - names.begin()));
    } else if (word == word_for_numbers || word == word_for_others) {
      const std::vector<ChaosFault> many = faults_of(word == word_for_numbers);
      faults.insert(faults.end(), many.begin(), many.end());
    } else {
      const std::string near = closest(word, words);
      return fail(ExitCode::config, "chaos: there is no fault {}{}; there are {}", word,
                  near.empty() ? "" : fmt::format(", did you mean {}?", near), fmt::join(words, ", "));
    }
  }
  return faults;
}

std::string to_list(std::span<const ChaosFault> faults) {
  std::vector<std::string_view> words;
  for (const bool numbers : {false, true}) {
    const std::vector<ChaosFault> many = faults_of(numbers);
    if (std::ranges::all_of(many, [&](ChaosFault fault) { return is_listed(faults, fault); })) {
      words.push_back(numbers ? word_for_numbers : word_for_others);
      continue;
    }
    for (const ChaosFault fault : many) {
      if (is_listed(faults, fault)) words.push_back(facts_of(fault).name);
    }
  }
  return fmt::format("{}", fmt::join(words, ","));
}

std::span<const HostFault> host_faults() {
  static constexpr std::array table = {
      HostFault{ChaosFault::lost_host, "lose-host", "return-host", "is lost"},
      HostFault{ChaosFault::cut_link, "cut-link", "mend-link", "is cut off"},
      HostFault{ChaosFault::host_killed, "kill-host", "", "has all its ranks killed"},
      HostFault{ChaosFault::deaf_host, "deafen-host", "undeafen-host", "hears nobody"},
      HostFault{ChaosFault::mute_host, "mute-host", "unmute-host", "is heard by nobody"},
      HostFault{ChaosFault::lossy_link, "spoil-link", "clean-link", "loses some of what it sends and gets"},
      HostFault{ChaosFault::slow_link, "slow-link", "fast-link", "sends and gets everything late"},
      HostFault{ChaosFault::replaced_host, "lose-host", "replace-host", "is lost and not replaced", true},
      HostFault{ChaosFault::unfit_host, "unfit-host", "fit-host", "is unfit"},
      HostFault{ChaosFault::cut_pair, "cut-pair", "mend-pair", "is cut off from", false, true},
      HostFault{ChaosFault::sick_host, "sicken-host", "", "is sick"},
      HostFault{ChaosFault::stopped_host, "stop-host", "continue-host", "is stopped"},
  };
  return table;
}

const HostFault* host_fault_of(ChaosFault fault) {
  const std::span<const HostFault> all = host_faults();
  const auto found = std::ranges::find(all, fault, &HostFault::fault);
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string_view> host_fault_options() {
  std::vector<std::string_view> options;
  for (const HostFault& fault : host_faults()) {
    for (const std::string_view option : {fault.begin, fault.end}) {
      if (!option.empty() && std::ranges::find(options, option) == options.end()) options.push_back(option);
    }
  }
  return options;
}

std::string missing_commands(const HostFault& fault, const HostCommands& commands) {
  const auto reported = [&](std::string_view option) {
    const auto found = commands.find(option);
    return option.empty() || (found != commands.end() && !found->second.empty());
  };
  if (reported(fault.begin) && reported(fault.end)) return "";
  return fault.end.empty() ? fmt::format("--{} CMD", fault.begin)
                           : fmt::format("--{} CMD and --{} CMD", fault.begin, fault.end);
}

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
      return flip_of(moments[choices.below(place.moment_count)], /*is_at_rest=*/true, place, choices);
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
