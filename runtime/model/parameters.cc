#include "runtime/model/parameters.h"

#include <algorithm>

#include "runtime/core/digest.h"
#include "runtime/core/random.h"

namespace holdfast::model {

ParameterTable::ParameterTable(const ModelSpec& spec, const BucketPlan& buckets, std::byte* parameters,
                               float* gradients)
    : spec_(&spec), parameters_(parameters), gradients_(gradients) {
  for (const Bucket& bucket : buckets.buckets()) {
    for (const BucketTensor& tensor : bucket.tensors) {
      if (bucket.tied_to >= 0 || bucket.is_exported) tied_head_.push_back(tensor);
      if (bucket.tied_to < 0) tensors_[{tensor.name, slices_of(tensor.name)}] = tensor;
    }
  }
}

int ParameterTable::slices_of(const std::string& name) const {
  int count = 0;
  while (tensors_.contains({name, count})) ++count;
  return count;
}

const BucketTensor& ParameterTable::tensor(const std::string& name, int slice) const {
  const auto found = tensors_.find({name, slice});
  HF_CHECK(found != tensors_.end(), "the model has no tensor {} (slice {} here)", name, slice);
  return found->second;
}

const void* ParameterTable::parameter(const std::string& name, int slice) const {
  return parameters_ + tensor(name, slice).parameter_offset * bytes_of(spec_->dtype);
}

float* ParameterTable::gradient_of(const BucketTensor& tensor) const {
  return gradients_ == nullptr || tensor.is_frozen ? nullptr : gradients_ + tensor.gradient_offset;
}

float* ParameterTable::gradient(const std::string& name, int slice) const {
  return gradient_of(tensor(name, slice));
}

Linear ParameterTable::linear(const BucketTensor& weight) const {
  return {.weight = parameters_ + weight.parameter_offset * bytes_of(spec_->dtype),
          .weight_gradient = gradient_of(weight),
          .outputs = static_cast<std::int64_t>(weight.shape[0]),
          .inputs = static_cast<std::int64_t>(weight.shape[1]),
          .dtype = spec_->dtype};
}

ColumnLinear ParameterTable::column_linear(const std::string& name) const {
  ColumnLinear layer;
  const std::string bias = name + ".bias";
  for (int slice = 0; slice < slices_of(name + ".weight"); ++slice) {
    Linear& part = layer.slices.emplace_back(linear(tensor(name + ".weight", slice)));
    if (!contains(bias)) continue;
    part.bias = parameter(bias, slice);
    part.bias_gradient = gradient(bias, slice);
  }
  return layer;
}

RowLinear ParameterTable::row_linear(const std::string& name) const {
  RowLinear layer;
  for (int slice = 0; slice < slices_of(name + ".weight"); ++slice)
    layer.slices.push_back(linear(tensor(name + ".weight", slice)));
  if (const std::string bias = name + ".bias"; contains(bias)) layer.bias = parameter(bias);
  return layer;
}

// Each slice has a part of the gradient of the matrix that belongs to none; without tensor lanes it is the gradient.
void ParameterTable::add_adapter(const AdapterSpec& adapter, AdapterBinding& binding,
                                 std::vector<Linear>& slices, std::vector<SlicedGradient>& shared) const {
  const bool by_outputs = adapter.is_split_by_outputs();
  const std::string name_of_shared = by_outputs ? adapter.a() : adapter.b();
  float* const whole = gradient(name_of_shared);
  const auto lanes = static_cast<std::uint64_t>(spec_->tensor_lanes);
  const bool is_sliced = lanes > 1 && whole != nullptr;
  const std::uint64_t elements = adapter.shared_elements();
  for (int i = 0; i < static_cast<int>(slices.size()); ++i) {
    const BucketTensor& own = tensor(by_outputs ? adapter.b() : adapter.a(), i);
    float* const part =
        is_sliced ? binding.slice_gradients + static_cast<std::uint64_t>(own.slice) * elements : whole;
    Linear& slice = slices[static_cast<std::size_t>(i)];
    const std::uint64_t cut_outputs = by_outputs ? lanes : 1, cut_inputs = by_outputs ? 1 : lanes;
    slice.adapters.push_back({.a = parameter(adapter.a(), by_outputs ? 0 : i),
                              .b = parameter(adapter.b(), by_outputs ? i : 0),
                              .a_gradient = by_outputs ? part : gradient_of(own),
                              .b_gradient = by_outputs ? gradient_of(own) : part,
                              .first_output = static_cast<std::int64_t>(adapter.first_output / cut_outputs),
                              .outputs = static_cast<std::int64_t>(adapter.outputs / cut_outputs),
                              .layer_outputs = slice.outputs,
                              .inputs = static_cast<std::int64_t>(adapter.inputs / cut_inputs),
                              .rank = static_cast<std::int64_t>(adapter.rank),
                              .dtype = spec_->dtype,
                              .memory = binding.memory});
  }
  if (!is_sliced) return;
  const BucketTensor& tensor_of_none = tensor(name_of_shared);
  shared.push_back({.of_slices = binding.slice_gradients,
                    .gradient = whole,
                    .rows = static_cast<std::int64_t>(tensor_of_none.shape[0]),
                    .columns = static_cast<std::int64_t>(tensor_of_none.shape[1])});
  binding.slice_gradients += lanes * elements;
}

Norm ParameterTable::norm(const std::string& name, const std::string& branch_end) const {
  Norm norm{.kind = spec_->norm,
            .weight = parameter(name + ".weight"),
            .weight_gradient = gradient(name + ".weight"),
            .width = static_cast<std::int64_t>(tensor(name + ".weight").shape[0]),
            .epsilon = spec_->norm_epsilon,
            .dtype = spec_->dtype};
  if (const std::string bias = name + ".bias"; contains(bias)) {
    norm.bias = parameter(bias);
    norm.bias_gradient = gradient(bias);
  }
  if (const std::string bias = branch_end + ".bias"; contains(bias)) {
    norm.branch_bias_gradient = gradient(bias);
    HF_CHECK(norm.kind == NormKind::layer_norm && norm.is_trained() == (norm.branch_bias_gradient != nullptr),
             "{} has no norm that computes its gradient", bias);
  }
  return norm;
}

ColumnLinear ParameterTable::head() const {
  if (!spec_->tied_head) return column_linear("head");
  ColumnLinear head = column_linear("embedding.token");
  // A frozen one has no bucket of the head's gradient.
  for (std::size_t i = 0; i < tied_head_.size(); ++i)
    head.slices[i].weight_gradient = gradient_of(tied_head_[i]);
  return head;
}

void initial_values(const ParameterSpec& parameter, std::uint64_t seed, std::uint64_t first_element,
                    std::span<float> values) {
  const RandomStream stream(seed, digest_of("init " + parameter.name).low);
  if (parameter.bound > 0.0F) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(static_cast<double>(parameter.bound) *
                                     (2.0 * stream.uniform(first_element + i) - 1.0));
    }
    return;
  }
  if (parameter.deviation <= 0.0F) {
    std::fill(values.begin(), values.end(), parameter.constant);
    return;
  }
  const std::uint64_t real_elements = parameter.elements() - parameter.padding_elements;
  const std::uint64_t real_left = real_elements - std::min(first_element, real_elements);
  const std::span<float> real = values.first(std::min<std::size_t>(values.size(), real_left));
  stream.fill_normals(first_element, parameter.deviation, real);
  std::fill(values.begin() + static_cast<std::ptrdiff_t>(real.size()), values.end(), 0.0F);
}

void initial_values_of_slice(const ParameterSpec& parameter, int slice, int slices, std::uint64_t seed,
                             std::uint64_t first_element, std::span<float> values) {
  for (const SliceRun& run : runs_of_slice(parameter, slice, slices, first_element, values.size())) {
    initial_values(parameter, seed, run.tensor_offset,
                   values.subspan(run.slice_offset - first_element, run.count));
  }
}

}  // namespace holdfast::model
