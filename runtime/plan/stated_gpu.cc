#include "runtime/plan/stated_gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

namespace holdfast::plan {
namespace {

constexpr std::array gpus = {
    StatedGpu{"a100", 250.0, 14.6, 80.0, 2039.0, 242.0, 22.5},
    StatedGpu{"h100", 794.0, 50.0, 79.6, 3350.0, 363.0, 45.0},
    StatedGpu{"h200", 794.0, 50.0, 140.4, 4800.0, 363.0, 45.0},
    StatedGpu{"b200", 1807.0, 60.0, 179.0, 8000.0, 726.0, 45.0},
};

}  // namespace

const StatedGpu* find_gpu(std::string_view name) {
  const auto found = std::ranges::find(gpus, name, &StatedGpu::name);
  return found == gpus.end() ? nullptr : &*found;
}

std::string known_gpus() {
  std::vector<std::string_view> names;
  for (const StatedGpu& gpu : gpus) names.push_back(gpu.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace holdfast::plan
