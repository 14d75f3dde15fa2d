// Adapters as PEFT (huggingface/peft) stores them: a folder of adapter_config.json and adapter_model.safetensors, with A and
// B of each target in a tensor of its own.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/interop/foreign_tensors.h"
#include "runtime/interop/weight_files.h"

namespace holdfast::interop {

inline constexpr const char* peft_config_file = "adapter_config.json";
inline constexpr const char* peft_weights_file = "adapter_model.safetensors";

// Returns the tensors of the adapters of a config that has them.
std::vector<ForeignTensor> peft_tensors(const Config& config);
// Returns the text of adapter_config.json.
std::string peft_config(const Config& config);

// PeftAdapter is a folder of adapters for a model, whose tensors have all been found.
struct PeftAdapter {
  LoraConfig lora;
  std::vector<ForeignTensor> tensors;
  WeightFiles weights;
};
// Opens a folder for the model of `config`, without reading a weight. Fails with ExitCode::config where the adapters are of
// another model or of a kind that is not known here (DoRA, biases, modules that are saved whole), with data where a file is
// missing or none of its format.
Result<PeftAdapter> open_peft_adapter(Env& env, const std::string& folder, const Config& config);

}  // namespace holdfast::interop
