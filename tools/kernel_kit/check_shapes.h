// Calls that `holdfast kernel check` tries a kernel on: those of models, and others that models never make.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/op.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench::kernel_kit {

struct CheckShape {
  std::string use = {};  // "llama-15m 4x64, head"; "odd" for one that no model has
  bench::OpCall call;
  measure::OperandContents contents = {};
  std::shared_ptr<const void> lists = {};  // table or segments that the call points to
  // Holds what a run had in the arrays of the call, by operand; empty: it is no call of a trace.
  std::vector<std::span<const std::byte>> given = {};
};

// Returns the calls of the op, in fp32 and bf16, that the reference computes in about a second together. They have every
// state that the contract allows: each flag, each array that may be left out, bf16 moments, lists of segments.
Result<std::vector<CheckShape>> check_shapes(Env& env, OpId op);

}  // namespace holdfast::bench::kernel_kit
