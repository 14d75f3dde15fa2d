#include "runtime/train/resume.h"

#include <nlohmann/json.hpp>

#include "checkpoint/store.h"
#include "runtime/config/document.h"
#include "runtime/exchange/model_import.h"
#include "runtime/model/spec.h"
#include "runtime/train/kernel_choice.h"
#include "runtime/train/run_identity.h"

namespace holdfast {
namespace {

StartPoint start_at(const FoundCheckpoint& found) {
  const Manifest& manifest = found.checkpoint.manifest();
  StartPoint start{.checkpoint = found.checkpoint.directory(),
                   .generation = manifest.generation,
                   .step = manifest.step,
                   .config = manifest.config,
                   .device = {},
                   .notes = found.skipped};
  if (const auto device = manifest.values.find("device"); device != manifest.values.end())
    start.device = device->second;
  return start;
}

// An imported model has no training state to go on with.
Result<void> check_has_state(const FoundCheckpoint& found) {
  const Manifest& manifest = found.checkpoint.manifest();
  const auto source = manifest.values.find(imported_from_key);
  if (source == manifest.values.end()) return {};
  return fail(ExitCode::config,
              "{} is a model imported from {}: weights without a training state. Start a new run from it: "
              "another run.directory, and run.initialize_from = the imported one",
              found.checkpoint.directory(), source->second);
}

Result<StartPoint> start_at_path(Env& env, const std::string& path, std::optional<FoundCheckpoint> own) {
  HF_TRY(const std::optional<FoundCheckpoint> found, find_checkpoint(env, path));
  if (!found.has_value()) {
    return fail(ExitCode::checkpoint,
                "run.resume: {} holds no checkpoint; expected a run directory or a checkpoint of one", path);
  }
  HF_TRY_VOID(check_has_state(*found));
  const Manifest& wanted = found->checkpoint.manifest();
  if (!own.has_value()) {
    StartPoint start = start_at(*found);
    start.memory_id = new_run_id(env);  // what else there is of that run belongs to its own directory
    return start;
  }
  const Manifest& here = own->checkpoint.manifest();
  if (here.run_id == wanted.run_id) return start_at(here.step > wanted.step ? *own : *found);
  return fail(
      ExitCode::config,
      "run.resume = {} is run {}, but run.directory already holds checkpoints of run {} up to step {}; two "
      "runs in one directory would replace each other's checkpoints. Give a new run.directory",
      path, wanted.run_id, here.run_id, here.step);
}

Result<Config> stored_config(Env& env, const StartPoint& start) {
  Result<LoadedConfig> loaded = load_stored_config(env, start.config, name_of(start) + " (stored config)");
  if (!loaded.ok()) return Error{ExitCode::checkpoint, loaded.error().message};
  return loaded->config;
}

const char* name_of(ResumeEffect effect) {
  switch (effect) {
    case ResumeEffect::safe:
      return "safe";
    case ResumeEffect::numeric:
      return "numeric: the steps from here on differ from the run as it was";
    case ResumeEffect::forbidden:
      return "forbidden";
  }
  return "";
}

// Of "kernels.rotary".
std::optional<OpId> op_of_key(std::string_view key) {
  for (std::size_t index = 0; index < op_count; ++index) {
    if (key == fmt::format("kernels.{}", op_names[index])) return static_cast<OpId>(index);
  }
  return std::nullopt;
}

Result<StartPoint> choose_checkpoint(Env& env, const Config& config) {
  const std::string& resume = config.run.resume;
  const std::string& directory = config.run.directory;
  HF_TRY(std::optional<FoundCheckpoint> own, find_checkpoint(env, directory));
  if (own.has_value()) HF_TRY_VOID(check_has_state(*own));
  if (resume == "never") {
    if (!own.has_value()) return StartPoint{};
    return fail(ExitCode::config,
                "run.resume = \"never\", but {} holds checkpoints up to step {}; nothing is overwritten. "
                "Give another "
                "run.directory, remove this one, or set run.resume = \"auto\"",
                directory, own->checkpoint.manifest().step);
  }
  if (resume != "auto" && resume != "must") return start_at_path(env, resume, std::move(own));
  if (own.has_value()) return start_at(*own);
  if (resume == "must") {
    return fail(
        ExitCode::checkpoint,
        "run.resume = \"must\", but {} holds no checkpoint. Give the directory of the run to resume, or set "
        "run.resume = \"auto\" to start afresh",
        directory);
  }
  return StartPoint{};
}

}  // namespace

Result<StartPoint> choose_start(Env& env, const Config& config) {
  HF_TRY(StartPoint start, choose_checkpoint(env, config));
  const RunIdentity identity = identify_run(env, {config.run.directory});
  start.copy_of = identity.copy_of;
  if (start.memory_id.empty()) start.memory_id = identity.id;
  if (start.memory_id.empty() && !start.checkpoint.empty()) start.memory_id = new_run_id(env);
  return start;
}

std::string name_of(const StartPoint& start) {
  return start.snapshot ? fmt::format("the RAM snapshot of step {}", start.snapshot->step) : start.checkpoint;
}

std::string to_text(const StartPoint& start) {
  const SnapshotStep snapshot = start.snapshot.value_or(SnapshotStep{});
  nlohmann::json passed_over = nlohmann::json::array();
  for (const SnapshotStep& step : start.passed_over)
    passed_over.push_back({step.writer, step.generation, step.step});
  return nlohmann::json::array({start.checkpoint, start.generation, start.step, start.memory_id,
                                start.snapshot.has_value(), snapshot.writer, snapshot.generation,
                                snapshot.step, start.config, start.device, start.notes, start.writer,
                                passed_over, start.copy_of})
      .dump();
}

StartPoint start_from_text(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);  // from rank 0, which runs the same binary
  StartPoint start = {.checkpoint = json[0],
                      .generation = json[1],
                      .step = json[2],
                      .memory_id = json[3],
                      .config = json[8],
                      .device = json[9],
                      .notes = json[10],
                      .copy_of = json[13],
                      .writer = json[11]};
  for (const nlohmann::json& step : json[12])
    start.passed_over.push_back({.writer = step[0], .generation = step[1], .step = step[2]});
  if (json[4]) start.snapshot = {.writer = json[5], .generation = json[6], .step = json[7]};
  return start;
}

Result<void> adopt_stored_shape(Env& env, const StartPoint& start, Config& config) {
  if (start.config.empty()) return {};
  HF_TRY(const Config stored, stored_config(env, start));
  inherit_resolved(config, stored);
  return {};
}

Result<std::vector<std::string>> compare_with_stored(Env& env, const StartPoint& start,
                                                     const Config& config) {
  std::vector<std::string> lines;
  if (start.config.empty()) return lines;
  HF_TRY(const Config stored, stored_config(env, start));
  std::string forbidden;
  for (ConfigChange& change : diff_config(stored, config)) {
    if (const std::optional<OpId> op = op_of_key(change.key);
        op.has_value() && same_kernel_bits(stored.kernels, config.kernels, *op, precision_of(config))) {
      change.effect = ResumeEffect::safe;
    }
    const std::string line =
        fmt::format("{}: {} -> {}  ({})", change.key, change.before, change.after, name_of(change.effect));
    if (change.effect == ResumeEffect::forbidden) forbidden += "\n  " + line;
    lines.push_back(line);
  }
  if (forbidden.empty()) return lines;
  return fail(ExitCode::config,
              "{} was made by another configuration; these keys decide what the run is and cannot change on "
              "resume:{}\n"
              "Put them back, or start a new run in another run.directory",
              name_of(start), forbidden);
}

}  // namespace holdfast
