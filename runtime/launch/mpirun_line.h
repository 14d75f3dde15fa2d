// Builds the line that starts mpirun: that of the Open MPI which the program was built with, with the
// settings of tools/mpirun and configs/mpi. DESIGN and docs/launch.md explain each of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/env.h"

namespace holdfast::launch {

// LaunchPaths holds the paths that a launch needs on this machine.
struct LaunchPaths {
  std::string mpirun = {};
  std::string opal_prefix = {};  // OPAL_PREFIX for that mpirun; empty: not needed
  std::string program = {};      // program that the ranks run
  std::string one_host = {};     // file for mpirun --tune on one host
  std::string several_hosts = {};
  std::string home = {};  // HOME for mpirun if unset; other users may not write there
};
// Finds the paths. mpirun is the one of the build, else the one beside the program, else the one in PATH.
// ExitCode::config when there is none, or when the tune files are neither in the tree nor beside the program
// and `options` names none.
Result<LaunchPaths> find_launch_paths(Env& env, const LaunchOptions& options);

// Returns the variables that ranks read. Ranks on distant hosts only get the variables that mpirun is told to
// forward.
std::vector<std::string> variables_of_ranks();

struct CommandLine {
  std::vector<std::string> arguments;            // begins with the program
  std::map<std::string, std::string> variables;  // variables to set
};
// LaunchShape describes the ranks and hosts of one start: those of the options, or those that are left of
// them.
struct LaunchShape {
  int ranks = 1;
  bool is_narrower = false;  // fewer ranks per copy of the model than the config says
  bool several_hosts = false;
  std::string hosts = {};                   // LIST for --host; empty: as the options say
  std::map<std::string, int> given = {};    // ranks of each host; empty where mpirun finds the hosts
  std::vector<std::string> overrides = {};  // for `holdfast train`
  std::vector<std::string> words = {};      // of the program; empty: train, and its config
  std::vector<std::string> forwarded = {};  // variables that ranks on distant hosts get, too
};
// Returns the line. Variables that `env` has already stay as they are, and are not among those to set.
CommandLine mpirun_line(Env& env, const LaunchOptions& options, const LaunchPaths& places,
                        const LaunchShape& shape);
// Returns the line as a shell can run it as it stands.
std::string shell_line(const CommandLine& line);

}  // namespace holdfast::launch
