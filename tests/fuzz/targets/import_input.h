// Holds what the targets of foreign models share.
#pragma once

#include <string>

#include "tests/fuzz/fuzz_env.h"

namespace holdfast::fuzz {

// Imports the model at `source` and writes its weights. Returns whether it was accepted.
bool import_model(FuzzEnv& env, const std::string& source);

// A config may say 4,096 layers, whose tensors are listed before the file is found to hold none of them.
inline constexpr std::uint64_t import_memory_per_byte = 256, import_memory_beside = 48 << 20;

}  // namespace holdfast::fuzz
