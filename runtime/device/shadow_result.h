// ShadowResult says how far an implementation that computes calls of an op once more (KernelChoice::shadows) is from the one
// that the run has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/number_errors.h"

namespace holdfast::device {

// ShadowResult is about all calls of an op in one layer, in one step of one rank or of all.
struct ShadowResult {
  std::string op = {}, kernel = {};
  std::string chosen = {};  // the implementation that the run has
  int layer = -1;           // -1: outside of layers
  std::int64_t calls = 0;
  std::int64_t numbers = 0;  // that were compared
  double ulp_max = 0.0, ulp_sum = 0.0;
  std::string worst = {};       // "y[12]", where ulp_max is
  std::int64_t wrong_kind = 0;  // numbers that are finite in one of the two alone
  std::int64_t chosen_ns = 0, shadow_ns = 0;

  bool is_about(const ShadowResult& other) const {
    return op == other.op && kernel == other.kernel && layer == other.layer;
  }
  double ulp_mean() const { return numbers > 0 ? ulp_sum / static_cast<double>(numbers) : 0.0; }
  // Adds what was found in an output, whose first number has this index.
  void add(const NumberErrors& errors, const char* output, std::int64_t first_index);
  // Adds the calls of another rank.
  void add(const ShadowResult& other);

  static void visit_fields(auto& self, auto&& visit) {
    visit("op", self.op);
    visit("kernel", self.kernel);
    visit("chosen", self.chosen);
    visit("layer", self.layer);
    visit("calls", self.calls);
    visit("numbers", self.numbers);
    visit("ulp_max", self.ulp_max);
    visit("ulp_sum", self.ulp_sum);
    visit("worst", self.worst);
    visit("wrong_kind", self.wrong_kind);
    visit("chosen_ns", self.chosen_ns);
    visit("shadow_ns", self.shadow_ns);
  }
};

}  // namespace holdfast::device
