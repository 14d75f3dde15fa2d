// Files of made-up tokens in every format that holdfast trains on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::bench {

struct TokenFileKind {
  std::string_view format;  // as in data.sources
  std::int64_t vocabulary;  // decides how wide a token is
};
std::span<const TokenFileKind> token_file_kinds();

// `count` random tokens below kind.vocabulary; in megatron in documents of 1,024. Returns the files, that of
// the source first: `path`, or with the endings that the format demands.
Result<std::vector<std::string>> write_token_file(Env& env, const TokenFileKind& kind,
                                                  const std::string& path, std::int64_t count);

}  // namespace holdfast::bench
