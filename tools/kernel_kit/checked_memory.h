// CheckedMemory: memory for the operands of one call of a kernel, with guards around each array, so that what a kernel
// writes where it may not is found and named.
//
//   CheckedMemory memory({.seed = 1});
//   const Add op = memory.bind(Add{.count = 1000});
//   run(op);
//   if (std::string damage = memory.damage(); !damage.empty()) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/operand.h"
#include "kernels/optimizer.h"
#include "runtime/measure/op_memory.h"
#include "runtime/os/fenced_buffer.h"

namespace holdfast::bench::kernel_kit {

// Numbers that inputs hold.
enum class Values : std::uint8_t {
  usual,     // in [-1, 1)
  zeros,     // 0 and -0
  outliers,  // in [-1, 1), and one in a hundred a thousand times as large
  large,     // up to 1e4 in magnitude
  tiny,      // up to 1e-30 in magnitude
  denormal,  // up to 1e-39 in magnitude: below the smallest normal number
  traced,    // those that a run had (CheckedMemoryTerms::given)
};
const char* name_of(Values values);

struct CheckedMemoryTerms {
  std::uint64_t seed = 0;
  Values values = Values::usual;
  std::byte poison = std::byte{0xff};  // what arrays hold that the op only writes; 0xff is a NaN
  std::byte guard = std::byte{0xff};   // what lies in front of arrays and behind them
  std::size_t shift = 0;               // elements by which arrays begin after an address that 64 divides
  bool is_fenced = false;  // arrays end at memory that nobody may touch, instead of such an address
  measure::OperandContents contents = {};
  // Says what arrays hold first, by the operand that has them first; empty: numbers of the seed.
  std::vector<std::span<const std::byte>> given = {};
};

class CheckedMemory {
 public:
  explicit CheckedMemory(CheckedMemoryTerms terms) : terms_(std::move(terms)) {}
  CheckedMemory(CheckedMemory&&) = default;

  // Returns the op with memory for each of its operands. Of the pointers of `shape` counts which are null, and which are
  // the same, as for measure::OpMemory. Once for an object.
  template <typename Op>
  Op bind(const Op& shape) {
    Op op = shape;
    if constexpr (requires { op.token_count; }) {
      if (op.token_count == 0) op.token_count = terms_.contents.tokens_below;
    }
    const auto reserve = [&](auto& pointer, const Operand& operand) { this->reserve(pointer, operand); };
    const auto hand_out = [&](auto& pointer, const Operand& operand) {
      std::byte* const memory = this->hand_out(pointer, operand);
      if (memory != nullptr) pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory);
    };
    Op::visit_operands(op, reserve);
    measure::visit_damage(op, reserve);
    Op::visit_operands(op, hand_out);
    measure::visit_damage(op, hand_out);
    if constexpr (requires { op.tensors; }) {
      table_.assign(op.tensors, op.tensors + op.tensor_count);
      for (OptimizerTensor& tensor : table_) {
        Op::visit_tensor(op, tensor, reserve);
        Op::visit_tensor(op, tensor, hand_out);
      }
      op.tensors = table_.data();
      leave_digests(op);
    }
    if constexpr (requires { op.token_count; }) op.token_count = shape.token_count;
    seal();
    return op;
  }

  struct Array {
    Operand operand = {};
    std::size_t bytes = 0, begin = 0;  // in `memory`
    bool is_written = false;
    std::unique_ptr<os::FencedBuffer> buffer = {};
    std::span<std::byte> memory = {};  // of `buffer`
    std::vector<std::byte> before = {};
    std::span<const std::byte> content() const { return memory.subspan(begin, bytes); }
  };
  const std::vector<Array>& arrays() const { return arrays_; }

  // Returns what an array must hold that says something about others as they are now: the digests of the state that an
  // update has left, whose last bits are its own. Empty: the array says nothing of the kind.
  std::vector<std::byte> follows_from_others(const Array& array) const;

  // Returns a clause about what was written outside of an array, or to one that is only read; empty: nothing.
  std::string damage() const;

 private:
  void reserve(const void* pointer, const Operand& operand);
  // Returns null for an operand that is not given.
  std::byte* hand_out(const void* pointer, const Operand& operand);
  void fill(Array& array) const;
  void seal();
  // Fills the digests that an op compares with those of the memory, except for one of each kind, which is to be found.
  template <typename Op>
  void leave_digests(const Op& op) {
    if (op.block_digests != nullptr && op.checks_digests && terms_.given.empty()) {
      reference(OptimizerDigest{.tensors = op.tensors,
                                .tensor_count = op.tensor_count,
                                .block_count = op.block_count,
                                .block_digests = op.block_digests,
                                .moments = op.moments});
      ++op.block_digests[op.block_count / 2];
    }
    if constexpr (requires { op.gradient_digests; }) {
      if (op.block_digests != nullptr) {
        left_ = OptimizerDigest{.tensors = op.tensors,
                                .tensor_count = op.tensor_count,
                                .block_count = op.block_count,
                                .moments = op.moments};
      }
      if (op.gradient_digests == nullptr || !terms_.given.empty()) return;
      auto* const digests = const_cast<std::uint64_t*>(op.gradient_digests);
      leave_gradient_digests(table_, digests);
      ++digests[op.block_count - 1];
    }
  }
  static void leave_gradient_digests(std::span<const OptimizerTensor> table, std::uint64_t* digests);

  CheckedMemoryTerms terms_;
  std::map<const void*, std::size_t> reserved_;  // bytes by the pointer of the shape
  std::map<const void*, std::size_t> places_;    // index of the array by the pointer of the shape
  std::vector<Array> arrays_;
  std::uint64_t operand_ = 0;  // number of operands that were handed out before, whatever memory they share
  std::vector<OptimizerTensor> table_;
  std::optional<OptimizerDigest> left_;  // what computes the digests that an update leaves
};

}  // namespace holdfast::bench::kernel_kit
