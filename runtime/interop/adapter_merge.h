// AdapterMerge adds what the adapters of a checkpoint add to a model: W + s B A, in double, rounded to fp32 once.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/interop/tensor_reader.h"
#include "runtime/model/adapter_spec.h"

namespace holdfast::interop {

// Returns the kind of tensor that is read of a parameter.
inline const char* kind_of(const std::string& parameter, const std::set<std::string>& averaged) {
  return averaged.contains(parameter) ? "ema" : "weight";
}

class AdapterMerge {
 public:
  // Reads the adapters of `weights`, or the averages of those that are in `averaged`, when they are needed; both outlive
  // it. Those of one matrix are in memory at once.
  AdapterMerge(const ModelSpec& spec, TensorReader& weights, const std::set<std::string>& averaged);
  // Adds to elements [first, first + values.size()) of a tensor of the model; nothing to those without adapters.
  Result<void> add(const std::string& parameter, std::uint64_t first, std::span<float> values);

 private:
  struct Loaded {
    const AdapterSpec* spec = nullptr;
    std::vector<float> a, b;
  };
  Result<void> load(const std::string& parameter);
  Result<void> read(const std::string& adapter, std::vector<float>& values);
  void add_to_row(std::uint64_t row, std::uint64_t first_column, std::span<float> values);

  TensorReader& weights_;
  const std::set<std::string>& averaged_;
  double scale_;
  std::map<std::string, std::vector<AdapterSpec>> adapters_;  // by the name of the weight
  std::string loaded_of_;
  std::vector<Loaded> loaded_;
  std::vector<double> sums_;
};

}  // namespace holdfast::interop
