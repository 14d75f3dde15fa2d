// Compares two checkpoints tensor by tensor, by the elements of the whole tensors. The layouts, the numbers
// of tensor lanes and the numbers of files with which they were saved do not matter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/interop/tensor_reader.h"

namespace holdfast::interop {

// FirstDifference is the first element whose bits differ, in the order of the tensor's elements.
struct FirstDifference {
  std::vector<std::uint64_t> index;  // (row, column)
  double a = 0.0, b = 0.0;
};

struct TensorDiff {
  std::string tensor, kind;
  std::uint64_t elements = 0;
  // Reason why the two cannot be compared element by element: missing on one side, another shape or type;
  // else empty.
  std::string mismatch = {};
  std::uint64_t differing = 0;  // number of elements whose bits differ (+0 and -0 do)
  double max_absolute = 0.0;    // |a - b|; infinite when one of the two is not finite
  double max_relative = 0.0;    // |a - b| / max(|a|, |b|)
  std::optional<FirstDifference> first = {};
  bool is_equal() const { return mismatch.empty() && differing == 0; }
};

// Compares every (tensor, kind) that one of the checkpoints holds, in the order of names. Both checkpoints
// are verified to the last byte. Fails with ExitCode::checkpoint when something cannot be read.
// DiffKinds::weights leaves the optimizer state out.
enum class DiffKinds { all, weights };
Result<std::vector<TensorDiff>> diff_checkpoints(TensorReader& a, TensorReader& b,
                                                 DiffKinds kinds = DiffKinds::all);

// Compares elements that begin at `first` of the whole tensor. `a` and `b` have the same length. Elements of
// fp32 or bf16 are compared as numbers, other types only by their bits.
void compare_elements(const ShardSpec& tensor, std::uint64_t first, std::span<const std::byte> a,
                      std::span<const std::byte> b, TensorDiff& diff);

}  // namespace holdfast::interop
