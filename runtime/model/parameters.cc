#include "runtime/model/parameters.h"

#include <algorithm>

#include "runtime/core/digest.h"
#include "runtime/core/random.h"

namespace holdfast {

ParameterTable::ParameterTable(const ModelSpec& spec, const BucketPlan& buckets, std::byte* parameters,
                               float* gradients)
    : spec_(&spec), parameters_(parameters), gradients_(gradients) {
  for (const Bucket& bucket : buckets.buckets()) {
    for (const BucketTensor& tensor : bucket.tensors) {
      if (bucket.shadow_of >= 0 || bucket.is_guest) tied_head_ = tensor;
      if (bucket.shadow_of < 0) tensors_[tensor.name] = tensor;
    }
  }
}

const BucketTensor& ParameterTable::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  HF_CHECK(found != tensors_.end(), "the model has no tensor {}", name);
  return found->second;
}

const void* ParameterTable::parameter(const std::string& name) const {
  return parameters_ + tensor(name).parameter_offset * bytes_of(spec_->dtype);
}

float* ParameterTable::gradient_of(const BucketTensor& tensor) const {
  return gradients_ == nullptr ? nullptr : gradients_ + tensor.gradient_offset;
}

float* ParameterTable::gradient(const std::string& name) const {
  return gradient_of(tensor(name));
}

Linear ParameterTable::linear(const std::string& name) const {
  const BucketTensor& weight = tensor(name + ".weight");
  Linear linear{.weight = parameter(weight.name),
                .weight_gradient = gradient_of(weight),
                .outputs = static_cast<std::int64_t>(weight.shape[0]),
                .inputs = static_cast<std::int64_t>(weight.shape[1]),
                .dtype = spec_->dtype};
  if (const std::string bias = name + ".bias"; contains(bias)) {
    linear.bias = parameter(bias);
    linear.bias_gradient = gradient(bias);
  }
  return linear;
}

Norm ParameterTable::norm(const std::string& name) const {
  Norm norm{.kind = spec_->norm,
            .weight = parameter(name + ".weight"),
            .weight_gradient = gradient(name + ".weight"),
            .width = spec_->width,
            .epsilon = spec_->norm_epsilon,
            .dtype = spec_->dtype};
  if (const std::string bias = name + ".bias"; contains(bias)) {
    norm.bias = parameter(bias);
    norm.bias_gradient = gradient(bias);
  }
  return norm;
}

Linear ParameterTable::head() const {
  if (!spec_->tied_head) return linear("head");
  Linear head = linear("embedding.token");
  head.weight_gradient = gradient_of(tied_head_);
  return head;
}

void initial_values(const ParameterSpec& parameter, std::uint64_t seed, std::uint64_t first_element,
                    std::span<float> values) {
  if (parameter.deviation <= 0.0F) {
    std::fill(values.begin(), values.end(), parameter.constant);
    return;
  }
  const RandomStream stream(seed, digest_of("init " + parameter.name).low);
  const std::uint64_t real_elements = parameter.elements() - parameter.padding_elements;
  const std::uint64_t real_left = real_elements - std::min(first_element, real_elements);
  const std::span<float> real = values.first(std::min<std::size_t>(values.size(), real_left));
  stream.fill_normals(first_element, parameter.deviation, real);
  std::fill(values.begin() + static_cast<std::ptrdiff_t>(real.size()), values.end(), 0.0F);
}

}  // namespace holdfast
