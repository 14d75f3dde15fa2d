// Reads the golden files of tests/golden (made by make_goldens.py there, which says what they hold) and
// measures how far from one a tensor is.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/check.h"
#include "runtime/core/json.h"

namespace holdfast::test {

class Golden {
 public:
  // `name`: of the file, without ".golden".
  explicit Golden(const std::string& name) {
    std::ifstream file(HF_SOURCE_DIR "/tests/golden/" + name + ".golden", std::ios::binary);
    HF_CHECK(file.good(), "tests/golden/{}.golden cannot be read; make_goldens.py makes it", name);
    std::string line;
    std::getline(file, line);
    header_ = Json::parse(line);
    data_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    for (const Json& entry : header_.at("tensors")) entries_[entry.at("name")] = entry;
  }

  const Json& model() const { return header_.at("model"); }
  std::int64_t batch() const { return model().at("batch"); }
  std::int64_t sequence_length() const { return model().at("sequence_length"); }
  std::int64_t steps() const { return header_.at("optimizer").at("steps"); }
  std::vector<double> losses() const { return header_.at("losses"); }
  std::vector<double> gradient_norms() const { return header_.at("gradient_norms"); }

  std::vector<float> floats(const std::string& name) const { return read<float>(name, "float32"); }
  // `name`: "inputs" or "targets"; steps are counted from 0.
  std::vector<std::int32_t> tokens(const std::string& name, std::int64_t step) const {
    const std::vector<std::int32_t> all = read<std::int32_t>(name, "int32");
    const std::ptrdiff_t rows = batch() * sequence_length();
    return {all.begin() + step * rows, all.begin() + (step + 1) * rows};
  }

  // The config that describes this model and its optimizer; precision: "fp32" or "bf16".
  Config config(const std::string& precision) const {
    Config config;
    config.model = {.preset = "",
                    .style = model().at("style"),
                    .layers = model().at("layers"),
                    .heads = model().at("heads"),
                    .kv_heads = model().at("kv_heads"),
                    .head_size = model().value("head_size", 0),
                    .width = model().at("width"),
                    .feed_forward = model().at("feed_forward"),
                    .vocabulary = model().at("vocabulary"),
                    .head = model().at("head"),
                    .positions = model().at("positions"),
                    .rope_theta = model().value("rope_theta", 0.0),
                    .norm_epsilon = model().at("norm_epsilon")};
    if (model().contains("rope_scaling")) read_scaling(model().at("rope_scaling"), config.model);
    config.training.steps = steps();
    config.training.sequence_length = sequence_length();
    config.training.microbatch_size = batch();
    config.training.precision = precision;
    const Json& optimizer = header_.at("optimizer");
    config.optimizer = {.learning_rate = optimizer.at("learning_rate"),
                        .schedule = "cosine",
                        .warmup_steps = optimizer.at("warmup_steps"),
                        .final_fraction = optimizer.at("final_fraction"),
                        .decay_fraction = 0.0,
                        .beta1 = optimizer.at("beta1"),
                        .beta2 = optimizer.at("beta2"),
                        .epsilon = optimizer.at("epsilon"),
                        .weight_decay = optimizer.at("weight_decay"),
                        .gradient_clip = optimizer.at("gradient_clip")};
    return config;
  }

 private:
  static void read_scaling(const Json& scaling, ModelConfig& model) {
    model.rope_scaling = scaling.at("rope_type").text();
    model.rope_factor = scaling.at("factor");
    if (model.rope_scaling != "llama3") return;
    model.rope_low_frequency_factor = scaling.at("low_freq_factor");
    model.rope_high_frequency_factor = scaling.at("high_freq_factor");
    model.rope_original_positions = scaling.at("original_max_position_embeddings");
  }
  template <typename T>
  std::vector<T> read(const std::string& name, const std::string& dtype) const {
    const Json& entry = entries_.at(name);
    HF_CHECK(entry.at("dtype") == dtype, "{} is {}", name, entry.at("dtype").dump());
    std::size_t count = 1;
    for (const std::size_t extent : entry.at("shape")) count *= extent;
    const std::size_t offset = entry.at("offset_bytes");
    HF_CHECK(offset + count * sizeof(T) <= data_.size(), "{} lies past the end of the file", name);
    std::vector<T> values(count);
    std::memcpy(values.data(), data_.data() + offset, count * sizeof(T));
    return values;
  }

  Json header_;
  std::vector<char> data_;
  std::map<std::string, Json> entries_;
};

inline double largest_magnitude(std::span<const float> values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

// Largest difference / largest magnitude of the truth. `values` may be longer: that is vocabulary padding.
inline double relative_error(std::span<const float> values, std::span<const float> truth) {
  HF_CHECK(values.size() >= truth.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double difference = std::abs(static_cast<double>(values[i]) - static_cast<double>(truth[i]));
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest / std::max(largest_magnitude(truth), 1e-30);
}

}  // namespace holdfast::test
