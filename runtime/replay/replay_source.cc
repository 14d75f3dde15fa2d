#include "runtime/replay/replay_source.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string_view>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "runtime/config/document.h"
#include "runtime/core/json.h"
#include "runtime/optim/schedule.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/replay/step_session.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/log_reader.h"

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

// Returns whether a run with this config may have made the step with this learning rate, which roll-backs lower.
bool may_have_rate(const Config& config, std::uint64_t step, double learning_rate) {
  constexpr std::uint64_t rollbacks_tried = 64;
  const double scheduled =
      learning_rate_at(config.optimizer, static_cast<std::int64_t>(step), config.training.steps);
  for (std::uint64_t rollbacks = 0; rollbacks <= rollbacks_tried; ++rollbacks) {
    const double rate = rate_after_rollbacks(scheduled, config.verdict.rate_after_rollback, rollbacks);
    if (is_same_number(learning_rate, rate)) return true;
  }
  return false;
}

Result<ChosenConfig> choose_config(Env& env, const std::vector<StoredText>& texts, std::uint64_t step,
                                   double learning_rate) {
  std::optional<ChosenConfig> first;
  for (const StoredText& each : texts) {
    HF_TRY(const LoadedConfig loaded, load_stored_config(env, each.text, each.place));
    const Config& config = loaded.config;
    if (!first.has_value()) first = ChosenConfig{.source = each, .config = config};
    if (may_have_rate(config, step, learning_rate)) return ChosenConfig{.source = each, .config = config};
  }
  return *first;
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
    source.device_plan = value_of(*each.manifest, "device_plan");
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

namespace {

// StepCollector takes the events of a log in their order.
class StepCollector {
 public:
  StepCollector(std::uint64_t first, std::uint64_t last) : first_(first), last_(last) {}

  void take(const Json& event) {
    if (const auto start = event_as<StartEvent>(event)) begin(*start);
    if (const auto step = event_as<StepEvent>(event)) add(*step);
  }
  RecordedSteps recorded() && { return std::move(recorded_); }

 private:
  // Another generation, or another run in the same directory, leaves the steps beyond its first state.
  void begin(const StartEvent& start) {
    const bool goes_on = run_ == start.run && generation_ == start.generation;
    if (run_.has_value() && !goes_on) {
      const std::uint64_t from = start.resumed_from_step.value.value_or(0);
      recorded_.newest = std::min(recorded_.newest, from);
      recorded_.steps.erase(recorded_.steps.upper_bound(from), recorded_.steps.end());
    }
    run_ = start.run;
    generation_ = start.generation;
  }

  void add(const StepEvent& step) {
    recorded_.newest = std::max(recorded_.newest, step.step);
    if (step.step < first_ || step.step > last_) return;
    recorded_.steps[step.step] = {.numbers = {.loss = step.loss,
                                              .grad_norm = step.grad_norm,
                                              .learning_rate = step.learning_rate,
                                              .data = step.data_digest},
                                  .duration_ms = step.step_duration_ms};
  }

  std::uint64_t first_, last_;
  std::optional<std::string> run_;
  std::uint64_t generation_ = 0;
  RecordedSteps recorded_;
};

}  // namespace

bool is_same_number(double recorded, double computed) {
  if (!std::isfinite(recorded)) return !std::isfinite(computed);
  return std::bit_cast<std::uint64_t>(recorded) == std::bit_cast<std::uint64_t>(computed);
}

std::vector<std::string> differing_numbers(const RecordedNumbers& recorded, const RecordedNumbers& computed) {
  std::vector<std::string> names;
  if (!is_same_number(recorded.loss, computed.loss)) names.emplace_back("loss");
  if (!is_same_number(recorded.grad_norm, computed.grad_norm)) names.emplace_back("grad_norm");
  if (!is_same_number(recorded.learning_rate, computed.learning_rate)) names.emplace_back("learning_rate");
  if (recorded.data != computed.data) names.emplace_back("data");
  return names;
}

Result<RecordedSteps> read_recorded_steps(Env& env, const RunPaths& paths, std::uint64_t first,
                                          std::uint64_t last) {
  HF_TRY(const LogReader log, LogReader::open(env, paths));
  StepCollector collector(first, last);
  HF_TRY_VOID(log.for_each([&](const Json& event) { collector.take(event); }));
  RecordedSteps recorded = std::move(collector).recorded();
  recorded.warning = log.warning();
  return recorded;
}

namespace {

bool are_given(const std::vector<Override>& overrides, std::initializer_list<std::string_view> keys) {
  return std::ranges::any_of(
      overrides, [&](const Override& each) { return std::ranges::find(keys, each.key) != keys.end(); });
}

// training.steps may change in a run, but moves the end of the learning rate's schedule.
bool decides_numbers(const ConfigChange& change) {
  return change.effect != ResumeEffect::safe || change.key == "training.steps" ||
         change.key == "run.initialize_from";
}

Result<void> check_overrides(const Config& run, const Config& given) {
  std::string refused;
  for (const ConfigChange& change : diff_config(run, given)) {
    if (decides_numbers(change))
      refused += fmt::format("\n  {}: {} -> {}", change.key, change.before, change.after);
  }
  if (refused.empty()) return {};
  return fail(ExitCode::config,
              "replay computes a step as the run did, so these keys cannot change:{}\n"
              "Leave them out; the layout (parallel.data, tensor, pipeline), threads and the paths of "
              "data.sources may be given",
              refused);
}

// The config of a run comes with its directory, which somebody else may have written. Whoever replays it has
// not read it.
Result<void> check_sources(const Config& run, const std::string& place,
                           const std::vector<Override>& overrides) {
  if (are_given(overrides, {"data.sources"})) return {};
  for (const SourceConfig& source : run.data.sources) {
    const bool is_stream = is_stream_path(source.path);
    if (!is_stream && !is_stream_path(source.tokenizer)) continue;
    return fail(
        ExitCode::config,
        "{} names {} as training data, a stream or a device, which replay opens only where the command "
        "line names it; give the place of the data with --data.sources",
        place, is_stream ? source.path : source.tokenizer);
  }
  return {};
}

}  // namespace

void choose_layout(ParallelConfig& parallel, int ranks, const std::vector<Override>& overrides) {
  parallel.data = 0;
  const bool shaped = are_given(overrides, {"parallel.data", "parallel.tensor", "parallel.pipeline"});
  const std::int64_t of_copy = parallel.tensor * parallel.pipeline;
  if (!shaped && of_copy > 0 && ranks % of_copy == 0) return;
  parallel.tensor = 1;
  parallel.pipeline = 1;
  parallel.pipeline_chunks = 1;
  parallel.pipeline_schedule = "1f1b";
}

Result<LoadedConfig> replay_config(Env& env, const ReplaySource& source, const std::string& run_directory,
                                   int ranks, const std::vector<Override>& overrides) {
  HF_TRY(LoadedConfig run, load_stored_config(env, source.config, source.config_place));
  run.config.run.directory = run_directory;
  choose_layout(run.config.parallel, ranks, overrides);
  HF_TRY(LoadedConfig given,
         load_stored_config(env, dump_config(run.config), source.config_place, overrides));
  HF_TRY_VOID(check_overrides(run.config, given.config));
  HF_TRY_VOID(check_sources(run.config, source.config_place, overrides));
  given.config.run.directory = run_directory;
  given.config.kernels.shadows.clear();  // nothing is compared, and their plug-ins need not be there
  write_nothing(given.config);
  return given;
}

}  // namespace holdfast::replay
