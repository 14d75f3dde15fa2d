// The line that starts mpirun: that of the Open MPI which the program was built with, with the settings of
// tools/mpirun and configs/mpi. DESIGN and docs/launch.md say what each of them is for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/env.h"

namespace holdfast::inline launch {

// Where things are on this machine.
struct LaunchPlaces {
  std::string mpirun = {};
  std::string opal_prefix = {};  // what OPAL_PREFIX must be for that mpirun; empty: it knows
  std::string program = {};      // that the ranks run
  std::string one_host = {};     // files for mpirun --tune
  std::string several_hosts = {};
  std::string home = {};  // of mpirun, where HOME is unset; nobody else may write there
};
// mpirun: where the build says, else beside the program, else in PATH. ExitCode::config when there is none,
// or when the tune files are neither in the tree nor beside the program and `options` names none.
Result<LaunchPlaces> find_launch_places(Env& env, const LaunchOptions& options);

struct CommandLine {
  std::vector<std::string> arguments;            // the program first
  std::map<std::string, std::string> variables;  // to set
};
// What one start runs on and with: the options, or what is left of them.
struct LaunchShape {
  int ranks = 1;
  bool is_narrower = false;  // fewer ranks per copy of the model than the config says
  bool several_hosts = false;
  std::string hosts = {};                   // LIST for --host; empty: as the options say
  std::vector<std::string> overrides = {};  // for `holdfast train`
  std::vector<std::string> forwarded = {};  // variables that distant ranks get, too
};
// Variables that `env` has already stay as they are, and are not among those to set.
CommandLine mpirun_line(Env& env, const LaunchOptions& options, const LaunchPlaces& places,
                        const LaunchShape& shape);
// Returns the line as a shell can run it as it stands.
std::string shell_line(const CommandLine& line);

}  // namespace holdfast::inline launch
