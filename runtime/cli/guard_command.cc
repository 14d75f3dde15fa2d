#include <fmt/core.h>

#include <memory>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/core/text.h"
#include "runtime/device/nvml.h"
#include "runtime/health/health_watch.h"
#include "runtime/os/console.h"
#include "runtime/os/posix_output.h"
#include "runtime/os/processes.h"
#include "runtime/run/kernel_faults.h"
#include "runtime/run/launch_record.h"
#include "watchdog/board.h"
#include "watchdog/guard.h"

namespace holdfast::cli {
namespace {

constexpr const char* guard_usage =
    "usage: holdfast guard BOARD [--health watch|guard] [--every-ms N] [--host-root DIR]\n"
    "                      [--dcgm-exporter ADDRESS:PORT] [--rules CHANGES]\n"
    "\n"
    "Looks after the ranks of a run on this host until the last has gone: ends one that hangs, and writes "
    "what each was\n"
    "at. The ranks start it themselves (watchdog.guard); there is no need to. BOARD is a name of shared "
    "memory. "
    "With SIGUSR1\n"
    "it writes what the ranks are at now. docs/watchdog.md. The options are the keys of [health] "
    "(docs/health.md);\n"
    "without --health nobody looks.\n";

// Returns the ranks on the board that live.
std::vector<HostRank> ranks_on(Env& env, const std::string& name) {
  std::vector<HostRank> ranks;
  const Result<std::unique_ptr<Board>> board = Board::open(env, name);
  if (!board.ok()) return ranks;
  for (std::uint32_t index = 0; index < (*board)->slots(); ++index) {
    const SlotView slot = read_slot((*board)->slot(index));
    if (slot.process > 0 && lives(env, slot)) ranks.push_back({slot.launched_rank, slot.process});
  }
  return ranks;
}

// Begins to look at this host for the run; null where that is not asked for, or not possible.
std::unique_ptr<HealthWatch> watch_health(const Arguments& arguments, std::int64_t every_ms,
                                          const std::string& run_directory) {
  if (!arguments.has("health")) return nullptr;
  Env& env = posix_env();
  const std::vector<std::string> changes = split_list(arguments.text("rules", ""));
  Result<std::vector<HealthRule>> rules = changed_rules(changes);
  const Result<std::optional<NetworkAddress>> exporter =
      exporter_address(arguments.text("dcgm-exporter", ""));
  if (!rules.ok() || !exporter.ok()) return nullptr;  // the ranks say it
  const auto ranks = [&env, board = arguments.positional(0)] { return ranks_on(env, board); };
  Result<std::unique_ptr<HealthWatch>> watch =
      HealthWatch::begin(env, {.paths = {run_directory},
                               .acts = arguments.text("health", "") == "guard",
                               .has_launcher = !launched_start(env).empty(),
                               .every_ms = every_ms,
                               .rules = std::move(rules).value(),
                               .places = {.root = arguments.text("host-root", ""),
                                          .disks = {run_directory},
                                          .exporter = *exporter,
                                          .ranks = ranks},
                               .open_gpus = nvml_reader});
  if (watch.ok()) return std::move(watch).value();
  print_message("host {}: nobody looks at its health: {}", env.host_name(), watch.error().message);
  return nullptr;
}

Result<void> guard(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments,
         Arguments::parse("guard", words, {"BOARD"},
                          {"health", "every-ms", "host-root", "dcgm-exporter", "rules"}));
  const std::string& board = arguments.positional(0);
  if (board.empty() || board.starts_with('.') || board.find('/') != std::string::npos)
    return fail(ExitCode::config, "'{}' is no name of a board: it is a file name in /dev/shm/holdfast-UID",
                board);
  HF_TRY_VOID(arguments.choice("health", {"watch", "guard"}));
  HF_TRY(const std::int64_t every_ms, arguments.integer("every-ms", 10'000, 1));
  std::unique_ptr<HealthWatch> health;
  return run_guard(
      posix_env(),
      {.board = board,
       .start_variable = launch_variable,
       .on_hang = [](int rank,
                     const std::string& sentence) { report_hang_to_launcher(posix_env(), rank, sentence); },
       .on_end =
           [](const RankDeath& death) {
             report_death_to_launcher(posix_env(), death.rank, death.process, death.cause, death.step);
           },
       .on_kernel_fault =
           [](const std::string& directory, const KernelFault& fault) {
             report_kernel_fault_to_launcher(posix_env(), fault);
             const Result<void> kept = keep_kernel_faults(posix_env(), {directory}, {fault});
             if (!kept.ok()) print_message("{}", kept.error().message);
           },
       .on_silent =
           [](const std::vector<std::string>& hosts) { report_silent_hosts_to_launcher(posix_env(), hosts); },
       .on_run =
           [&](const std::string& directory) { health = watch_health(arguments, every_ms, directory); }});
}

}  // namespace

int run_guard_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", guard_usage);
    return 0;
  }
  raise_descriptor_limit();
  const OutputThread output;  // a guard that blocks on a terminal does not guard
  const Result<void> outcome = guard(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
