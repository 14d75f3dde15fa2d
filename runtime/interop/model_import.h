// Imports a model of another program as weights for a checkpoint: a Hugging Face folder (config.json and
// safetensors files) or a model file of llm.c.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/config/config.h"
#include "runtime/interop/foreign_tensors.h"
#include "runtime/interop/hugging_face_config.h"
#include "runtime/interop/peft_adapter.h"
#include "runtime/interop/weight_files.h"

namespace holdfast::interop {

// Key of the manifest's value that marks a checkpoint as an imported model: weights without a training state.
inline constexpr const char* imported_from_key = "imported_from";

class ModelImport {
 public:
  // Reads the description of the model, and checks every tensor's name, shape, type and place; no weight is
  // read yet. Fails with ExitCode::data and says what is wrong in which file.
  static Result<ModelImport> open(Env& env, const std::string& source, const ForeignShapeOptions& options);

  // Adds the adapters in a folder of PEFT, as open_peft_adapter() checks them: the model's config has them from then on.
  Result<void> add_adapters(Env& env, const std::string& folder);

  // Returns a resolved config with the model's shape. It is of no run: run.directory, data.sources and
  // training.steps have no value (StoredConfig::of_weights).
  const Config& config() const { return config_; }

  // Writes all weights as fp32, uncut, into shard files in `directory`, several tensors in each, with about 1
  // GiB in memory at once (or the largest tensor).
  Result<std::vector<ShardFile>> write_shards(Env& env, const std::string& directory,
                                              const std::string& run_id);

 private:
  ModelImport(Config config, std::vector<ForeignTensor> tensors, WeightFiles weights)
      : config_(std::move(config)), tensors_(std::move(tensors)), weights_(std::move(weights)) {}
  Result<void> read_parameter(const std::string& parameter, std::span<float> target);
  Result<void> read_tensor(WeightFiles& weights, const ForeignTensor& tensor, std::span<float> target);

  Config config_;
  std::vector<ForeignTensor> tensors_;  // with their names in the files
  WeightFiles weights_;
  std::optional<PeftAdapter> adapter_;
};

}  // namespace holdfast::interop
