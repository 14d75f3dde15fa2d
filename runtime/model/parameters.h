// ParameterTable resolves tensor names in the flat parameter and gradient buffers; initial_values() makes the
// starting values of tensors.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/data/buckets.h"
#include "runtime/model/adapter_spec.h"
#include "runtime/model/layers.h"
#include "runtime/model/spec.h"

namespace holdfast::model {

// AdapterBinding is the memory that the adapters of a model are bound to, one linear layer after the other.
struct AdapterBinding {
  AdapterMemory memory;
  float* slice_gradients = nullptr;  // free from here on (SlicedGradient); not used without tensor lanes
};

// Resolves names to pointers. `gradients` may be null (forward only).
class ParameterTable {
 public:
  ParameterTable(const ModelSpec& spec, const BucketPlan& buckets, std::byte* parameters, float* gradients);
  // Returns the slices here of "<name>.weight" and, if it exists, "<name>.bias", without adapters.
  ColumnLinear column_linear(const std::string& name) const;
  RowLinear row_linear(const std::string& name) const;
  // Adds an adapter to the slices of its layer.
  void add_adapter(const AdapterSpec& adapter, AdapterBinding& binding, std::vector<Linear>& slices,
                   std::vector<SlicedGradient>& shared) const;
  // Returns a norm, as wide as its weight; `branch_end` names the layer that ends the branch which starts with it, if one does.
  Norm norm(const std::string& name, const std::string& branch_end = "") const;
  // Returns the head: its own weight, or the embedding's with the gradient of the tied bucket.
  ColumnLinear head() const;
  // Returns the address of a tensor, or of one of its slices here.
  const void* parameter(const std::string& name, int slice = 0) const;
  float* gradient(const std::string& name, int slice = 0) const;  // null for a frozen tensor
  bool contains(const std::string& name) const { return slices_of(name) > 0; }

 private:
  using Key = std::pair<std::string, int>;  // name, and index among the slices that are here
  int slices_of(const std::string& name) const;
  const BucketTensor& tensor(const std::string& name, int slice = 0) const;
  float* gradient_of(const BucketTensor& tensor) const;
  Linear linear(const BucketTensor& weight) const;

  const ModelSpec* spec_;
  std::byte* parameters_;
  float* gradients_;
  std::map<Key, BucketTensor> tensors_;
  std::vector<BucketTensor> tied_head_;  // by slice
};

// Computes starting values of the elements [first, first + values.size()) of one tensor: a pure function of
// the seed, the tensor's name and the element, so that any rank can make any part.
void initial_values(const ParameterSpec& parameter, std::uint64_t seed, std::uint64_t first_element,
                    std::span<float> values);
// Does the same for a slice; the values are those of the tensor.
void initial_values_of_slice(const ParameterSpec& parameter, int slice, int slices, std::uint64_t seed,
                             std::uint64_t first_element, std::span<float> values);

}  // namespace holdfast::model
