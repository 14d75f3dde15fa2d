// Environment variables: HOLDFAST_SECTION_KEY gives the value of a key, others of that prefix are the
// program's own, and any further one is a typing error, which would else go unnoticed for a whole run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::config {

// Returns the variable that gives the value of a key: HOLDFAST_TRAINING_STEPS of training.steps.
std::string environment_name(std::string_view key);
// Returns the names of the environment variables for all keys, set or not.
std::vector<std::string> environment_names();

// Names another library for the CUDA device than the one beside the program (runtime/rank/device_choice.h).
inline constexpr const char* cuda_module_variable = "HOLDFAST_CUDA_MODULE";

// Returns the variables of our prefix that are set to something and are neither of a key nor among those that
// the program, its tools and the commands that it runs know. Those that begin with HOLDFAST_TEST_ are for
// tests, which may have any.
std::vector<std::string> unknown_variables(Env& env);
// Returns the key that the user of an unknown variable probably meant; empty when none is near.
std::string suggest_key_of_variable(std::string_view name);

}  // namespace holdfast::config
