// A model with the weights and tokens of a golden file, on any device, and how far it is from PyTorch:
// logits, loss and every gradient.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/model_rig.h"

namespace holdfast::test {

// Largest relative error that is accepted: difference / largest magnitude, per tensor for the gradients.
struct GoldenBounds {
  const char* model;
  const char* precision;
  double logits, loss, gradient;

  friend std::ostream& operator<<(std::ostream& stream, const GoldenBounds& bounds) {
    return stream << bounds.model << " in " << bounds.precision;
  }
};

class GoldenModel {
 public:
  GoldenModel(const GoldenBounds& bounds, const RigOptions& options)
      : bounds_(bounds),
        golden_(bounds.model),
        rig_(make_model_spec(golden_.config(bounds.precision)),
             {.batch = golden_.batch(), .sequence_length = golden_.sequence_length()}, options) {
    rig_.set_weights(
        [this](const ParameterSpec& parameter) { return golden_.floats("initial/" + parameter.name); });
    rig_.set_tokens(golden_.tokens("inputs", 0), golden_.tokens("targets", 0));
  }

  // Of every `stride`-th row; each takes a forward pass.
  void expect_logits(std::int64_t stride = 1) {
    const std::vector<float> all = golden_.floats("logits");
    const auto vocabulary = static_cast<std::size_t>(rig_.model().spec().vocabulary);
    ASSERT_EQ(all.size(), vocabulary * static_cast<std::size_t>(rows()));
    std::vector<float> logits, truth;
    for (std::int64_t row = 0; row < rows(); row += stride) {
      const std::vector<float> of_row = rig_.forward_logits(row);
      logits.insert(logits.end(), of_row.begin(), of_row.begin() + static_cast<std::ptrdiff_t>(vocabulary));
      const auto first = all.begin() + row * static_cast<std::ptrdiff_t>(vocabulary);
      truth.insert(truth.end(), first, first + static_cast<std::ptrdiff_t>(vocabulary));
    }
    expect_error(relative_error(logits, truth), bounds_.logits);
  }

  void expect_loss() {
    const double mean = rig_.forward_loss() / static_cast<double>(rows());
    expect_error(std::abs(mean / golden_.losses().front() - 1.0), bounds_.loss);
  }

  void expect_gradients() {
    rig_.forward_backward({.gradient_scale = 1.0F / static_cast<float>(rows())});
    double largest_error = 0.0;
    for (const ParameterSpec& parameter : parameter_specs(rig_.model().spec())) {
      const std::vector<float> gradient = rig_.gradient(parameter.name);
      const std::vector<float> truth = golden_.floats("gradient/" + parameter.name);
      const double error = relative_error(gradient, truth);
      EXPECT_LE(error, bounds_.gradient) << parameter.name;
      largest_error = std::max(largest_error, error);
      ASSERT_EQ(gradient.size(), truth.size() + parameter.padding_elements) << parameter.name;
      EXPECT_EQ(largest_magnitude(std::span(gradient).subspan(truth.size())), 0.0)
          << "padding of " << parameter.name;
    }
    expect_error(largest_error, bounds_.gradient);
  }

 private:
  std::int64_t rows() const { return golden_.batch() * golden_.sequence_length(); }
  static void expect_error(double error, double bound) {
    testing::Test::RecordProperty("error", fmt::format("{:.1e}", error));
    EXPECT_LE(error, bound);
  }

  GoldenBounds bounds_;
  Golden golden_;
  ModelRig rig_;
};

}  // namespace holdfast::test
