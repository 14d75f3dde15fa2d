// TensorShare names the slices of the split tensors that one rank of a tensor group holds. `slices` is the
// run's number of tensor lanes: how every split tensor is cut, whatever the number of ranks; a rank holds
// `count` neighbouring ones, and so do its peers.
#pragma once

namespace holdfast::parallel {

struct TensorShare {
  int slices = 1;
  int first = 0;
  int count = 1;
  int ranks() const { return slices / count; }
  int rank() const { return first / count; }
};

inline TensorShare share_of(int slices, int rank, int ranks) {
  return {.slices = slices, .first = slices / ranks * rank, .count = slices / ranks};
}
inline TensorShare all_slices(int slices) {
  return {.slices = slices, .first = 0, .count = slices};
}

}  // namespace holdfast::parallel
