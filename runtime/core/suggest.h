// 'Did you mean': the known word nearest to a mistyped one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace holdfast::core {

// Returns the candidate with the smallest Damerau-Levenshtein distance (insertions, deletions, substitutions
// and swaps of neighbours count one each), and the first of equals. Empty when nothing is within a third of
// the word's length.
std::string closest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace holdfast::core
