#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/config/document.h"
#include "runtime/core/json.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/inference/inference.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/interop/model_import.h"
#include "runtime/model/adapter_spec.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/save/run_state.h"

namespace holdfast::cli {
namespace {

constexpr const char* inspect_usage =
    "usage: holdfast inspect PATH [--json] [--all]\n"
    "\n"
    "PATH is a run directory or one checkpoint. Says what it holds: run, step, model, tensors, files, sizes, "
    "and of a run\n"
    "directory all its checkpoints. Reads manifests and the indices of the newest checkpoint's files, not "
    "the tensors:\n"
    "holdfast verify does that.\n"
    "  --json    one JSON object instead of text\n"
    "  --all     a line for every tensor, not one for the layers that are alike\n";

struct Inspected {
  Checkpoint checkpoint;
  Config config;
  CheckpointContents contents;
  std::vector<CheckpointCandidate> history;  // checkpoints of a run directory, newest first
};

// Opens the newest checkpoint whose files can be opened; damaged ones are listed in the history.
Result<Checkpoint> open_first(Env& env, const std::vector<std::string>& directories) {
  Result<Checkpoint> checkpoint = Checkpoint::open(env, directories.front());
  for (std::size_t i = 0; !checkpoint.ok() && i + 1 < directories.size(); ++i) {
    print_message("checkpoint skipped: {}", checkpoint.error().message);
    checkpoint = Checkpoint::open(env, directories[i + 1]);
  }
  return checkpoint;
}

Result<Inspected> read_contents(Env& env, const std::string& path) {
  HF_TRY(CheckpointPaths paths, checkpoints_at(env, path));
  HF_TRY(Checkpoint checkpoint, open_first(env, paths.directories));
  HF_TRY(Config config, config_of_checkpoint(env, checkpoint));
  CheckpointContents contents = contents_of(checkpoint, config);
  return Inspected{.checkpoint = std::move(checkpoint),
                   .config = std::move(config),
                   .contents = std::move(contents),
                   .history = std::move(paths.of_run)};
}

std::string model_text(const Config& config) {
  const ModelConfig& model = config.model;
  const ModelSpec spec = make_model_spec(config);
  std::string text = fmt::format("{}: {} parameters, {} layers, width {}, {} heads",
                                 model.preset.empty() ? model.style : model.preset, parameter_count(spec),
                                 model.layers, model.width, model.heads);
  if (model.kv_heads != model.heads) text += fmt::format(" ({} of keys and values)", model.kv_heads);
  if (model.head_size != 0) text += fmt::format(" of {} channels", model.head_size);
  text += fmt::format(", feed-forward {}, vocabulary {}, {} head", model.feed_forward, model.vocabulary,
                      model.head);
  if (model.positions > 0) text += fmt::format(", {} positions", model.positions);
  if (model.rope_scaling != "none")
    text += fmt::format(", rotary frequencies of {} by {}", model.rope_scaling, model.rope_factor);
  if (model.attention_window > 0) text += fmt::format(", a window of {} tokens", model.attention_window);
  if (model.attention_sinks > 0) text += fmt::format(" and {} sinks", model.attention_sinks);
  if (spec.lora.is_on()) text += ", " + text_of(spec.lora);
  return text;
}

std::string training_text(const Config& config) {
  const TrainingConfig& training = config.training;
  return fmt::format("{} steps, {} lanes x {} microbatches x {} samples of {} tokens, {}, {} tensor lane{}",
                     training.steps, config.parallel.lanes, training.microbatches_per_lane,
                     training.microbatch_size, training.sequence_length, training.precision,
                     config.parallel.tensor_lanes, config.parallel.tensor_lanes == 1 ? "" : "s");
}

std::string sizes_text(const Inspected& inspected) {
  const CheckpointContents& contents = inspected.contents;
  const std::size_t files = inspected.checkpoint.manifest().shards.size();
  std::string text = fmt::format("{} of tensors in {} file{} of {}", format_bytes(contents.tensor_bytes),
                                 files, files == 1 ? "" : "s", format_bytes(contents.file_bytes));
  if (contents.file_bytes < contents.tensor_bytes) {
    text += fmt::format(" ({:.1f} %)", 100.0 * static_cast<double>(contents.file_bytes) /
                                           static_cast<double>(contents.tensor_bytes));
  }
  return text;
}

// Returns the files of older checkpoints of which this one uses chunks, with their sizes; they are the same
// bytes on the disk as theirs.
std::map<std::string, std::uint64_t> base_files(const Checkpoint& checkpoint) {
  std::map<std::string, std::uint64_t> bytes;
  for (const ShardReader& shard : checkpoint.shards()) {
    for (const BaseFile& base : shard.bases()) bytes[base.name] = base.bytes;
  }
  return bytes;
}

void print_history(const std::vector<CheckpointCandidate>& history) {
  TextTable table({"step", "generation", "files", "bytes"}, 0);
  for (const CheckpointCandidate& candidate : history) {
    if (!candidate.manifest.ok()) {
      table.add({std::to_string(candidate.step), "-", "-", "damaged"});
      continue;
    }
    const Manifest& manifest = *candidate.manifest;
    table.add({std::to_string(manifest.step),
               fmt::format("{}{}", manifest.generation, candidate.discarded ? " (discarded)" : ""),
               std::to_string(manifest.shards.size()), format_bytes(bytes_of_shards(manifest))});
  }
  fmt::print("\ncheckpoints of the run, newest first\n{}", table.text());
  for (const CheckpointCandidate& candidate : history) {
    if (!candidate.manifest.ok()) fmt::print("{}\n", printable(candidate.manifest.error().message));
  }
}

// Returns the type of a tensor, and that of its moments where it is another one.
std::string types_text(const StoredTensor& tensor) {
  if (tensor.kinds.size() <= 1 || tensor.moments == tensor.dtype) return std::string(name_of(tensor.dtype));
  return fmt::format("{}, moments {}", name_of(tensor.dtype), name_of(tensor.moments));
}

void print_tensors(const std::vector<StoredTensor>& tensors, bool all) {
  TextTable table({"tensor", "type", "saved", "count", "shape", "slices", "bytes"}, 3);
  std::vector<TensorRow> rows;
  if (all) {
    for (const StoredTensor& tensor : tensors) rows.push_back({.tensor = tensor, .name = tensor.name});
  } else {
    rows = rows_by_layer(tensors);
  }
  for (const TensorRow& row : rows) {
    table.add({row.name, types_text(row.tensor), fmt::format("{}", fmt::join(row.tensor.kinds, " ")),
               std::to_string(row.count), fmt::format("{}", fmt::join(row.tensor.shape, " x ")),
               std::to_string(row.tensor.slices), format_bytes(row.tensor.bytes)});
  }
  fmt::print("\n{}", table.text());
}

// Prints the steps whose update a verdict left out.
void print_skipped(const Manifest& manifest) {
  const auto numbers = manifest.values.find(numbers_key);
  if (numbers == manifest.values.end()) return;
  const std::optional<NumbersHistory> history = NumbersHistory::from_text(numbers->second);
  if (history.has_value() && !history->skipped().empty())
    fmt::print("skipped    steps {}\n", fmt::join(history->skipped(), ", "));
}

void print_text(const Inspected& inspected, bool all) {
  const Manifest& manifest = inspected.checkpoint.manifest();
  fmt::print("{}\n", inspected.checkpoint.directory());
  fmt::print("step       {} (generation {})\nrun        {}\n", manifest.step, manifest.generation,
             manifest.run_id);
  fmt::print("model      {}\n", printable(model_text(inspected.config)));
  if (const auto source = manifest.values.find(imported_from_key); source != manifest.values.end()) {
    fmt::print("imported   weights only, from {}\n", printable(source->second));
  } else {
    fmt::print("training   {}\n", printable(training_text(inspected.config)));
  }
  fmt::print("size       {}\n", sizes_text(inspected));
  for (const auto& [key, value] : manifest.values) {
    if (key != imported_from_key && key != unused_steps_key && key != numbers_key)
      fmt::print("{}{}{}\n", printable(key), key.size() < 10 ? std::string(11 - key.size(), ' ') : " ",
                 printable(value));
  }
  print_skipped(manifest);
  if (!inspected.history.empty()) print_history(inspected.history);
  print_tensors(inspected.contents.tensors, all);
  TextTable files({"file", "pieces", "bytes"}, 1);
  for (const ShardFile& shard : manifest.shards)
    files.add({shard.name, std::to_string(shard.piece_count), format_bytes(shard.bytes)});
  for (const auto& [name, bytes] : base_files(inspected.checkpoint))
    files.add({name, "in part", format_bytes(bytes)});
  fmt::print("\n{}", files.text());
}

Json history_json(const std::vector<CheckpointCandidate>& history) {
  Json list = Json::array();
  for (const CheckpointCandidate& candidate : history) {
    Json entry{{"directory", candidate.directory}, {"step", candidate.step}};
    if (candidate.manifest.ok()) {
      entry["generation"] = candidate.manifest->generation;
      entry["discarded"] = candidate.discarded;
      entry["files"] = candidate.manifest->shards.size();
      entry["bytes"] = bytes_of_shards(*candidate.manifest);
    } else {
      entry["damaged"] = candidate.manifest.error().message;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json to_json(const Inspected& inspected) {
  const Manifest& manifest = inspected.checkpoint.manifest();
  const ModelSpec spec = make_model_spec(inspected.config);
  Json json{{"directory", inspected.checkpoint.directory()},
            {"run_id", manifest.run_id},
            {"generation", manifest.generation},
            {"step", manifest.step},
            {"parameters", parameter_count(spec)},
            {"precision", inspected.config.training.precision},
            {"lanes", inspected.config.parallel.lanes},
            {"tensor_lanes", inspected.config.parallel.tensor_lanes},
            {"values", manifest.values},
            {"tensor_bytes", inspected.contents.tensor_bytes},
            {"file_bytes", inspected.contents.file_bytes},
            {"files", Json::array()},
            {"base_files", Json::array()},
            {"tensors", Json::array()}};
  for (const ShardFile& shard : manifest.shards)
    json["files"].push_back({{"name", shard.name}, {"bytes", shard.bytes}, {"pieces", shard.piece_count}});
  for (const auto& [name, bytes] : base_files(inspected.checkpoint))
    json["base_files"].push_back({{"name", name}, {"bytes", bytes}});
  for (const StoredTensor& tensor : inspected.contents.tensors) {
    Json described{{"name", tensor.name},   {"shape", tensor.shape},   {"type", name_of(tensor.dtype)},
                   {"kinds", tensor.kinds}, {"slices", tensor.slices}, {"pieces", tensor.pieces},
                   {"bytes", tensor.bytes}};
    if (tensor.kinds.size() > 1) described["moments_type"] = name_of(tensor.moments);
    json["tensors"].push_back(std::move(described));
  }
  if (!inspected.history.empty()) json["checkpoints"] = history_json(inspected.history);
  json["config"] = without_commands(manifest.config);
  return json;
}

Result<void> inspect(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("inspect", words, {"PATH"}, {}, {"json", "all"}));
  HF_TRY(const Inspected inspected, read_contents(posix_env(), arguments.positional(0)));
  if (arguments.has("json")) {
    fmt::print("{}\n", to_json(inspected).dump_any(1));
  } else {
    print_text(inspected, arguments.has("all"));
  }
  return {};
}

}  // namespace

int run_inspect_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", inspect_usage);
    return 0;
  }
  const Result<void> outcome = inspect(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
