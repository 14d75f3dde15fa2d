// CallFilter says which calls of an op a rule of [kernels] is about: by the layers that they are launched for and by their
// shapes. It is made once, from the texts of a config, and asked at each call.
//
//   HF_TRY(const CallFilter filter, CallFilter::parse(OpId::rmsnorm_forward, "0-3", {{"rows", ">=4096"}}));
//   if (filter.has(place_of(device.scope()), &op)) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/op.h"
#include "kernels/op_scope.h"
#include "runtime/core/result.h"

namespace holdfast::kernels {

// CallPlace is what of an OpScope decides which implementation runs: never the lane or the microbatch, so that a run has the
// same bits in every layout.
struct CallPlace {
  int layer = -1;  // of the whole model, from 0; -1 outside of layers
  OpScope::Part part = OpScope::Part::none;
};
inline CallPlace place_of(const OpScope& scope) {
  return {.layer = scope.layer, .part = scope.part};
}

// ShapeCondition limits a field of an op's struct: a number, "true", the name of a type, "4-8" (both included), ">4", ">=4",
// "<4" or "<=4".
struct ShapeCondition {
  std::string field = {}, value = {};
  bool operator==(const ShapeCondition&) const = default;
};

// Returns whether all calls of an op in a step are launched for a layer, or for the head. Of the others (sums of gradients,
// the optimizer) the layout decides when they are launched, and for what.
bool is_launched_for_layers(OpId op);

class CallFilter {
 public:
  // Filters nothing out.
  CallFilter() = default;
  // `layers`: a list with commas of "3", "0-3", "12-" (to the last), "*" (all), each of them also with ".attention" or
  // ".feed_forward" behind it, and "head"; empty = every call, the head's and those of no layer included. ExitCode::config
  // with a clause that begins with "layers" or "where".
  static Result<CallFilter> parse(OpId op, std::string_view layers, std::span<const ShapeCondition> where);

  // Returns whether it is about the call. `arguments` is the struct of the op. Any thread.
  bool has(const CallPlace& place, const void* arguments) const {
    return has_place(place) && has_shape(arguments);
  }
  bool has_place(const CallPlace& place) const;
  bool has_shape(const void* arguments) const;
  bool has_all() const { return places_.empty() && ranges_.empty(); }
  bool has_shapes() const { return !ranges_.empty(); }
  // Returns whether some call may be one of both filters, which are of one op.
  bool overlaps(const CallFilter& other) const;
  // Returns " in layers 0-3, where rows >=4096", or nothing where it has all calls.
  std::string text() const;
  // Returns the values that the fields of its conditions have in a call: "rows = 128, width = 64".
  std::string shape_text(const void* arguments) const;

 private:
  struct Places {
    int first = 0, last = 0;                   // layers, inclusive; -1 for the head
    OpScope::Part part = OpScope::Part::none;  // none = both halves of a layer
  };
  // Range of an integer field of the struct.
  struct ShapeRange {
    std::size_t offset = 0, bytes = 0;
    std::int64_t minimum = 0, maximum = 0;  // inclusive
    std::string field = {};
  };
  static Result<Places> places_of(std::string_view entry);
  static Result<ShapeRange> range_of(OpId op, const ShapeCondition& condition);
  static std::int64_t value_of(const ShapeRange& range, const void* arguments);

  std::vector<Places> places_;
  std::vector<ShapeRange> ranges_;
  std::string text_;
};

}  // namespace holdfast::kernels
