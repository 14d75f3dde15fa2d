#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/drill.h"
#include "runtime/cli/preflight.h"
#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/core/units.h"
#include "runtime/elastic/prepare.h"
#include "runtime/integrity/product_check.h"
#include "runtime/launch/host_command.h"
#include "runtime/launch/host_ready.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/os/background_job.h"
#include "runtime/os/console.h"
#include "runtime/os/env.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/machine_facts.h"
#include "runtime/os/paths.h"
#include "runtime/os/posix_output.h"
#include "runtime/os/signals.h"
#include "runtime/plan/layout_plan.h"
#include "runtime/rank/device_choice.h"

namespace holdfast::cli {
namespace {

constexpr const char* launch_usage =
    "usage: holdfast launch -np N|MIN:MAX [--hostfile F | --host-command CMD | --host LIST] [--tune F]\n"
    "                       [--notice SECONDS] [--wait-for-hosts SECONDS] [--preflight] [--drill] "
    "[--dry-run]\n"
    "                       [--faults] RUN.toml [--section.key=value ...]\n"
    "\n"
    "Trains the model that RUN.toml describes on N ranks under mpirun, and stays with it until it is done: "
    "starts\n"
    "the run again when mpirun, a host or ranks are lost, on the hosts that are left, and ends everything "
    "that is\n"
    "left behind. The run goes on from its newest RAM snapshot or checkpoint and ends with the same bits.\n"
    "\n"
    "SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR2 let the run save and end with exit code 75, at every "
    "moment of\n"
    "it and within the notice. A second SIGTERM or SIGINT ends it now; what was saved stays.\n"
    "SIGUSR1, like holdfast save, lets it save and go on.\n"
    "\n"
    "  -np N             how many ranks, on all hosts together\n"
    "  -np MIN:MAX       as many as the hosts have slots for, up to MAX; a start waits while there are "
    "fewer\n"
    "                    than MIN, and hosts that come later make the run larger\n"
    "  --hostfile F      hosts, one a line: name slots=4\n"
    "  --host-command CMD\n"
    "                    a shell command that prints such lines; the file is read, and the command run, "
    "again\n"
    "                    before every other start, and when a run that has too few ranks looks for more\n"
    "  --host LIST       hosts, as in a:4,b:4; without any: the nodes of the Slurm job, or this host\n"
    "  --tune F          settings for mpirun instead of configs/mpi/one_host.conf or several_hosts.conf\n"
    "  --notice SECONDS  from the first signal to the end of every process, 30 when left out\n"
    "  --wait-for-hosts SECONDS\n"
    "                    how long a start waits for hosts while too few are left, 1800 when left out\n"
    "  --preflight       try the hosts before the first start, and leave out those that are not fit "
    "(holdfast preflight)\n"
    "  --drill           before the run: a short one of the same config, in which a rank and, of several, a "
    "host are "
    "lost on\n"
    "                    purpose; says what each loss took, and begins the run only if it got through\n"
    "  --dry-run         print the line that starts mpirun, and do nothing\n"
    "  --faults          the faults of HOLDFAST_FAULTS are meant; without this word a start with that "
    "variable "
    "is\n"
    "                    refused\n"
    "\n"
    "The exit codes are those of docs/errors.md; docs/launch.md says more.\n";

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

// Proves that this host is ready for a start, as far as one process can without the other ranks and without
// MPI: enters the working directory; loads the config, and compares it with the launcher's; looks for the
// launcher's run directory; opens the data and reads a sample of each source; makes the device, and a product
// on it, on each GPU that ranks of this host will take; and counts how many of its ranks fit into its memory.
// Prints "ready" when all of this succeeds, and before it line_of() the room that it has, if that is for
// fewer ranks. Claims nothing and changes nothing.
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

// Tries the hosts, where that is asked for, before the run takes any of them. A request to stop is left to the launcher.
Result<void> try_hosts(Env& env, StopRequest& stop, LaunchOptions& options) {
  if (!options.preflight || options.dry_run) return {};
  constexpr double seconds = 10.0;
  HF_TRY(std::vector<LaunchHost> hosts, named_hosts(env, options));
  const auto is_stopped = [&] {
    stop.poll();
    return stop.requested();
  };
  const Result<Preflight> found =
      run_preflight(env, std::move(hosts), options.config, options.overrides, seconds, is_stopped);
  if (!found.ok() && is_stopped()) return {};
  HF_TRY_VOID(outcome_of(found));
  options.unfit_hosts = found->unfit();
  if (found->all_fit())
    print_message("preflight: {} host{} fit", found->hosts.size(),
                  found->hosts.size() == 1 ? " is" : "s are");
  return {};
}

// Makes drills, where that is asked for. A request to stop is left to the launcher.
Result<void> drill(Env& env, StopRequest& stop, const std::vector<std::string>& words,
                   const LaunchOptions& options) {
  if (!options.drill || options.dry_run || stop.requested()) return {};
  return make_drills(env, words, options, [&stop] {
    stop.poll();
    return stop.requested();
  });
}

Result<ExitCode> launch(const std::vector<std::string>& words, std::optional<OutputThread>& output) {
  Env& env = posix_env();
  // Watches signals first, so that none is lost from here on.
  HF_TRY(const std::unique_ptr<SignalWatcher> signals, StopRequest::watch());
  HF_TRY(LaunchOptions options, parse_launch_options(words));
  HF_TRY_VOID(check_faults_meant(env, options));
  StopRequest stop(env, *signals, options.notice_ms);
  HF_TRY_VOID(try_hosts(env, stop, options));
  HF_TRY_VOID(drill(env, stop, words, options));
  HF_TRY(Launcher launcher, Launcher::create(env, stop, options));
  if (!options.dry_run) {
    output.emplace();
    return launcher.run();
  }
  fmt::print("{}\n", launcher.dry_run());
  HF_TRY_VOID(finish_output());
  return ExitCode::done;
}

}  // namespace

int run_launch_command(const std::vector<std::string>& arguments) {
  // Prints only the options of launch itself: the keys of RUN.toml are in `holdfast config help`.
  if (wants_help(arguments)) {
    fmt::print("{}", launch_usage);
    return 0;
  }
  if (!arguments.empty() && arguments.front() == "--on-host") {
    // Says that the host was reached, however long the rest takes, and what it calls itself (host_probe.h).
    fmt::print("here {}\n", posix_env().host_name());
    static_cast<void>(std::fflush(stdout));
    const auto prove = [](const ReadyQuestion& question) { return prove_ready(posix_env(), question); };
    const Result<int> done = run_host_command(posix_env(), {arguments.begin() + 1, arguments.end()}, prove);
    return done.ok() ? *done : complain(done.error());
  }
  ignore_closed_pipes();
  std::optional<OutputThread> output;
  const Result<ExitCode> code = launch(arguments, output);
  return code.ok() ? static_cast<int>(*code) : complain(code.error());
}

}  // namespace holdfast::cli
