#include "kernels/op_scope.h"

#include <fmt/core.h>

#include <limits>
#include <tuple>

namespace holdfast::kernels {
namespace {

using Part = OpScope::Part;
using Pass = OpScope::Pass;

// Returns the place of the part in a forward.
std::int64_t forward_place(const OpScope& scope) {
  switch (scope.part) {
    case Part::attention:
      return 2 + 2 * std::int64_t{scope.layer};
    case Part::feed_forward:
      return 3 + 2 * std::int64_t{scope.layer};
    case Part::head:
      return std::numeric_limits<std::int64_t>::max();
    case Part::none:
    case Part::embedding:
      break;
  }
  return scope.part == Part::embedding ? 1 : 0;
}

auto order_of(const OpScope& scope) {
  const std::int64_t place = forward_place(scope);
  return std::tuple(scope.pass == Pass::none, scope.lane, scope.microbatch, scope.pass,
                    scope.pass == Pass::forward ? place : -place);
}

}  // namespace

bool is_computed_before(const OpScope& one, const OpScope& other) {
  return order_of(one) < order_of(other);
}

std::string part_name(const OpScope& scope) {
  switch (scope.part) {
    case Part::attention:
      return fmt::format("layers.{}.attention", scope.layer);
    case Part::feed_forward:
      return fmt::format("layers.{}.feed_forward", scope.layer);
    case Part::embedding:
      return "embedding";
    case Part::head:
      return "head";
    case Part::none:
      break;
  }
  return "none";
}

const char* pass_name(const OpScope& scope) {
  if (scope.pass == Pass::none) return "none";
  return scope.pass == Pass::forward ? "forward" : "backward";
}

}  // namespace holdfast::kernels
