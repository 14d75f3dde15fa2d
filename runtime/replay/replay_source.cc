#include "runtime/replay/replay_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "runtime/config/loader.h"
#include "runtime/optim/schedule.h"
#include "runtime/os/foreign_text.h"
#include "runtime/replay/recorded_steps.h"
#include "runtime/run/run_directory.h"

namespace holdfast::replay {
namespace {

struct StoredText {
  std::string text, place;
};

// Returns the configs of the generation that are still there, the newest first.
std::vector<StoredText> configs_of_generation(Env& env, const std::string& run_directory,
                                              const Lineage& lineage, std::uint64_t generation,
                                              const std::vector<CheckpointCandidate>& candidates) {
  std::vector<StoredText> texts;
  const std::string of_run = RunPaths{run_directory}.config();
  if (generation == lineage.current())
    texts.push_back({text_within_or_empty(env, of_run, text_limits::config), of_run});
  for (const CheckpointCandidate& each : candidates) {
    if (each.manifest.ok() && each.manifest->generation == generation)
      texts.push_back({each.manifest->config, each.directory + "/" + checkpoint_names::manifest});
  }
  std::erase_if(texts, [](const StoredText& each) { return each.text.empty(); });
  return texts;
}

struct ChosenConfig {
  StoredText source;
  Config config;
};

Result<ChosenConfig> choose_config(Env& env, const std::vector<StoredText>& texts, std::uint64_t step,
                                   double learning_rate) {
  std::optional<ChosenConfig> first;
  for (const StoredText& each : texts) {
    HF_TRY(const LoadedConfig loaded, load_stored_config(env, each.text, each.place));
    const Config& config = loaded.config;
    if (!first.has_value()) first = ChosenConfig{.source = each, .config = config};
    const double rate =
        learning_rate_at(config.optimizer, static_cast<std::int64_t>(step), config.training.steps);
    if (is_same_number(learning_rate, rate)) return ChosenConfig{.source = each, .config = config};
  }
  return *first;
}

std::string value_of(const Manifest& manifest, const std::string& key) {
  const auto found = manifest.values.find(key);
  return found == manifest.values.end() ? "" : found->second;
}

// Looks for the newest whole checkpoint that leads to the step.
void find_state(Env& env, const Lineage& lineage, const std::vector<CheckpointCandidate>& candidates,
                std::uint64_t step, ReplaySource& source) {
  for (const CheckpointCandidate& each : candidates) {
    if (each.step >= step) continue;
    if (!each.manifest.ok()) {
      source.skipped.push_back(each.manifest.error().message);
      continue;
    }
    if (!leads_to_step(lineage, state_of(*each.manifest), step)) continue;
    if (const Result<Checkpoint> whole = open_verified(env, each.directory); !whole.ok()) {
      source.skipped.push_back(whole.error().message);
      continue;
    }
    source.checkpoint = each.directory;
    source.step = each.manifest->step;
    source.device = value_of(*each.manifest, "device");
    return;
  }
}

// Checks that the step can be computed from the initial weights.
Result<void> check_begins_afresh(const std::string& run_directory, const Lineage& lineage,
                                 std::uint64_t generation, const Config& config, std::uint64_t step,
                                 const std::vector<std::string>& skipped) {
  std::string why;
  const Generation* record = lineage.find(generation);
  while (record != nullptr && record->is_rollback) record = lineage.find(record->parent.generation);
  if (record != nullptr && record->parent.step > 0) {
    why = fmt::format("generation {}, which it belongs to, began at step {} of another one", generation,
                      record->parent.step);
  } else if (!config.run.initialize_from.empty()) {
    why = fmt::format("the run began with the weights of run.initialize_from = {}, which may be others now",
                      config.run.initialize_from);
  }
  if (why.empty()) return {};
  return fail(ExitCode::checkpoint,
              "{} has no whole checkpoint from before step {} that leads to it, and {}. Give a later step, "
              "or put an older checkpoint back (checkpoint.keep_every_steps keeps some){}{}",
              checkpoint_names::checkpoints(run_directory), step, why, skipped.empty() ? "" : ":\n  ",
              fmt::join(skipped, "\n  "));
}

}  // namespace

std::uint64_t generation_of_step(const Lineage& lineage, std::uint64_t step) {
  std::uint64_t number = lineage.current();
  for (const Generation* each : lineage.ancestry()) {
    if (step > each->parent.step) return each->number;
    number = each->parent.generation;
  }
  return number;
}

bool leads_to_step(const Lineage& lineage, const ParentCheckpoint& state, std::uint64_t step) {
  if (state.step >= step) return false;
  std::uint64_t generation = generation_of_step(lineage, step);
  while (state.generation != generation) {
    const Generation* const record = lineage.find(generation);
    if (record == nullptr || record->parent.generation >= generation) return false;
    if (record->parent == state) return true;
    if (!record->is_rollback || state.step > record->parent.step) return false;
    generation = record->parent.generation;
  }
  return true;
}

Result<ReplaySource> find_replay_source(Env& env, const std::string& run_directory, std::uint64_t step,
                                        double learning_rate) {
  HF_TRY(const Lineage lineage, read_lineage(env, run_directory));
  HF_TRY(const std::vector<CheckpointCandidate> candidates, list_candidates(env, run_directory));
  const std::uint64_t generation = generation_of_step(lineage, step);
  std::vector<StoredText> texts = configs_of_generation(env, run_directory, lineage, generation, candidates);
  // A roll-back has the settings of the generation that it went back in.
  for (const Generation* each = lineage.find(generation);
       texts.empty() && each != nullptr && each->is_rollback; each = lineage.find(each->parent.generation))
    texts = configs_of_generation(env, run_directory, lineage, each->parent.generation, candidates);
  if (texts.empty()) {
    return fail(ExitCode::checkpoint,
                "the settings of generation {} of {}, which step {} belongs to, are not known any more: no "
                "checkpoint of it is left. Give a later step",
                generation, run_directory, step);
  }
  HF_TRY(ChosenConfig chosen, choose_config(env, texts, step, learning_rate));
  ReplaySource source{.config = chosen.source.text, .config_place = chosen.source.place, .lineage = lineage};
  std::erase_if(source.lineage.generations,
                [generation](const Generation& each) { return each.number > generation; });
  // All checkpoints of a run are of the same data.
  for (const CheckpointCandidate& each : candidates) {
    if (each.manifest.ok() && source.data_fingerprint.empty())
      source.data_fingerprint = value_of(*each.manifest, "data_fingerprint");
  }
  find_state(env, lineage, candidates, step, source);
  if (source.checkpoint.empty())
    HF_TRY_VOID(check_begins_afresh(run_directory, lineage, generation, chosen.config, step, source.skipped));
  return source;
}

}  // namespace holdfast::replay
