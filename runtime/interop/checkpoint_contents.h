// What a checkpoint holds, as its manifest and the indices of its files say: what `holdfast inspect` shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/config/config.h"
#include "runtime/core/tensor.h"

namespace holdfast::inline interop {

// A tensor and the kinds of state that are saved of it.
struct StoredTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  DType dtype = DType::fp32;
  std::uint32_t slices = 1;        // that tensor lanes cut it into
  std::vector<std::string> kinds;  // "weight", "moment1", ...
  std::uint64_t pieces = 0;        // of all kinds, in all files
  std::uint64_t bytes = 0;         // of all kinds, before any compression
  bool operator==(const StoredTensor&) const = default;
};

struct CheckpointContents {
  std::vector<StoredTensor> tensors;  // in the order of the model
  std::uint64_t tensor_bytes = 0;     // before any compression; each element once
  std::uint64_t file_bytes = 0;       // of the shard files
};

// `config`: what the checkpoint was saved with; tensors that it does not know come last, by name.
CheckpointContents contents_of(const Checkpoint& checkpoint, const Config& config);

std::uint64_t bytes_of_shards(const Manifest& manifest);

// "layers.3.norm.weight" and "layers.4.norm.weight" differ in nothing but the layer: neighbours of a list
// that are alike in all else, as one row.
struct TensorRow {
  StoredTensor tensor;  // the first; its bytes and pieces are of all
  std::string name;     // "layers.{0-11}.norm.weight"
  std::uint64_t count = 1;
};
std::vector<TensorRow> rows_by_layer(const std::vector<StoredTensor>& tensors);

}  // namespace holdfast::inline interop
