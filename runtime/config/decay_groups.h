// Parses optimizer.weight_decay_groups, the tensors whose weight decay is another than that of their kind.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::config {

struct DecayGroup {
  std::string
      pattern;  // glob over the names of tensors: "*" is any text, dots included, "?" is one character
  double weight_decay = 0.0;
};

// Parses entries "PATTERN=DECAY". Errors: ExitCode::config, with the entry that is wrong and what one is.
Result<std::vector<DecayGroup>> parse_decay_groups(std::span<const std::string> entries);

// Returns whether a glob matches the whole of a name.
bool matches_glob(std::string_view pattern, std::string_view name);

// Returns the weight decay of the first group that a tensor is in; nothing where it is in none.
std::optional<double> decay_in_groups(std::span<const DecayGroup> groups, std::string_view tensor);

}  // namespace holdfast::config
