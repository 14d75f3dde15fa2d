#include "kernels/cost.h"

#include <algorithm>
#include <array>

#include "kernels/visit_op.h"

namespace holdfast::kernels {
namespace {

// Adds up operands. One that is written where another is read, which came before, is updated in place.
class CostCounter {
 public:
  void add(const void* memory, const Operand& operand) {
    if (operand.optional && memory == nullptr) return;
    const std::uint64_t read = operand.bytes_read(), written = operand.bytes_written();
    cost_.bytes_read += read;
    cost_.bytes_written += written;
    cost_.bytes_updated += std::min(read, written);
    if (memory == nullptr) return;
    if (read == 0) {
      for (std::size_t i = 0; i < read_count_; ++i) {
        if (read_[i].memory != memory) continue;
        cost_.bytes_updated += std::min(written, read_[i].bytes);
        break;
      }
    } else if (written == 0 && read_count_ < read_.size()) {
      read_[read_count_++] = {.memory = memory, .bytes = read};
    }
  }
  OpCost cost() const { return cost_; }

 private:
  struct Read {
    const void* memory = nullptr;
    std::uint64_t bytes = 0;
  };
  OpCost cost_;
  std::array<Read, 2 * std::size_t{TreeSum::parts_max}> read_ = {};
  std::size_t read_count_ = 0;
};

template <typename Op>
OpCost cost(const Op& op) {
  CostCounter counter;
  const auto add = [&](const auto& pointer, const Operand& operand) { counter.add(pointer, operand); };
  Op::visit_operands(op, add);
  if constexpr (requires { op.tensors; }) {
    for (std::int64_t i = 0; i < op.tensor_count; ++i) Op::visit_tensor(op, op.tensors[i], add);
  }
  OpCost cost = counter.cost();
  if constexpr (requires { op.flops(); }) cost.flops = op.flops();
  return cost;
}

}  // namespace

OpCost cost_of(OpId id, const void* arguments) {
  return visit_op(id, arguments, [](const auto& op) { return cost(op); });
}

}  // namespace holdfast::kernels
