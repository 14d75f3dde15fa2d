#include "tools/chaos/chaos_fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

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

}  // namespace holdfast::chaos
