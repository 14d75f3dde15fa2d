// The flat parameter and gradient buffers by tensor name, and how tensors start.
#pragma once

#include <map>
#include <span>
#include <string>

#include "parallel/buckets.h"
#include "runtime/model/layers.h"
#include "runtime/model/spec.h"

namespace holdfast {

// Resolves names to pointers. `gradients` may be null (forward only).
class ParameterTable {
 public:
  ParameterTable(const ModelSpec& spec, const BucketPlan& buckets, std::byte* parameters, float* gradients);
  Linear linear(const std::string& name) const;  // "<name>.weight" and, if it exists, "<name>.bias"
  Norm norm(const std::string& name) const;
  // The head: its own weight, or the embedding's with the gradient of the shadow bucket.
  Linear head() const;
  const void* parameter(const std::string& name) const;
  float* gradient(const std::string& name) const;
  bool contains(const std::string& name) const { return tensors_.contains(name); }

 private:
  const BucketTensor& tensor(const std::string& name) const;
  float* gradient_of(const BucketTensor& tensor) const;

  const ModelSpec* spec_;
  std::byte* parameters_;
  float* gradients_;
  std::map<std::string, BucketTensor> tensors_;
  BucketTensor tied_head_;
};

// Starting values of the elements [first, first + values.size()) of one tensor: a pure function of the seed,
// the tensor's name and the element, so that any rank can make any part.
void initial_values(const ParameterSpec& parameter, std::uint64_t seed, std::uint64_t first_element,
                    std::span<float> values);

}  // namespace holdfast
