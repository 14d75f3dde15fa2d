#include "runtime/core/split.h"

#include <algorithm>

namespace holdfast::core {

std::vector<std::string> split_list(std::string_view list, char separator) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(separator));
    if (!part.empty()) parts.emplace_back(part);
    list.remove_prefix(std::min(part.size() + 1, list.size()));
  }
  return parts;
}

}  // namespace holdfast::core
