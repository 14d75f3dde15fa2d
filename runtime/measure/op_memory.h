// Memory for the operands of ops that are measured alone: filled with small values of both signs, in huge
// pages where the system has them, as the trainer's memory is. An op that is run again and again on it stays
// finite.
//
//   OpMemory memory;
//   const Add op = memory.with_operands(Add{.count = 1000});
//   HF_TRY_VOID(memory.outcome());
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/operand.h"
#include "kernels/optimizer.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"

namespace holdfast::measure {

// OperandContents says what operands hold that are no plain numbers.
struct OperandContents {
  std::int64_t tokens_below = 1;              // number of tokens, and of rows of a whole table
  std::vector<std::int32_t> first_keys = {};  // of AttentionForward
};

// Calls visit(pointer, operand) for what the ops over a table tell the host, which visit_operands() leaves out.
void visit_damage(auto& op, auto&& visit) {
  const auto damage = [](const char* name) {
    return writes(name, DType::int32, 1).of_bytes(sizeof(StateDamage)).if_given();
  };
  if constexpr (requires { op.damage; }) visit(op.damage, damage("damage"));
  if constexpr (requires { op.gradient_damage; }) visit(op.gradient_damage, damage("gradient_damage"));
}

class OpMemory {
 public:
  OpMemory() = default;
  // Memory of `device`, which need not outlive it. Launches copies there, and waits for them.
  explicit OpMemory(Device& device) : device_(&device) {}

  // Returns the op with memory for each of its operands. Of the pointers of `shape` counts which optional ones
  // are null, and which are the same; its table, if it has one, is in the host's memory.
  template <typename Op>
  Op with_operands(const Op& shape, const OperandContents& contents = {}) {
    Op op = shape;
    if constexpr (requires { op.token_count; }) {
      if (op.token_count == 0) op.token_count = contents.tokens_below;
    }
    std::map<const void*, Region> regions;
    const auto reserve = [&](auto& pointer, const Operand& operand) {
      Region& region = regions[pointer];
      region.bytes = std::max(region.bytes, operand.extent * operand.element_bytes);
    };
    const auto hand_out = [&](auto& pointer, const Operand& operand) {
      if (pointer == nullptr && operand.optional) return;
      Region own{.bytes = operand.extent * operand.element_bytes};
      Region& region = pointer != nullptr ? regions[pointer] : own;
      if (region.memory == nullptr) region.memory = filled(region.bytes, operand, contents);
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(region.memory);
    };
    Op::visit_operands(op, reserve);
    visit_damage(op, reserve);
    Op::visit_operands(op, hand_out);
    visit_damage(op, hand_out);
    if constexpr (requires { op.tensors; }) {
      std::vector<OptimizerTensor> tensors(op.tensors, op.tensors + op.tensor_count);
      for (OptimizerTensor& tensor : tensors) {
        Op::visit_tensor(op, tensor, reserve);
        Op::visit_tensor(op, tensor, hand_out);
      }
      op.tensors = table(std::move(tensors));
    }
    if constexpr (requires { op.token_count; }) op.token_count = shape.token_count;
    return op;
  }

  // Returns the error of handing out memory, if there was any; ops must not run then.
  const Result<void>& outcome() const { return outcome_; }

 private:
  struct Region {
    std::int64_t bytes = 0;
    std::byte* memory = nullptr;
  };

  std::byte* allocate(const char* name, std::int64_t bytes);
  std::byte* filled(std::int64_t bytes, const Operand& operand, const OperandContents& contents);
  // Memory of so many bytes, which holds `pattern` over and over.
  std::byte* filled(const char* name, std::int64_t bytes, std::span<const std::byte> pattern);
  void write(std::byte* target, std::span<const std::byte> source);
  const OptimizerTensor* table(std::vector<OptimizerTensor> tensors);

  Device* device_ = nullptr;  // null = the heap
  std::vector<MemoryArena> arenas_;
  std::vector<std::vector<OptimizerTensor>> tables_;
  Result<void> outcome_;
};

}  // namespace holdfast::measure
