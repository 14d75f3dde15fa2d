// hosts: short names for the hosts that ranks are on.
#pragma once

#include <string>
#include <vector>

namespace holdfast::test {

// Returns the host of each rank: "aab" is {"a", "a", "b"}.
inline std::vector<std::string> hosts(const std::string& letters) {
  std::vector<std::string> names;
  for (const char letter : letters) names.emplace_back(1, letter);
  return names;
}

}  // namespace holdfast::test
