// CallKey tells calls of an op apart: by every field of its arguments, by which of its arrays are given, and by which of
// them are the same memory. Whoever collects, measures or tries calls knows by it which ones it has already.
//
//   std::set<CallKey> seen;
//   if (seen.insert(call_key(id, arguments)).second) ...
#pragma once

#include <compare>
#include <string>

#include "kernels/op.h"

namespace holdfast::measure {

// Calls with equal keys are equal work. Of numbers that belong to a moment or a place (a learning rate, the key of a
// rounding, the first token of a slice) counts whether they are 0: nothing else about a call follows from them.
struct CallKey {
  OpId id = OpId::count;
  std::string sizes = {};  // "rows=64 width=768"; of a table also those of its tensors
  // Flags, types, which arrays are given, and which are memory that another has: "accumulate=0 dx=dresidual".
  std::string state = {};
  auto operator<=>(const CallKey&) const = default;
};

// Returns the key of a call. `arguments` is the struct of `id`. A table of tensors and a list of segments are read; the
// other memory is not.
CallKey call_key(OpId id, const void* arguments);

// Returns shape_text() of a call, and whatever else of its state a person needs to tell it from others of the shape:
// "64x768 bf16, accumulate, dx=dresidual".
std::string call_text(OpId id, const void* arguments);

}  // namespace holdfast::measure
