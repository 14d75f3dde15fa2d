#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/config/document.h"
#include "runtime/core/json.h"
#include "runtime/core/text.h"
#include "runtime/inference/inference.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/interop/checkpoint_diff.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::cli {
namespace {

constexpr int states_differ = 1;  // as diff(1) and cmp(1)

constexpr const char* diff_usage =
    "usage: holdfast diff A B [--weights] [--json] [--all]\n"
    "\n"
    "A and B are run directories (their newest whole checkpoints) or checkpoints. Compares every tensor of "
    "the "
    "weights and\n"
    "the optimizer state, whatever layouts they were saved in, and says of those that differ: how many "
    "elements, the\n"
    "largest |a - b|, the largest |a - b| / max(|a|, |b|), and the first one. Exit code 0 when all have the "
    "same bits, 1\n"
    "when something differs, another one when they cannot be compared.\n"
    "  --weights the weights alone: the optimizer state, which an imported model lacks, is left out\n"
    "  --json    one JSON object instead of text\n"
    "  --all     equal tensors, too\n";

struct Side {
  std::string directory;
  Manifest manifest;
  Config config;
};

Result<Side> side_of(Env& env, const Checkpoint& checkpoint) {
  HF_TRY(Config config, config_of_checkpoint(env, checkpoint));
  return Side{
      .directory = checkpoint.directory(), .manifest = checkpoint.manifest(), .config = std::move(config)};
}

std::string side_text(const Side& side) {
  return fmt::format("{}: step {} of run {}", side.directory, side.manifest.step, side.manifest.run_id);
}

std::vector<std::string> row_of(const TensorDiff& diff) {
  std::vector<std::string> row = {diff.tensor, diff.kind, std::to_string(diff.elements), "equal", "", "", ""};
  if (!diff.mismatch.empty()) {
    row[3] = diff.mismatch;
  } else if (diff.differing > 0) {
    row[3] = std::to_string(diff.differing);
    row[4] = fmt::format("{:.3g}", diff.max_absolute);
    row[5] = fmt::format("{:.3g}", diff.max_relative);
    row[6] =
        fmt::format("[{}] {:.9g} {:.9g}", fmt::join(diff.first->index, ", "), diff.first->a, diff.first->b);
  }
  return row;
}

void print_text(const Side& a, const Side& b, const std::vector<TensorDiff>& diffs, bool all) {
  fmt::print("A  {}\nB  {}\n", printable(side_text(a)), printable(side_text(b)));
  for (const ConfigChange& change : diff_config(a.config, b.config))
    fmt::print("{}: {} -> {}\n", change.key, printable(change.before), printable(change.after));
  TextTable table({"tensor", "kind", "elements", "differ", "max abs", "max rel", "first (A, B)"}, 2);
  std::size_t rows = 0, equal = 0;
  for (const TensorDiff& diff : diffs) {
    equal += diff.is_equal() ? 1 : 0;
    if (diff.is_equal() && !all) continue;
    table.add(row_of(diff));
    ++rows;
  }
  if (rows > 0) fmt::print("\n{}", printable(table.text()));
  fmt::print("\n{} of {} tensors have the same bits\n", equal, diffs.size());
}

// Returns null for a value that is not finite, because JSON has no infinity.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json to_json(const Side& a, const Side& b, const std::vector<TensorDiff>& diffs) {
  const auto side_json = [](const Side& side) {
    return Json{{"directory", side.directory},
                {"run_id", side.manifest.run_id},
                {"generation", side.manifest.generation},
                {"step", side.manifest.step}};
  };
  Json json{{"equal", std::ranges::all_of(diffs, &TensorDiff::is_equal)},
            {"a", side_json(a)},
            {"b", side_json(b)},
            {"config", Json::object()},
            {"tensors", Json::array()}};
  for (const ConfigChange& change : diff_config(a.config, b.config))
    json["config"][change.key] = {change.before, change.after};
  for (const TensorDiff& diff : diffs) {
    Json entry{{"tensor", diff.tensor}, {"kind", diff.kind}, {"elements", diff.elements}};
    if (!diff.mismatch.empty()) {
      entry["mismatch"] = diff.mismatch;
    } else {
      entry["differing"] = diff.differing;
      entry["max_absolute"] = number(diff.max_absolute);
      entry["max_relative"] = number(diff.max_relative);
    }
    if (diff.first.has_value()) {
      entry["first"] = {
          {"index", diff.first->index}, {"a", number(diff.first->a)}, {"b", number(diff.first->b)}};
    }
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

struct Comparison {
  Side a, b;
  std::vector<TensorDiff> diffs;
};

Result<Comparison> compare(Env& env, Checkpoint& a, Checkpoint& b, DiffKinds kinds) {
  HF_TRY(Side side_a, side_of(env, a));
  HF_TRY(Side side_b, side_of(env, b));
  TensorReader reader_a(a, parameter_specs(make_model_spec(side_a.config)), env.processor_count());
  TensorReader reader_b(b, parameter_specs(make_model_spec(side_b.config)), env.processor_count());
  HF_TRY(std::vector<TensorDiff> diffs, diff_checkpoints(reader_a, reader_b, kinds));
  return Comparison{.a = std::move(side_a), .b = std::move(side_b), .diffs = std::move(diffs)};
}

// Compares the newest whole checkpoints of both; each one of A is tried with those of B from the newest on.
Result<Comparison> compare_newest(Env& env, const std::string& path_a, const std::string& path_b,
                                  DiffKinds kinds) {
  Comparison comparison;
  HF_TRY_VOID(use_newest_checkpoint(env, path_a, [&](Checkpoint& a) {
    return use_newest_checkpoint(env, path_b, [&](Checkpoint& b) -> Result<void> {
      HF_TRY(comparison, compare(env, a, b, kinds));
      return {};
    });
  }));
  return comparison;
}

Result<int> diff(const std::vector<std::string>& words) {
  Env& env = posix_env();
  HF_TRY(const Arguments arguments,
         Arguments::parse("diff", words, {"A", "B"}, {}, {"weights", "json", "all"}));
  const DiffKinds kinds = arguments.has("weights") ? DiffKinds::weights : DiffKinds::all;
  HF_TRY(const Comparison comparison,
         compare_newest(env, arguments.positional(0), arguments.positional(1), kinds));
  const auto& [a, b, diffs] = comparison;
  if (arguments.has("json")) {
    fmt::print("{}\n", to_json(a, b, diffs).dump_any(1));
  } else {
    print_text(a, b, diffs, arguments.has("all"));
  }
  return std::ranges::all_of(diffs, &TensorDiff::is_equal) ? 0 : states_differ;
}

}  // namespace

int run_diff_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", diff_usage);
    return 0;
  }
  const Result<int> code = diff(arguments);
  return code.ok() ? *code : complain(code.error());
}

}  // namespace holdfast::cli
