// config.json of a model folder as transformers 4 and 5 write and read it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/interop/weight_files.h"

namespace holdfast::inline interop {

// The shape that a foreign file tells. Its numbers are the file's: whether they make a model is for the rules
// of the config (runtime/interop/model_import.h).
struct ForeignShape {
  ModelConfig model;
  std::int64_t longest_sequence = 0;  // that it was made for
};

struct ForeignShapeOptions {
  bool drop_rope_scaling = false;  // take the model with plain rotary frequencies
};

// ExitCode::data: no JSON object, members of another type, a model that this runtime does not compute
// (another architecture or activation, biases, scaled rotary frequencies, quantised weights).
Result<ForeignShape> parse_hugging_face_config(const std::string& text, const std::string& place,
                                               const ForeignShapeOptions& options);

// ExitCode::config when GPT-2's classes cannot express the model (grouped queries).
Result<std::string> hugging_face_config(const Config& config, WeightType precision);
std::string hugging_face_generation_config(const Config& config);

}  // namespace holdfast::inline interop
