// Computes the second pass of sums over rows: groups of rows were added to partial sums, and those are added
// here.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"

namespace holdfast::kernels::cuda {

struct ColumnSums {
  const float* partials = nullptr;  // (groups, target_count, columns)
  std::int64_t groups = 0, columns = 0;
  float* targets[3] = {};  // (columns) each
  int target_count = 1;
  bool accumulate = false;
};

// Computes targets[t][c] (+)= sum of partials[g, t, c] over the groups, in an order that follows from their
// number.
void add_column_sums(Context& context, const ColumnSums& sums);

}  // namespace holdfast::kernels::cuda
