// Parses model.freeze, the list of the tensors of a model that keep their values while others are trained.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::config {

struct FreezeList {
  struct Layers {
    std::int64_t first = 0, last = 0;  // inclusive, counted from 0
  };
  bool embedding = false;      // token and position table; a tied head with them
  bool head = false;           // final norm and the matrix of an untied head
  bool matrices = false;       // all tensors but biases and norms (BitFit: Ben Zaken et al. 2022)
  std::vector<Layers> layers;  // may reach beyond the model

  bool has_layer(std::int64_t layer) const;
};

// Errors: ExitCode::config, with the entry that is wrong and those that there are.
Result<FreezeList> parse_freeze_list(std::span<const std::string> entries);

}  // namespace holdfast::config
