// Mutation: one input of a fuzz campaign from the corpus, by a seed and a number alone.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace holdfast::fuzz {

using Bytes = std::vector<std::byte>;

// Longest input that mutated() returns, unless the one that it starts from is longer.
inline constexpr std::size_t mutated_bytes_max = 64 << 10;

// Returns a file of the corpus with one to eight changes: bits, bytes, numbers of every width, digits of
// text, parts that are cut out, doubled, moved, repeated or taken from another file, words of the format.
// `corpus` is not empty. Pure.
Bytes mutated(std::span<const Bytes> corpus, std::span<const std::string_view> words, std::uint64_t seed,
              std::uint64_t number);

}  // namespace holdfast::fuzz
