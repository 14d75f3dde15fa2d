#include "runtime/launch/mpirun_line.h"

#include <fmt/core.h>

#include <sstream>

#include "runtime/config/loader.h"
#include "runtime/core/text.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/os/paths.h"

namespace holdfast::launch {
namespace {

bool is_file(Env& env, const std::string& path) {
  const Result<FileStatus> status = env.status(path);
  return status.ok() && status->exists && !status->directory;
}

std::string find_in_path(Env& env, const std::string& name) {
  std::istringstream directories(env.variable("PATH"));
  for (std::string directory; std::getline(directories, directory, ':');) {
    if (!directory.empty() && is_file(env, directory + "/" + name)) return directory + "/" + name;
  }
  return "";
}

// Resolves a path of the build: a relative one is relative to the program's directory.
std::string from_program(const std::string& path) {
  return path.empty() || path.starts_with('/') ? path : program_directory() + "/" + path;
}

// Returns the path without "x/..", so that a line is readable.
std::string simplified(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream all(path);
  for (std::string part; std::getline(all, part, '/');) {
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();  // above the root is the root
    } else if (!part.empty() && part != ".") {
      parts.push_back(part);
    }
  }
  std::string simple;
  for (const std::string& part : parts) simple += "/" + part;
  return simple;
}

// Folders of an installed package (cmake/HoldfastPackage.cmake), as seen from the program.
constexpr const char* package_mpi = "/../mpi";
constexpr const char* package_tune = "/../configs/mpi";

std::string tune_file(Env& env, const std::string& name) {
  for (const std::string& folder :
       {from_program(HF_TUNE_DIRECTORY), program_directory() + package_tune, program_directory()}) {
    if (is_file(env, folder + "/" + name)) return simplified(folder + "/" + name);
  }
  return "";
}

}  // namespace

std::vector<std::string> variables_of_ranks() {
  std::vector<std::string> names = environment_names();
  names.insert(names.end(),
               {cuda_module_variable, "HOLDFAST_CORE_FILES", "HOLDFAST_FAULTS", "HOLDFAST_FAULTS_LOG"});
  return names;
}

Result<LaunchPaths> find_launch_paths(Env& env, const LaunchOptions& options) {
  LaunchPaths places{.program = program_path()};
  const std::string built_with = from_program(HF_MPI_PREFIX);
  const std::string packed = program_directory() + package_mpi;
  if (is_file(env, packed + "/bin/mpirun")) {
    places.mpirun = simplified(packed + "/bin/mpirun");
    places.opal_prefix = simplified(packed);
  } else if (is_file(env, built_with + "/bin/mpirun")) {
    places.mpirun = simplified(built_with + "/bin/mpirun");
    const std::string opal = HF_OPAL_PREFIX;  // for an MPI that does not know its own path; else empty
    if (!opal.empty()) places.opal_prefix = simplified(from_program(opal));
  } else if (is_file(env, program_directory() + "/mpirun")) {
    places.mpirun = program_directory() + "/mpirun";
  } else {
    places.mpirun = find_in_path(env, "mpirun");
  }
  if (places.mpirun.empty()) {
    return fail(
        ExitCode::config,
        "there is no mpirun: neither in {}, with which this program was built, nor beside it, nor in PATH; "
        "run tools/bootstrap, or install Open MPI",
        simplified(built_with));
  }
  places.one_host = tune_file(env, "one_host.conf");
  places.several_hosts = tune_file(env, "several_hosts.conf");
  if (options.tune.empty() && (places.one_host.empty() || places.several_hosts.empty())) {
    return fail(
        ExitCode::config,
        "the settings for mpirun (configs/mpi of the source tree) are not to be found from {}; name a file "
        "with --tune",
        places.program);
  }
  return places;
}

CommandLine mpirun_line(Env& env, const LaunchOptions& options, const LaunchPaths& places,
                        const LaunchShape& shape) {
  CommandLine line;
  const auto set = [&](const std::string& name, const std::string& value) {
    if (env.variable(name).empty()) line.variables[name] = value;
  };
  // Open MPI reads its settings from the home directory, and refuses root, unless told otherwise.
  if (!places.home.empty()) set("HOME", places.home);
  set("OMPI_ALLOW_RUN_AS_ROOT", "1");
  set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  if (!places.opal_prefix.empty()) set("OPAL_PREFIX", places.opal_prefix);
  // These settings are variables because mpirun refuses an option that is given twice, and because the user's
  // tune file overrides variables. Ranks may outnumber processors, and the threads of a rank must not be
  // bound to the one processor of its slot. Without the word "slot" Open MPI would put all ranks on the first
  // host.
  set("PRTE_MCA_rmaps_default_mapping_policy", "slot:OVERSUBSCRIBE");
  set("PRTE_MCA_hwloc_default_binding_policy", "none");
  if (mpirun_uses_srun(env)) {
    set("SLURM_OVERLAP", "1");    // else its daemons wait, maybe for ever, for the end of an earlier start's
    set("SLURM_NO_KILL", "set");  // Slurm does not end all daemons when it notices a lost node
  }

  std::vector<std::string>& words = line.arguments;
  // Runtime parameters cannot be set in a tune file. Without these two, a rank that leaves with an exit code
  // other than 0 makes mpirun and the survivors hang.
  words = {places.mpirun,
           "--with-ft",
           "ulfm",
           "--prtemca",
           "state_base_recoverable",
           "1",
           "--prtemca",
           "state_base_notify_errors",
           "1"};
  const std::string& recommended = shape.several_hosts ? places.several_hosts : places.one_host;
  words.insert(words.end(), {"--tune", options.tune.empty() ? recommended : options.tune});
  words.insert(words.end(), {"-np", fmt::format("{}", shape.ranks)});
  if (!shape.hosts.empty()) {
    words.insert(words.end(), {"--host", shape.hosts});
  } else if (!options.hosts.empty()) {
    words.insert(words.end(), {"--host", options.hosts});
  } else if (!options.hostfile.empty()) {
    words.insert(words.end(), {"--hostfile", options.hostfile});
  }
  for (const std::string& name : variables_of_ranks()) {
    if (!env.variable(name).empty()) words.insert(words.end(), {"-x", name});
  }
  for (const std::string& name : shape.forwarded) words.insert(words.end(), {"-x", name});
  words.push_back(places.program);
  words.insert(words.end(), shape.words.begin(), shape.words.end());
  if (!shape.words.empty()) return line;
  words.insert(words.end(), {"train", options.config});
  words.insert(words.end(), shape.overrides.begin(), shape.overrides.end());
  return line;
}

std::string shell_line(const CommandLine& line) {
  std::string text;
  for (const auto& [name, value] : line.variables) text += fmt::format("{}={} ", name, shell_word(value));
  return text + words_for_shell(line.arguments);
}

}  // namespace holdfast::launch
