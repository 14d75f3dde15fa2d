// AdapterMerge adds what the adapters of a checkpoint add to a model: W + s B A, in double, rounded to fp32 once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/model/spec.h"

namespace holdfast::interop {

// Reads elements of a tensor of the model from `first` on, as many as there are values.
using ReadParameter =
    std::function<Result<void>(const std::string& parameter, std::uint64_t first, std::span<float> values)>;

class AdapterMerge {
 public:
  // Reads the adapters when they are needed; those of one matrix are in memory at once.
  AdapterMerge(const ModelSpec& spec, ReadParameter read);
  // Adds to elements [first, first + values.size()) of a tensor of the model; nothing to those without adapters.
  Result<void> add(const std::string& parameter, std::uint64_t first, std::span<float> values);

 private:
  struct Loaded {
    const AdapterSpec* spec = nullptr;
    std::vector<float> a, b;
  };
  Result<void> load(const std::string& parameter);
  void add_to_row(std::uint64_t row, std::uint64_t first_column, std::span<float> values);

  ReadParameter read_;
  double scale_;
  std::map<std::string, std::vector<AdapterSpec>> adapters_;  // by the name of the weight
  std::string loaded_of_;
  std::vector<Loaded> loaded_;
  std::vector<double> sums_;
};

}  // namespace holdfast::interop
