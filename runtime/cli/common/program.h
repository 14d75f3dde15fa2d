// Program: does what the main() of every program of runtime/cli/ has to do.
#pragma once

#include <string>
#include <vector>

namespace holdfast::cli {

// Runs `run` with the words of the command line and returns its exit code. Closed standard streams are
// replaced, so that no file that the process opens takes their place. Output that fmt::print cannot write is
// reported, as ExitCode::config.
int run_program(int argc, char** argv, int (*run)(const std::vector<std::string>& words));

// Returns the exit code of a command whose result is what it printed: an error when some of that is lost.
int with_output(int code);

}  // namespace holdfast::cli
