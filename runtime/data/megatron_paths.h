// Paths of the two files of a Megatron dataset.
#pragma once

#include <string>

namespace holdfast::inline data {

struct MegatronPaths {
  std::string data;   // NAME.bin
  std::string index;  // NAME.idx
};
MegatronPaths megatron_paths(const std::string& path);  // accepts NAME.bin, NAME.idx or NAME

}  // namespace holdfast::inline data
