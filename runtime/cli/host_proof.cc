#include "runtime/cli/host_proof.h"

#include "runtime/config/loader.h"
#include "runtime/core/units.h"
#include "runtime/elastic/prepare.h"
#include "runtime/os/available_memory.h"
#include "runtime/os/console.h"
#include "runtime/os/paths.h"
#include "runtime/plan/layout_plan.h"
#include "runtime/rank/device_choice.h"

namespace holdfast::inline cli {
namespace {

// Returns the memory that the device of the run has when nothing else is there; none if it is not known.
std::optional<std::uint64_t> total_memory(Env& env, const Config& config) {
  if (config.device != "cpu") {
    const Result<CudaPresence> cuda = find_cuda(env);
    return cuda.ok() ? std::optional(cuda->devices.front().memory_bytes) : std::nullopt;
  }
  const std::optional<MemoryRoom> room = memory_room(env);
  return room.has_value() ? std::optional(room->total_bytes) : std::nullopt;
}

// Checks that one rank fits. How many of them share the host, and what other processes hold, is seen at the start.
Result<void> check_memory(Env& env, Config config, int ranks) {
  PlannedMachine machine = machine_of(config, ranks);
  machine.rank_bytes = total_memory(env, config);
  config.parallel.data = 0;
  HF_TRY(
      const bool fits,
      LayoutPlanner(env, machine).first_rank_fits(config, ranks - static_cast<int>(config.elastic.spares)));
  if (fits) return {};
  return with_reach(
      Reach::host,
      fail(ExitCode::does_not_fit,
           "a rank of this run does not fit into the memory of this host, {}; `holdfast plan --ranks {}` "
           "says what it needs",
           format_bytes(*machine.rank_bytes), ranks));
}

}  // namespace

Result<void> prove_ready(Env& env, const ReadyQuestion& question) {
  HF_TRY_VOID(enter_directory(question.directory));
  HF_TRY(const std::vector<Override> overrides, parse_overrides(question.overrides));
  const Result<LoadedConfig> loaded = load_config(env, question.config, overrides);
  HF_TRY_VOID(outcome_of(loaded));
  if (!question.config_digest.empty() && config_digest(loaded->config) != question.config_digest) {
    return with_reach(Reach::host,
                      fail(ExitCode::config,
                           "{} on this host is not what it is on the host of the launcher; copy it here, "
                           "or give a path that the hosts share",
                           question.config));
  }
  HF_TRY(const bool sees_directory, sees_run_directory(env, {loaded->config.run.directory}, question));
  RunSetup setup;
  HF_TRY_VOID(prepare_alone(env, loaded, {.mode = PrepareMode::ready, .ranks = question.ranks}, setup));
  HF_TRY_VOID(check_memory(env, setup.config, question.ranks));
  print_line("ready{}", sees_directory ? "" : ", with a run directory of its own");
  return {};
}

}  // namespace holdfast::inline cli
