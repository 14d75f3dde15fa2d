#include "runtime/elastic/resume.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/candidates.h"
#include "checkpoint/find_checkpoint.h"
#include "checkpoint/names.h"
#include "runtime/config/document.h"
#include "runtime/config/option_value.h"
#include "runtime/core/json.h"
#include "runtime/interop/model_import.h"
#include "runtime/model/spec.h"
#include "runtime/os/paths.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/run/run_directory.h"

namespace holdfast::elastic {
namespace {

OwnCheckpoint without_files(const FoundCheckpoint& found) {
  return {.manifest = found.checkpoint.manifest(),
          .directory = found.checkpoint.directory(),
          .skipped = found.skipped};
}

StartPoint start_at(const OwnCheckpoint& found) {
  const Manifest& manifest = found.manifest;
  StartPoint start{.checkpoint = found.directory,
                   .generation = manifest.generation,
                   .step = manifest.step,
                   .content = found.content,
                   .config = manifest.config,
                   .device = {},
                   .notes = found.skipped};
  start.device = value_of(manifest, "device");
  start.device_plan = value_of(manifest, "device_plan");
  return start;
}

// Refuses an imported model, which has no training state to go on with.
Result<void> check_has_state(const OwnCheckpoint& found) {
  const Manifest& manifest = found.manifest;
  const auto source = manifest.values.find(imported_from_key);
  if (source == manifest.values.end()) return {};
  return fail(ExitCode::config,
              "{} is a model imported from {}: weights without a training state. Start a new run from it: "
              "another run.directory, and run.initialize_from = the imported one",
              found.directory, source->second);
}

Result<Config> stored_config(Env& env, const StartPoint& start) {
  Result<LoadedConfig> loaded = load_stored_config(env, start.config, name_of(start) + " (stored config)");
  if (!loaded.ok()) return with_code(ExitCode::checkpoint, loaded.error());
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

// Returns the ops whose kernels a key chooses: that of "kernels.rotary", and those of the rules of both configs.
std::vector<OpId> ops_of_key(std::string_view key, const KernelsConfig& before, const KernelsConfig& after) {
  const auto is_about = [](const KernelsConfig& kernels, std::string_view op) {
    return std::ranges::any_of(kernels.rules, [op](const KernelRuleConfig& rule) { return rule.op == op; });
  };
  std::vector<OpId> ops;
  for (std::size_t index = 0; index < op_count; ++index) {
    const bool is_of_rule =
        key == "kernels.rules" && (is_about(before, op_names[index]) || is_about(after, op_names[index]));
    if (is_of_rule || key == fmt::format("kernels.{}", op_names[index]))
      ops.push_back(static_cast<OpId>(index));
  }
  return ops;
}

// Returns true if the run has begun a generation at `wanted` with these settings, and still descends from it.
Result<bool> has_begun_at(Env& env, const StartPoint& wanted, const Config& config) {
  HF_TRY(const Config stored, stored_config(env, wanted));
  Config resolved = config;
  inherit_resolved(resolved, stored);
  HF_TRY_VOID(resolve_config(resolved, stored.model.vocabulary));
  const std::string settings = numeric_settings(resolved);
  const ParentCheckpoint state = {.generation = wanted.generation, .step = wanted.step};
  return std::ranges::any_of(wanted.lineage.ancestry(), [&](const Generation* each) {
    return each->parent == state && each->settings == settings;
  });
}

// Makes `start` begin a generation. States that earlier generations made beyond it are discarded from now on.
void begin_generation_at(StartPoint& start, std::string reason) {
  const std::uint64_t newest = std::max(start.lineage.current(), start.generation);
  start.lineage.generations.push_back(
      {.number = newest + 1, .parent = {.generation = start.generation, .step = start.step}});
  start.begins = std::move(reason);
}

Result<void> check_same_run(Env& env, const std::string& run_directory, const std::string& path,
                            const Manifest& wanted) {
  HF_TRY(const std::vector<CheckpointCandidate> own, list_candidates(env, run_directory));
  for (const CheckpointCandidate& here : own) {
    if (!here.manifest.ok() || here.manifest->run_id == wanted.run_id) continue;
    return fail(
        ExitCode::config,
        "run.resume = {} is run {}, but run.directory already holds checkpoints of run {} up to step {}; two "
        "runs in one directory would replace each other's checkpoints. Give a new run.directory",
        path, wanted.run_id, here.manifest->run_id, here.manifest->step);
  }
  return {};
}

// Chooses the start for a path. `own`: the checkpoint that the run directory itself would go on from; none
// also if nothing in it can be used.
Result<StartPoint> start_at_path(Env& env, const Config& config, const std::optional<OwnCheckpoint>& own,
                                 const Lineage& lineage, const Pace& pace) {
  const std::string& path = config.run.resume;
  const auto verify = [&](Checkpoint& checkpoint) { return checkpoint.verify(env.processor_count(), pace); };
  HF_TRY(const std::optional<FoundCheckpoint> at_path, find_checkpoint(env, path, verify));
  if (!at_path.has_value()) {
    return fail(ExitCode::checkpoint,
                "run.resume: {} holds no checkpoint; expected a run directory or a checkpoint of one", path);
  }
  const OwnCheckpoint found = without_files(*at_path);
  HF_TRY_VOID(check_has_state(found));
  HF_TRY_VOID(check_same_run(env, config.run.directory, path, found.manifest));
  const auto age = [](const OwnCheckpoint& one) {
    return std::pair(one.manifest.generation, one.manifest.step);
  };
  const auto with_lineage = [&](const OwnCheckpoint& one) {
    StartPoint start = start_at(one);
    if (lineage.run_id == one.manifest.run_id) start.lineage = lineage;
    return start;
  };
  StartPoint start = with_lineage(found);
  HF_TRY(const bool begun, has_begun_at(env, start, config));
  if (begun && start.lineage.discards(state_of(found.manifest))) {  // the run has rolled back to before it
    StartPoint afresh;
    afresh.lineage = lineage;
    return own.has_value() ? with_lineage(*own) : afresh;
  }
  if (begun) return own.has_value() && age(*own) > age(found) ? with_lineage(*own) : start;
  const bool outside = !real_path(found.directory).starts_with(real_path(config.run.directory) + "/");
  if (outside && own.has_value() && age(*own) > age(found)) return with_lineage(*own);
  begin_generation_at(start, fmt::format("run.resume names step {}", start.step));
  if (outside && !own.has_value() && start.lineage.run_id.empty())
    start.shm_run_id = new_run_id(env);  // other objects of that run belong to its own directory
  return start;
}

// Returns a reason if the newest checkpoint that the run has published is gone and `start` is older; else
// empty.
std::string newest_was_removed(const OwnStates& own, const StartPoint& start) {
  const std::optional<ParentCheckpoint>& newest = start.lineage.newest_checkpoint;
  if (!newest.has_value() || own.has_newest_recorded) return "";
  if (std::pair(start.generation, start.step) >= std::pair(newest->generation, newest->step)) return "";
  return fmt::format("the checkpoint of step {} was removed", newest->step);
}

Result<StartPoint> choose_checkpoint(Env& env, const Config& config, const OwnStates& states,
                                     const Pace& pace) {
  const std::string& resume = config.run.resume;
  const std::string& directory = config.run.directory;
  const bool named =
      resume != "auto" && resume != "must" && resume != "never" && real_path(resume) != real_path(directory);
  if (!states.newest.ok() && !named) return states.newest.error();
  const std::optional<OwnCheckpoint> own = states.newest.ok() ? *states.newest : std::nullopt;
  if (own.has_value()) HF_TRY_VOID(check_has_state(*own));
  if (resume == "never") {
    if (!own.has_value()) return StartPoint{};
    return fail(ExitCode::config,
                "run.resume = \"never\", but {} holds checkpoints up to step {}; nothing is overwritten. "
                "Give another "
                "run.directory, remove this one, or set run.resume = \"auto\"",
                directory, own->manifest.step);
  }
  if (named) return start_at_path(env, config, own, states.lineage, pace);
  const bool may_come = !config.checkpoint.download_command.empty();
  if (resume == "must" && !own.has_value() && !may_come && !states.lineage.goes_back_to_start())
    return nothing_to_resume(directory);
  StartPoint start = own.has_value() ? start_at(*own) : StartPoint{};
  if (!own.has_value() || states.lineage.run_id == own->manifest.run_id) start.lineage = states.lineage;
  return start;
}

}  // namespace

Error nothing_to_resume(const std::string& run_directory) {
  return fail(
      ExitCode::checkpoint,
      "run.resume = \"must\", but {} holds no checkpoint. Give the directory of the run to resume, or set "
      "run.resume = \"auto\" to start afresh",
      run_directory);
}

Error why_unusable(const StartPoint& start) {
  return {.code = start.unusable_code, .message = start.unusable, .reach = start.unusable_reach};
}

Result<OwnStates> states_of_directory(Env& env, const std::string& run_directory, const CheckpointUse& use) {
  OwnStates own;
  HF_TRY(own.lineage, read_lineage(env, run_directory));
  const Result<std::optional<FoundCheckpoint>> found =
      use ? find_checkpoint(env, run_directory, use) : find_checkpoint(env, run_directory);
  if (!found.ok()) {
    own.newest = found.error();
  } else if (found->has_value()) {
    own.newest = std::optional(without_files(**found));
  }
  if (const auto& newest = own.lineage.newest_checkpoint; newest.has_value()) {
    const std::string directory =
        checkpoint_names::checkpoints(run_directory) + "/" + checkpoint_names::step_name(newest->step);
    const Result<FileStatus> status = env.status(directory);
    if (!status.ok()) return with_code(ExitCode::checkpoint, status.error());
    own.has_newest_recorded = status->exists;
  }
  HF_TRY(const RunIdentity identity, identify_run(env, {run_directory}));
  own.shm_run_id = identity.id;
  own.copy_of = identity.copy_of;
  return own;
}

Result<StartPoint> choose_start(Env& env, const Config& config, const OwnStates& own, bool in_place,
                                const Pace& pace) {
  HF_TRY(StartPoint start, choose_checkpoint(env, config, own, pace));
  if (!in_place && start.begins.empty() && config.run.resume != "never") {
    if (std::string removed = newest_was_removed(own, start); !removed.empty())
      begin_generation_at(start, std::move(removed));
  }
  start.copy_of = own.copy_of;
  if (start.shm_run_id.empty()) start.shm_run_id = own.shm_run_id;
  if (start.shm_run_id.empty() && !start.checkpoint.empty()) start.shm_run_id = new_run_id(env);
  return start;
}

std::string name_of(const StartPoint& start) {
  return start.snapshot ? fmt::format("the RAM snapshot of step {}", start.snapshot->step) : start.checkpoint;
}

// Older programs had an op for the derivative of GELU, which no Llama-style model called.
bool changes_device(const StartPoint& start, const Config& config, const std::string& identity) {
  std::string made_on = start.device;
  const std::size_t retired = made_on.find(", gelu_backward ");
  if (retired != std::string::npos && config.model.style == "llama")
    made_on.erase(retired, made_on.find(',', retired + 1) - retired);
  return !made_on.empty() && made_on != identity;
}

Result<void> adopt_stored_shape(Env& env, const StartPoint& start, Config& config) {
  if (start.config.empty()) return {};
  HF_TRY(const Config stored, stored_config(env, start));
  inherit_resolved(config, stored);
  return {};
}

Result<ResumeChanges> compare_with_stored(Env& env, const StartPoint& start, const Config& config) {
  ResumeChanges changes;
  if (start.config.empty()) return changes;
  HF_TRY(const Config stored, stored_config(env, start));
  std::string forbidden;
  for (ConfigChange& change : diff_config(stored, config)) {
    const std::vector<OpId> ops = ops_of_key(change.key, stored.kernels, config.kernels);
    const auto has_same_bits = [&](OpId op) {
      return same_kernel_bits(stored.kernels, config.kernels, op, precision_of(config));
    };
    if (!ops.empty() && std::ranges::all_of(ops, has_same_bits)) change.effect = ResumeEffect::safe;
    const std::string line =
        fmt::format("{}: {} -> {}  ({})", change.key, change.before, change.after, name_of(change.effect));
    if (change.effect == ResumeEffect::forbidden) forbidden += "\n  " + line;
    if (change.effect == ResumeEffect::numeric)
      changes.numeric += (changes.numeric.empty() ? "" : ", ") + change.key;
    changes.lines.push_back(line);
  }
  if (forbidden.empty()) return changes;
  return fail(ExitCode::config,
              "{} was made by another configuration; these keys decide what the run is and cannot change on "
              "resume:{}\n"
              "Put them back, or start a new run in another run.directory",
              name_of(start), forbidden);
}

Result<KernelFaults> left_out_anew(Env& env, const StartPoint& start, const KernelFaults& left_out) {
  if (left_out.empty() || start.config.empty()) return left_out;
  HF_TRY(const Config stored, stored_config(env, start));
  KernelFaults anew = left_out;
  std::erase_if(anew, [&](const KernelFault& each) { return !asks_for(stored.kernels, each.kernel); });
  return anew;
}

std::string numeric_settings(const Config& config) {
  std::string text;
  for (const Option& option : option_registry()) {
    // Generations from before there were rules have settings without them.
    if (option.key == "kernels.rules" && config.kernels.rules.empty()) continue;
    if (option.effect == ResumeEffect::numeric)
      text += fmt::format("{} = {}\n", option.key, value_text(option, config));
  }
  return to_hex(digest_of(text));
}

}  // namespace holdfast::elastic
