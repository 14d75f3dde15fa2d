// Exports the weights of a checkpoint as files of another program. The target appears by one rename when all
// of it is durable and the rest of the checkpoint has been verified as well. Existing files are never
// overwritten.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "runtime/config/config.h"
#include "runtime/interop/tensor_reader.h"
#include "runtime/interop/weight_files.h"

namespace holdfast::interop {

struct ExportOptions {
  WeightType precision = WeightType::fp32;  // or bf16, rounded to nearest even
  std::uint64_t file_bytes_max = 0;         // largest safetensors file; a larger tensor has its own
  std::set<std::string> averaged = {};      // tensors whose average is written in place of their weight
  std::string tokenizer = {},
              tokenizer_config = {};  // texts of tokenizer.json and tokenizer_config.json; empty: none
};

// A model with adapters (LoRA) is written as if it had none, with weights that have them merged into them.

// Writes a folder of config.json, generation_config.json and safetensors files (with an index when there are
// several) for the class of the family in transformers. `config` is that of the checkpoint. Fails
// with ExitCode::config when the format cannot express the model or `target` exists, with checkpoint when
// something cannot be read or written.
Result<void> export_hugging_face(Env& env, TensorReader& weights, const Config& config,
                                 const std::string& target, const ExportOptions& options);
// Writes the adapters alone, as a folder for PEFT (peft_adapter.h). `config` has some.
Result<void> export_adapters(Env& env, TensorReader& weights, const Config& config, const std::string& target,
                             const ExportOptions& options);
// Writes one model file as karpathy/llm.c reads it.
Result<void> export_llmc(Env& env, TensorReader& weights, const Config& config, const std::string& target,
                         const ExportOptions& options);

}  // namespace holdfast::interop
