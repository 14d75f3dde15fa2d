// Model presets: the published shapes, by name.
#pragma once

#include <span>
#include <string_view>

#include "runtime/config/config.h"

namespace holdfast::config {

struct ModelPreset {
  std::string_view name;    // "gpt2-124m"
  ModelConfig model;        // every shape filled in
  std::string_view source;  // where the shape is published
};

std::span<const ModelPreset> model_presets();
const ModelPreset* find_preset(std::string_view name);  // nullptr when unknown

}  // namespace holdfast::config
