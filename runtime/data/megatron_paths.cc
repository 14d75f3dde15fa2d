#include "runtime/data/megatron_paths.h"

#include <string_view>

namespace holdfast::inline data {

MegatronPaths megatron_paths(const std::string& path) {
  std::string name = path;
  for (const std::string_view ending : {".bin", ".idx"}) {
    if (!path.ends_with(ending)) continue;
    name.resize(path.size() - ending.size());
    break;
  }
  return {.data = name + ".bin", .index = name + ".idx"};
}

}  // namespace holdfast::inline data
