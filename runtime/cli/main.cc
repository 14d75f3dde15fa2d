// holdfast <command> ...: finds the command in a constant table and runs it.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/group/mpi_loader.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/core/text.h"
#include "runtime/device/device.h"
#include "runtime/os/env.h"
#include "runtime/os/paths.h"
#include "runtime/os/processes.h"
#include "runtime/rank/device_choice.h"

namespace holdfast::cli {
namespace {

// Prints the CUDA version of this build, for which neither a GPU nor a driver is needed.
void print_cuda_version(Env& env) {
  const Result<const CudaModule*> module = find_cuda_module(env);
  if (!module.ok()) {
    fmt::print("cuda     none: {}\n", module.error().message);
    return;
  }
  const int version = (*module)->runtime_version;
  fmt::print("cuda     {}.{}, kernels for {}\n", version / 1000, version % 1000 / 10, (*module)->built_for());
  const Result<std::vector<CudaFacts>> gpus = (*module)->devices();
  if (!gpus.ok()) fmt::print("gpu      none: {}\n", gpus.error().message);
  if (!gpus.ok()) return;
  for (const CudaFacts& gpu : *gpus) fmt::print("gpu      {}\n", text_of(gpu));
}

void print_version() {
  const Result<MpiFacts> mpi = mpi_library_facts();
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  fmt::print("holdfast {} ({} build, {})\n", build_version(), build_type(), build_compiler());
  if (const std::string source = build_source(posix_env()); !source.empty())
    fmt::print("source   {}\n", source);
  fmt::print("program  {}\n", program_digest(posix_env()));
  fmt::print("device   {}\n", device->description());
  print_cuda_version(posix_env());
  if (mpi.ok()) {
    fmt::print("mpi      {}{}\n", mpi->library, mpi->fault_tolerant ? " with ULFM" : "");
  } else {
    fmt::print("mpi      none: {}\n", mpi.error().message);
  }
}

// Commands of developers and operators. They are separate programs beside this one, so that the training
// program links none of their code. Replaces this process by the program of the command; returns only when that
// is not possible.
int become_command(std::string_view command, const std::vector<std::string>& arguments) {
  const std::string name = fmt::format("holdfast-{}", command);
  const Result<void> refused = become_program(program_directory() + "/" + name, arguments);
  return complain(fail(ExitCode::config,
                       "{} is a program of its own, {}: {}; put it beside holdfast, or build it with cmake "
                       "--build --preset release --target {}",
                       command, name, refused.error().message, name));
}

int run_bench_command(const std::vector<std::string>& arguments) {
  return become_command("bench", arguments);
}

int run_kernel_command(const std::vector<std::string>& arguments) {
  return become_command("kernel", arguments);
}

int run_chaos_command(const std::vector<std::string>& arguments) {
  return become_command("chaos", arguments);
}

int run_simulate_command(const std::vector<std::string>& arguments) {
  return become_command("simulate", arguments);
}

struct Command {
  std::string_view name;
  std::string_view help;
  int (*run)(const std::vector<std::string>&);
  // True when the command prints progress of a run, and not its result: lost output is then no error.
  bool has_news = false;
};

constexpr std::array<Command, 36> commands = {{
    {"train", "train a model, or go on with a run that was interrupted", run_train_command, true},
    {"launch", "train under mpirun, and start the run again when something fails", run_launch_command, true},
    {"save", "let a run that is going on save, and go on", run_save_command},
    {"status", "how a run stands: its hosts and ranks, what is saved, what a failure would cost now",
     run_status_command},
    {"drain", "let a run leave a host, with nothing computed again", run_drain_command},
    {"chaos", "train again and again with faults, and compare the bits with the run that had none",
     run_chaos_command, true},
    {"simulate", "how much of its time a run on a fleet trains, and what would change that; a simulation",
     run_simulate_command},
    {"check", "check a config and its data without training; say what this machine offers",
     run_check_command},
    {"plan", "memory, traffic and time of a run before it starts; layouts that fit", run_plan_command},
    {"tokenize", "make tokens of text files, and a tokenizer for them", run_tokenize_command},
    {"sample", "let a trained model write text", run_sample_command},
    {"evaluate", "loss of a trained model on a data file", run_evaluate_command},
    {"digest", "digests of the newest saved state: equal lines are equal bits", run_digest_command},
    {"inspect", "what a run directory or a checkpoint holds", run_inspect_command},
    {"verify", "read every byte of the checkpoints and say what is damaged", run_verify_command},
    {"diff", "which tensors of two checkpoints differ, and by how much", run_diff_command},
    {"replay", "compute a recorded step of a run again, and compare the bits", run_replay_command},
    {"export", "the weights of a checkpoint as safetensors or as an llm.c model", run_export_command},
    {"import", "a checkpoint of a Hugging Face folder or an llm.c model", run_import_command},
    {"report", "write RUN/report.html from the run's events", run_report_command},
    {"events", "the events of a run, also while it goes on", run_events_command},
    {"metrics", "the numbers of a run for monitoring, as OpenMetrics text", run_metrics_command},
    {"stragglers", "which ranks compute more slowly than the others, and what that has cost",
     run_stragglers_command},
    {"timeline", "what every rank computed and waited for in recorded steps, and the pipeline's bubble",
     run_timeline_command},
    {"flight", "what every rank was at when one hung or died, and who was the cause", run_flight_command},
    {"health", "what this host's sensors, counters and logs say, and which of it is wrong",
     run_health_command},
    {"preflight", "try hosts before a run: their numbers, rates, memory, disk and clocks",
     run_preflight_command},
    {"hosts", "what is known of hosts: which are tainted, and what preflights found", run_hosts_command},
    {"taint", "keep a host out of starts, for a time", run_taint_command},
    {"untaint", "let starts use a tainted host again", run_untaint_command},
    {"guard", "looks after the ranks of a host; they start it themselves", run_guard_command, true},
    {"kernel", "kernels of your own: what an op computes, a folder to begin with, checks of what it builds",
     run_kernel_command},
    {"bench", "where the time goes, beside what this machine allows", run_bench_command},
    {"clean", "remove what killed starts of a run left in this host's shared memory", run_clean_command},
    {"collect", "one whole checkpoint of the parts that hosts keep where run.directory is local to each",
     run_collect_command},
    {"config", "reference of all keys, the config as it is resolved, a schema for editors",
     run_config_command},
}};

void print_help() {
  fmt::print("usage: holdfast COMMAND ...\n\ncommands:\n");
  for (const Command& command : commands) fmt::print("  {:<10} {}\n", command.name, command.help);
  fmt::print(
      "\nholdfast help COMMAND says how a command is used; holdfast --version what this program was built "
      "from.\n");
}

int run_command(const std::string& name, const std::vector<std::string>& words) {
  const auto* found = std::ranges::find(commands, name, &Command::name);
  if (found != commands.end()) {
    const int code = found->run(words);
    return found->has_news && !wants_help(words) ? code : with_output(code);
  }
  std::vector<std::string_view> names;
  for (const Command& command : commands) names.push_back(command.name);
  const std::string near = closest(name, names);
  return complain(fail(ExitCode::config, "there is no command {}{}; holdfast --help lists them", name,
                       near.empty() ? "" : fmt::format(", did you mean {}?", near)));
}

int run(const std::vector<std::string>& words) {
  const std::string first = words.empty() ? "" : words.front();
  if (first == "--version" || first == "version") {
    print_version();
    return with_output(0);
  }
  if (first == "help" && words.size() > 1) return run_command(words[1], {"--help"});
  if (first.empty() || first == "--help" || first == "-h" || first == "help") {
    print_help();
    return with_output(first.empty() ? static_cast<int>(ExitCode::config) : 0);
  }
  return run_command(first, {words.begin() + 1, words.end()});
}

}  // namespace
}  // namespace holdfast::cli

int main(int argc, char** argv) {
  using namespace holdfast;
  if (os::posix_env().variable("HOLDFAST_CORE_FILES") != "1") os::forbid_core_files();
  return cli::run_program(argc, argv, cli::run);
}
