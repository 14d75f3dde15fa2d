// Holds what the targets of token files share.
#pragma once

#include <string>

#include "tests/fuzz/fuzz_env.h"

namespace holdfast::fuzz {

// Opens the data file `path` of `env` as `format`, reads every token and every row, and writes the tokens
// back. Returns whether it was accepted.
bool read_tokens(FuzzEnv& env, const std::string& path, const std::string& format);

inline constexpr std::uint64_t token_memory_per_byte = 64, token_memory_beside = 256 << 10;

}  // namespace holdfast::fuzz
