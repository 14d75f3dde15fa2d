#include "runtime/replay/replay_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "runtime/config/document.h"
#include "runtime/os/paths.h"

namespace holdfast::replay {
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
    if (!is_stream_path(source.path)) continue;
    return fail(
        ExitCode::config,
        "{} names {} as training data, a stream or a device, which replay opens only where the command "
        "line names it; give the place of the data with --data.sources",
        place, source.path);
  }
  return {};
}

// Switches off all that a run writes or keeps beside its steps.
void write_nothing(Config& config) {
  config.checkpoint.every_steps = 0;
  config.checkpoint.every_ms = 0;
  config.checkpoint.ram_every_steps = 0;
  config.checkpoint.replicas = "off";
  config.evaluation.every_steps = 0;
  config.elastic.spares = 0;
  config.data.ledger = false;
  config.trace.steps = 0;
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
  write_nothing(given.config);
  return given;
}

}  // namespace holdfast::replay
