#include "runtime/cli/host_proof.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/units.h"
#include "runtime/elastic/prepare.h"
#include "runtime/os/available_memory.h"
#include "runtime/os/background_job.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/plan/layout_plan.h"
#include "runtime/rank/device_choice.h"
#include "runtime/train/product_test.h"

namespace holdfast::inline cli {
namespace {

// Returns why a GPU cannot be used; empty: it computes a known product right.
std::string trouble_of(Env& env, const Config& config, const DevicePlace& place) {
  const auto outcome = [&]() -> Result<void> {
    HF_TRY(const std::unique_ptr<Device> device, make_device(env, config, {}, {.place = place}));
    return try_product(*device, precision_of(config));
  }();
  return outcome.ok() ? "" : outcome.error().message;
}

// Returns the GPUs that ranks will take, each of which is tried; the first one has been (prepare.h).
Result<std::vector<RankSpace>> gpus_of_ranks(Env& env, const Config& config, int ranks) {
  HF_TRY(const CudaPresence cuda, find_cuda(env));
  const std::size_t used = std::min(cuda.devices.size(), static_cast<std::size_t>(ranks));
  std::vector<RankSpace> gpus(used);
  std::vector<std::unique_ptr<BackgroundJob<std::string>>> trials;
  for (std::size_t i = 0; i < used; ++i) {
    gpus[i] = {.name = hardware_name(cuda.devices[i]), .bytes = cuda.devices[i].memory_bytes};
    trials.push_back(std::make_unique<BackgroundJob<std::string>>());
    const DevicePlace place{.rank_on_host = static_cast<int>(i)};
    if (i > 0)
      trials[i]->start(env, "GPU trial", [&env, &config, place]() -> Result<std::string> {
        return trouble_of(env, config, place);
      });
  }
  for (std::size_t i = 1; i < used; ++i) {
    const Result<std::string> trouble = trials[i]->take();
    if (trouble.ok()) gpus[i].trouble = *trouble;
  }
  return gpus;
}

// Returns what ranks of this host will compute on, with the memory that it has when nothing else is there.
Result<std::vector<RankSpace>> spaces_of_ranks(Env& env, const Config& config, int ranks) {
  if (config.device != "cpu") return gpus_of_ranks(env, config, ranks);
  const std::optional<MemoryRoom> room = memory_room(env);
  RankSpace host{.name = "this host"};
  if (room.has_value()) host.bytes = room->total_bytes;
  return std::vector<RankSpace>{host};
}

// Returns how many ranks of the run a GPU may have: as the config says, or what the first start of the run found; 0: not
// known.
std::int64_t ranks_per_gpu(Env& env, const Config& config) {
  if (config.device == "cpu" || config.parallel.ranks_per_gpu > 0) return config.parallel.ranks_per_gpu;
  const std::string path = RunPaths{config.run.directory}.config();
  const Result<std::string> text = read_text_within(env, path, text_limits::config);
  if (!text.ok()) return 0;
  const Result<LoadedConfig> stored = load_stored_config(env, *text, path);
  return stored.ok() ? stored->config.parallel.ranks_per_gpu : 0;
}

// Returns how many of the ranks that the start may have here fit. What other processes hold is seen at the start, and
// snapshots in RAM are given up where they do not fit. An error where not even one rank does.
Result<RoomOfHost> find_room(Env& env, Config config, const ReadyQuestion& question) {
  HF_TRY(const std::vector<RankSpace> spaces, spaces_of_ranks(env, config, question.ranks_here));
  const std::int64_t most = config.device == "cpu" ? 0 : ranks_per_gpu(env, config);
  PlannedMachine machine = machine_of(config, question.ranks);
  machine.rank_bytes = spaces.front().bytes;
  config.parallel.data = 0;
  config.checkpoint.ram_every_steps = 0;
  LayoutPlanner planner(env, machine);
  const int ranks = question.ranks - static_cast<int>(config.elastic.spares);
  HF_TRY(const bool fits, planner.first_rank_fits(config, ranks));
  if (!fits) {
    return with_reach(
        Reach::host,
        fail(ExitCode::does_not_fit,
             "a rank of this run does not fit into the memory of this host, {}; `holdfast plan --ranks {}` "
             "says what it needs",
             format_bytes(*machine.rank_bytes), question.ranks));
  }
  HF_TRY(const std::uint64_t needed_bytes, planner.least_rank_bytes(config, ranks));
  return room_for_ranks(question.ranks_here, spaces, needed_bytes, most);
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
  HF_TRY(const RoomOfHost room, find_room(env, setup.config, question));
  if (room.ranks < question.ranks_here) print_line("{}", line_of(room));
  print_line("ready{}", sees_directory ? "" : ", with a run directory of its own");
  return {};
}

}  // namespace holdfast::inline cli
