// Reads and writes config.json of a model folder as transformers 4 and 5 do.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/interop/weight_files.h"

namespace holdfast::interop {

// ForeignShape is the shape of a model as a foreign file states it. Its numbers are not checked here: the
// rules of the config decide whether they make a model (runtime/interop/model_import.h).
struct ForeignShape {
  ModelConfig model;
  std::int64_t longest_sequence = 0;  // longest sequence that the model was made for
};

struct ForeignShapeOptions {
  bool drop_rope_scaling = false;  // take the model with plain rotary frequencies
};

// Parses the text of a config.json. Fails with ExitCode::data when it is no JSON object, has members of
// another type, or describes a model that this runtime does not compute (another architecture or activation, biases of
// other layers, a sliding window in some layers, rotary frequencies scaled in another way, quantised weights).
Result<ForeignShape> parse_hugging_face_config(const std::string& text, const std::string& place,
                                               const ForeignShapeOptions& options);

// Returns the text of config.json. Fails with ExitCode::config when the classes of its family cannot express the model
// (GPT-2's grouped queries, attention sinks, a window where they have none).
Result<std::string> hugging_face_config(const Config& config, WeightType precision);
std::string hugging_face_generation_config(const Config& config);

}  // namespace holdfast::interop
