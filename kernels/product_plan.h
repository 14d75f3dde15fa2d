// Plans of matrix products as text (Device::plan_description()): a line for each product, "shape: algorithm". Two GPUs
// of one Device::identity() may plan other algorithms, whose sums have other last bits: these functions tell. A plan
// may also be given to a device, which then takes its algorithms wherever its library has them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/product_shape.h"
#include "runtime/core/result.h"

namespace holdfast::kernels {

// Largest plan that is stored with a state; hardly a model has more than a few kilobytes of it.
inline constexpr std::uint64_t stored_plan_bytes_max = std::uint64_t{16} << 10;

// Returns the shape as a plan has it, such as "m 8 n 8 k 8 lda 8 ldb 8 ldc 8 NT bias bf16 -> bf16".
std::string plan_shape(const ProductShape& shape);

// Returns algorithms by shape. Lines that are empty or begin with '#' are left out.
using ProductAlgorithms = std::map<std::string, std::string, std::less<>>;
ProductAlgorithms algorithms_of(std::string_view plan);

// Reads what a user gives as a plan. ExitCode::config with a sentence that names the first line that is none.
Result<ProductAlgorithms> read_plan(std::string_view text, std::string_view file);

// Returns a clause about the first product that two plans have in common and compute by different algorithms, such as
// "the product m 8 n 8 k 8 ... by algorithm 1 ... there and by algorithm 2 ... here"; empty: there is none.
std::string difference_of_plans(std::string_view there, std::string_view here);

// Finds two ranks that compute a product in different ways. `plans`: by rank; empty: of a rank without one.
struct PlanDifference {
  int rank = 0, other_rank = 0;
  std::string clause = {};  // difference_of_plans() of the two; empty: all ranks compute alike
};
PlanDifference difference_of_ranks(const std::vector<std::string>& plans);

// Returns the plan of all ranks: a line for each product that one of them has planned. Where two differ, the lower rank's
// algorithm counts. `plans`: as above.
std::string plan_of_ranks(const std::vector<std::string>& plans);

}  // namespace holdfast::kernels
