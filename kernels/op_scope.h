// OpScope says what ops are launched for: a part of the model, in a pass over a microbatch of a lane. Those who
// launch ops keep Device::scope() up to date, and an inspector reads it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace holdfast::kernels {

struct OpScope {
  // Passes over a microbatch, in their order. `weights` is the part of a split backward that computes the
  // gradients of weights.
  enum class Pass : std::uint8_t { none, forward, backward, weights };
  // Parts of the model, in the order of a forward; attention and feed_forward are the halves of a layer.
  enum class Part : std::uint8_t { none, embedding, attention, feed_forward, head };

  int lane = -1, microbatch = -1;  // the latter within its lane; -1: of none, as what adds lanes up
  Pass pass = Pass::none;
  Part part = Part::none;
  int layer = -1;  // of the whole model, from 0; -1 unless the part is in a layer

  bool operator==(const OpScope&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("lane", self.lane);
    visit("microbatch", self.microbatch);
    visit("pass", self.pass);
    visit("part", self.part);
    visit("layer", self.layer);
  }
};

// Returns whether `one` comes before `other` in the computation of a step by one rank alone: lane by lane, and
// in each microbatch by microbatch, forward and then backward. What belongs to no pass comes last. The order
// does not depend on which ranks compute what, nor on the schedule of a pipeline.
bool is_computed_before(const OpScope& one, const OpScope& other);

// Returns the name of the part, as names of tensors begin: "layers.3.attention", "embedding", "head", or
// "none".
std::string part_name(const OpScope& scope);
// Returns "forward" or "backward", or "none".
const char* pass_name(const OpScope& scope);

// Changes the scope of a device until the end of this object.
class OpScopeGuard {
 public:
  OpScopeGuard(OpScope& current, const OpScope& inner)
      : current_(current), outer_(std::exchange(current, inner)) {}
  ~OpScopeGuard() { current_ = outer_; }
  OpScopeGuard(const OpScopeGuard&) = delete;
  OpScopeGuard& operator=(const OpScopeGuard&) = delete;

 private:
  OpScope& current_;
  const OpScope outer_;
};

}  // namespace holdfast::kernels
