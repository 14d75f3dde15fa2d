#include "runtime/interop/adapter_merge.h"

#include <algorithm>
#include <utility>

namespace holdfast::interop {

AdapterMerge::AdapterMerge(const ModelSpec& spec, ReadParameter read)
    : read_(std::move(read)), scale_(static_cast<double>(spec.lora.scale)) {
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    for (AdapterSpec& adapter : adapters_of(spec, layer))
      adapters_[adapter.layer + ".weight"].push_back(std::move(adapter));
  }
}

Result<void> AdapterMerge::load(const std::string& parameter) {
  loaded_.clear();
  loaded_of_ = parameter;
  for (const AdapterSpec& spec : adapters_.at(parameter)) {
    Loaded& loaded = loaded_.emplace_back();
    loaded.spec = &spec;
    loaded.a.resize(spec.rank * spec.inputs);
    loaded.b.resize(spec.outputs * spec.rank);
    HF_TRY_VOID(read_(spec.a(), 0, loaded.a));
    HF_TRY_VOID(read_(spec.b(), 0, loaded.b));
  }
  return {};
}

Result<void> AdapterMerge::add(const std::string& parameter, std::uint64_t first, std::span<float> values) {
  const auto found = adapters_.find(parameter);
  if (found == adapters_.end()) return {};
  if (loaded_of_ != parameter) HF_TRY_VOID(load(parameter));
  const std::uint64_t columns = found->second.front().inputs;
  for (std::uint64_t done = 0; done < values.size();) {
    const std::uint64_t row = (first + done) / columns, column = (first + done) % columns;
    const std::uint64_t count = std::min<std::uint64_t>(columns - column, values.size() - done);
    add_to_row(row, column, values.subspan(done, count));
    done += count;
  }
  return {};
}

void AdapterMerge::add_to_row(std::uint64_t row, std::uint64_t first_column, std::span<float> values) {
  for (const Loaded& loaded : loaded_) {
    const AdapterSpec& spec = *loaded.spec;
    if (row < spec.first_output || row >= spec.first_output + spec.outputs) continue;
    sums_.assign(values.size(), 0.0);
    for (std::uint64_t i = 0; i < spec.rank; ++i) {
      const double b = loaded.b[(row - spec.first_output) * spec.rank + i];
      const float* const a = loaded.a.data() + i * spec.inputs + first_column;
      for (std::size_t j = 0; j < sums_.size(); ++j) sums_[j] += b * static_cast<double>(a[j]);
    }
    for (std::size_t j = 0; j < sums_.size(); ++j)
      values[j] = static_cast<float>(static_cast<double>(values[j]) + scale_ * sums_[j]);
  }
}

}  // namespace holdfast::interop
