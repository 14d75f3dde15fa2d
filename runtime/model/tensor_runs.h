// runs_of_tensor() finds the elements of a whole tensor in the slices that tensor lanes cut it into: the
// inverse of runs_of_slice (spec.h).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/spec.h"

namespace holdfast::model {

struct TensorRun {
  int slice = 0;
  SliceRun run;
};

// Returns elements [first, first + count) of the whole tensor, as runs in their order, each inside one slice.
std::vector<TensorRun> runs_of_tensor(const ParameterSpec& parameter, int slices, std::uint64_t first,
                                      std::uint64_t count);

}  // namespace holdfast::model
