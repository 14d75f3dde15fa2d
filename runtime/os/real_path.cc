#include "runtime/os/real_path.h"

#include <cstdlib>
#include <memory>

namespace holdfast::inline os {

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  return resolved == nullptr ? "" : resolved.get();
}

}  // namespace holdfast::inline os
