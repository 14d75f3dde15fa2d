// Reads weights in files of other programs by name, as fp32, and writes a file of weights.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::interop {

enum class WeightType { fp32, bf16, fp16 };
constexpr std::uint64_t bytes_of(WeightType type) {
  return type == WeightType::fp32 ? 4 : 2;
}

// Converts fp16 to fp32 exactly: every fp16 is an fp32.
float float_of_half(std::uint16_t bits);

// StoredWeight says where a tensor is in a file. The caller of add() has checked that it is inside the file.
struct StoredWeight {
  std::size_t file = 0;  // number that add_file() returned
  std::uint64_t offset_bytes = 0;
  WeightType type = WeightType::fp32;
  std::vector<std::uint64_t> shape;
};

class WeightFiles {
 public:
  std::size_t add_file(std::unique_ptr<File> file);
  // Adds a weight; returns false when there is already one of that name.
  bool add(const std::string& name, StoredWeight weight);
  const StoredWeight* find(const std::string& name) const;  // nullptr: no such weight
  const std::map<std::string, StoredWeight>& tensors() const { return tensors_; }
  const std::string& path_of(const StoredWeight& weight) const { return files_[weight.file]->path(); }
  // Reads elements [first, first + target.size()) of the weight. Fails with ExitCode::data.
  Result<void> read(const StoredWeight& weight, std::uint64_t first, std::span<float> target);

 private:
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, StoredWeight> tensors_;
  std::vector<std::uint16_t> halves_;
};

// WeightFileWriter writes a new file from its first byte to its last. It is durable after finish().
class WeightFileWriter {
 public:
  // Creates the file and reserves all its `bytes`; `prologue` is written before the weights.
  static Result<WeightFileWriter> create(Env& env, const std::string& path, std::string_view prologue,
                                         std::uint64_t bytes);
  // Appends values: fp32 unchanged, bf16 rounded to nearest even.
  Result<void> append(std::span<const float> values, WeightType type);
  Result<void> finish();

 private:
  std::unique_ptr<File> file_;
  std::uint64_t next_ = 0, bytes_ = 0;
  std::vector<std::uint16_t> halves_;
};

}  // namespace holdfast::interop
