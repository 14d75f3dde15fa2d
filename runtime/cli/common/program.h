// Does what the main() of every program of runtime/cli/ has to do.
#pragma once

#include <string>
#include <vector>

namespace holdfast::inline cli {

// Runs `run` with the words of the command line and returns its exit code. Streams that are closed take
// nothing that the process opens; what fmt::print cannot write is said, and is ExitCode::config.
int run_program(int argc, char** argv, int (*run)(const std::vector<std::string>& words));

// Returns the code of a command whose result is what it printed: an error when some of that is lost.
int with_output(int code);

}  // namespace holdfast::inline cli
