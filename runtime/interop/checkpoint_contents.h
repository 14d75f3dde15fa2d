// Reads what a checkpoint says of itself: its contents, from its manifest and the indices of its files, for
// `holdfast inspect`, and the config of its run.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/config/config.h"
#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/core/tensor.h"
#include "runtime/os/env.h"

namespace holdfast::interop {

// StoredTensor is a tensor with the kinds of its state that are saved.
struct StoredTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  DType dtype = DType::fp32;       // of the weight
  DType moments = DType::fp32;     // of the moments, if there are any
  std::uint32_t slices = 1;        // number of slices that tensor lanes cut it into
  std::vector<std::string> kinds;  // "weight", "moment1", ...
  std::uint64_t pieces = 0;        // pieces of all kinds, in all files
  std::uint64_t bytes = 0;         // bytes of all kinds, before any compression
  bool operator==(const StoredTensor&) const = default;
};

struct CheckpointContents {
  std::vector<StoredTensor> tensors;  // in the order of the model
  std::uint64_t tensor_bytes = 0;     // before any compression; each element counts once
  std::uint64_t file_bytes = 0;       // bytes of the shard files
};

// Returns the contents of a checkpoint that was saved with `config`. Tensors that the config does not know
// come last, by name.
CheckpointContents contents_of(const Checkpoint& checkpoint, const Config& config);

// Returns the names of the tensors of which a checkpoint has an exponential moving average (optimizer.ema): those that are
// trained. Fails with ExitCode::config where it has none.
Result<std::set<std::string>> averaged_tensors(const Checkpoint& checkpoint);

std::uint64_t bytes_of_shards(const Manifest& manifest);

// TensorRow joins neighbours of a list that differ in nothing but the layer, such as "layers.3.norm.weight"
// and "layers.4.norm.weight", into one row.
struct TensorRow {
  StoredTensor tensor;  // the first tensor, with the bytes and pieces of all
  std::string name;     // "layers.{0-11}.norm.weight"
  std::uint64_t count = 1;
};
std::vector<TensorRow> rows_by_layer(const std::vector<StoredTensor>& tensors);

// Returns the config of the run that wrote the checkpoint, or of the model that was imported; fails with
// ExitCode::checkpoint where it cannot be used.
Result<Config> config_of_checkpoint(Env& env, const Checkpoint& checkpoint);
// Does the same with overrides; ExitCode::config where they are wrong.
Result<Config> config_of_checkpoint(Env& env, const Checkpoint& checkpoint,
                                    const std::vector<Override>& overrides);

}  // namespace holdfast::interop
