#include <fmt/core.h>

#include <cstdio>
#include <optional>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/host_proof.h"
#include "runtime/launch/host_command.h"
#include "runtime/launch/launcher.h"
#include "runtime/os/posix_output.h"
#include "runtime/os/signals.h"

namespace holdfast::inline cli {
namespace {

constexpr const char* launch_usage =
    "usage: holdfast launch -np N|MIN:MAX [--hostfile F | --host-command CMD | --host LIST] [--tune F]\n"
    "                       [--notice SECONDS] [--wait-for-hosts SECONDS] [--dry-run] [--faults]\n"
    "                       RUN.toml [--section.key=value ...]\n"
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
    "  --dry-run         print the line that starts mpirun, and do nothing\n"
    "  --faults          the faults of HOLDFAST_FAULTS are meant; without this word a start with that "
    "variable "
    "is\n"
    "                    refused\n"
    "\n"
    "The exit codes are those of docs/errors.md; docs/launch.md says more.\n";

Result<ExitCode> launch(const std::vector<std::string>& words, std::optional<OutputThread>& output) {
  Env& env = posix_env();
  // Watches signals first, so that none is lost from here on.
  HF_TRY(const std::unique_ptr<SignalWatcher> signals, StopRequest::watch());
  HF_TRY(const LaunchOptions options, parse_launch_options(words));
  HF_TRY_VOID(check_faults_meant(env, options));
  StopRequest stop(env, *signals, options.notice_ms);
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

}  // namespace holdfast::inline cli
