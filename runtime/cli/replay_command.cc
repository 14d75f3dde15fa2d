#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdio>

#include "parallel/comm/launcher.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/cli/rank_group.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/replay/replay.h"

namespace holdfast::cli {
namespace {

constexpr int step_differs = 1;  // as `holdfast diff`

constexpr const char* replay_usage =
    "usage: holdfast replay RUN --step S [--checks] [--section.key=value ...]\n"
    "\n"
    "Computes step S of a run again and compares its bits with those that the run recorded: equal bits say "
    "that the numbers\n"
    "come from the data and the settings, other bits that some hardware computed wrongly. Begins at the "
    "newest whole\n"
    "checkpoint from before S, or at the initial weights. Only reads RUN.\n"
    "\n"
    "Alone it is one rank; under tools/mpirun -np N it computes with N, in the layout of the run if N fits "
    "it, else with\n"
    "data parallelism alone. parallel.data, tensor and pipeline may be given, and other keys that change no "
    "number.\n"
    "\n"
    "Prints the numbers of the step, and of each lane its loss, a digest of the bits of its losses, and its "
    "first sample.\n"
    "  --checks  also look at every result of every op of the step: the first that is not finite, the one "
    "that "
    "grew most,\n"
    "            and a digest of all, which is equal where the same layout computed the same\n"
    "\n"
    "Exit code 0 when all numbers have the same bits, 1 when some differ, 2 when there is no such step, 4 "
    "when the data\n"
    "are not those of the run, 5 when no checkpoint leads to the step.\n";

struct ReplayWords {
  std::vector<std::string> overrides, others;
};

ReplayWords split_words(const std::vector<std::string>& words) {
  ReplayWords result;
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_key =
        name.starts_with("--") && (name.find('.') != std::string::npos || name == "--threads");
    (is_key ? result.overrides : result.others).push_back(word);
  }
  return result;
}

Result<ReplayRequest> read_request(const std::vector<std::string>& words) {
  const ReplayWords given = split_words(words);
  HF_TRY(const Arguments arguments, Arguments::parse("replay", given.others, {"RUN"}, {"step"}, {"checks"}));
  if (!arguments.has("step")) {
    return fail(ExitCode::config, "replay needs --step S, the step to compute again, counted from 1");
  }
  HF_TRY(const std::int64_t step, arguments.integer("step", 0, 1));
  ReplayRequest request{.run_directory = arguments.positional(0),
                        .step = static_cast<std::uint64_t>(step),
                        .checks = arguments.has("checks")};
  HF_TRY(request.overrides, parse_overrides(given.overrides));
  while (request.run_directory.size() > 1 && request.run_directory.ends_with('/'))
    request.run_directory.pop_back();
  return request;
}

std::string number_text(double value) {
  return fmt::format("{:.9g} {:016x}", value, std::bit_cast<std::uint64_t>(value));
}

// Returns the first tokens of a sample: as text where each is a byte, else as numbers.
std::string tokens_text(const std::vector<std::int32_t>& tokens, const std::string& format) {
  constexpr std::size_t numbers_shown = 8;
  if (format != "text") {
    const std::size_t count = std::min(numbers_shown, tokens.size());
    return fmt::format("tokens {}",
                       fmt::join(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count), " "));
  }
  std::string text;
  for (const std::int32_t token : tokens) text += static_cast<char>(token);
  std::string shown;
  for (const char each : printable(text)) {
    if (each == '\n') {
      shown += "\\n";
    } else if (each == '\t') {
      shown += "\\t";
    } else {
      shown += each;
    }
  }
  return "\"" + shown + "\"";
}

void print_lanes(const ReplayedStep& step) {
  for (const ReplayedLane& lane : step.lanes)
    fmt::print("lane {} loss {} digest {}\n", lane.lane, number_text(lane.loss()), to_hex(lane.digest()));
  for (const ReplayedLane& lane : step.lanes) {
    const SampleId& first = lane.samples.first;
    const SourceConfig& source = step.sources[first.source];
    fmt::print("lane {} first sample {} of {}, epoch {}: {}\n", lane.lane, first.sample,
               printable(source.path), first.epoch, tokens_text(lane.samples.tokens, source.format));
  }
}

void print_checks(const ReplayedStep& step) {
  for (std::size_t rank = 0; rank < step.checks.size(); ++rank) {
    const RankChecks& checks = step.checks[rank];
    const auto named = [](const CheckedOp& op) {
      return fmt::format("op {} ({}), result {}", op.order, describe(op), op.output);
    };
    std::string found = "all finite";
    if (const auto& first = checks.first_nonfinite; first.has_value())
      found = fmt::format("not finite first {}, {} elements", named(*first), first->nonfinite);
    if (const auto& growth = checks.largest_growth; growth.has_value())
      found += fmt::format("; largest growth {:.3g} times, {}", growth->growth, named(*growth));
    if (checks.left_out > 0) found += fmt::format("; the last {} results were not checked", checks.left_out);
    fmt::print("rank {} checks {} ops, {} results, digest {}: {}\n", rank, checks.ops, checks.results,
               checks.digest, found);
  }
}

std::string comparison_text(const ReplayedStep& step) {
  if (step.is_same()) {
    return step.failure.empty() && step.recorded.has_value() ? "same bits" : "not finite, as in the run";
  }
  std::string text = fmt::format("differs in {}", fmt::join(step.differing, ", "));
  if (!step.recorded.has_value()) return text + ": the run ended here with numbers that were not finite";
  const RecordedNumbers& there = *step.recorded;
  return text + fmt::format("; recorded: loss {}, grad_norm {}, learning_rate {}", number_text(there.loss),
                            number_text(there.grad_norm), number_text(there.learning_rate));
}

void print_step(const ReplayedStep& step) {
  fmt::print("step {}\n", step.step);
  if (step.failure.empty()) {
    fmt::print("loss {}\ngrad_norm {}\nlearning_rate {}\ndata {}\n", number_text(step.computed.loss),
               number_text(step.computed.grad_norm), number_text(step.computed.learning_rate),
               to_hex(step.computed.data));
  } else {
    fmt::print("failed {}\n", step.failure);
  }
  print_lanes(step);
  print_checks(step);
  if (step.first_difference > 0) fmt::print("first_difference step {}\n", step.first_difference);
  fmt::print("comparison {}\n", comparison_text(step));
}

Result<int> replay_as_rank(const std::vector<std::string>& words, RankGroup& group) {
  Env& env = posix_env();
  HF_TRY(const ReplayRequest request, read_request(words));
  const int rank = group.communicator().rank();
  HF_TRY(const std::unique_ptr<FaultPoints> faults,
         FaultPoints::parse(env.variable("HOLDFAST_FAULTS"), rank, env));
  HF_TRY(const ReplayedStep step,
         replay_step({.env = env,
                      .faults = *faults,
                      .communicator = group.communicator(),
                      .build = program_digest(env),
                      .rank_on_host = launched_rank_on_host(env),
                      .say = [](const std::string& sentence) { print_message("{}", sentence); }},
                     request));
  if (rank == 0) print_step(step);
  return step.is_same() ? 0 : step_differs;
}

}  // namespace

int run_replay_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", replay_usage);
    return 0;
  }
  Result<RankGroup> group = join_ranks(posix_env());
  if (!group.ok()) return complain(group.error());
  // Every rank joins before it reports on its input, so that one of them reports it.
  const Result<int> outcome = replay_as_rank(arguments, *group);
  const bool peer_gone = group->communicator().abandoned(), speaks = group->communicator().rank() == 0;
  std::fflush(stdout);
  if (!outcome.ok() && (speaks || peer_gone)) complain(outcome.error());
  const int code = outcome.ok() ? *outcome : static_cast<int>(outcome.error().code);
  return leave_ranks(*group, code, outcome.ok() ? ExitCode::communication : outcome.error().code);
}

}  // namespace holdfast::cli
