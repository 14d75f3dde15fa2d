// TracedCall: a call of an op as a run made it, with the numbers of its struct, what was in its arrays before, and what it left
// there. It can be made again on other memory, which then holds what the run had:
//
//   TracedCall call = begin_call(id, arguments, vocabulary);
//   ...the op runs...
//   end_call(call, id, arguments, vocabulary);
//   HF_TRY(const CallShape shape, shape_of(call, vocabulary));    // for CheckedMemory and BenchMemory, with given_of(call)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/implementation.h"
#include "kernels/operand.h"
#include "kernels/optimizer.h"
#include "runtime/core/json.h"
#include "runtime/core/result.h"
#include "runtime/measure/op_memory.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench::kernel_kit {

// TracedArray is what one array held before a call, or after it.
struct TracedArray {
  std::string name =
      {};  // of the operand, with a number where several have it, and "_after" where both moments are kept
  std::size_t operand = 0;  // place among the operands, as visit_call() counts them
  bool is_after = false;
  DType dtype = DType::fp32;
  bool is_words = false;  // integers, or bytes of no type
  std::uint64_t bytes = 0;
  std::string digest = {};              // of the content, in hex, once it is in a file
  std::vector<std::byte> content = {};  // empty where only the description is here

  std::uint64_t elements() const { return is_words ? bytes : bytes / bytes_of(dtype); }
};

struct TracedCall {
  OpId op = OpId::count;
  Json fields = {}, tensors = {}, segments = {};  // numbers of the struct, and of the elements of its lists
  // Which memory each operand has: equal numbers are the same memory; 0: it is not given.
  std::vector<std::int64_t> places = {};
  std::vector<TracedArray> arrays = {};
};

// Calls visit(pointer, operand) for all operands of a call, in the order of CheckedMemory and BenchMemory. `table`: the tensors
// of an op that has them, which are visited instead of its own. `vocabulary`: rows of a whole table of an embedding.
template <typename Op>
void visit_call(Op& op, std::span<OptimizerTensor> table, std::int64_t vocabulary, auto&& visit) {
  Op sized = op;
  if constexpr (requires { op.token_count; }) {
    if (op.token_count == 0) sized.token_count = vocabulary;
  }
  Op::visit_operands(sized, visit);
  measure::visit_damage(sized, visit);
  for ([[maybe_unused]] OptimizerTensor& tensor : table) {
    if constexpr (requires { op.tensors; }) Op::visit_tensor(op, tensor, visit);
  }
  if constexpr (requires { op.token_count; }) sized.token_count = op.token_count;
  op = sized;
}

// Copies what the call will read, and then what it has written. `arguments` is its struct, whose memory the host can read.
TracedCall begin_call(OpId id, const void* arguments, std::int64_t vocabulary);
void end_call(TracedCall& call, OpId id, const void* arguments, std::int64_t vocabulary);

// Returns how many bytes both keep of a call; its memory is not read.
std::uint64_t bytes_of_arrays(OpId id, const void* arguments, std::int64_t vocabulary);

// CallShape is the struct of a call, with addresses that stand for memory, and the lists that it points to.
struct CallShape {
  OpCall call;
  std::shared_ptr<const void> lists = {};
};
// Makes the struct. ExitCode::data with a clause where the numbers are not those of such a call.
Result<CallShape> shape_of(const TracedCall& call, std::int64_t vocabulary);

// Returns what was in the arrays before the call, by operand; empty where nothing was kept. The call outlives it.
std::vector<std::span<const std::byte>> given_of(const TracedCall& call);

// Makes the call again with the kernel on memory of its own. Returns where it leaves other bits than the call did, such as
// "element 7 of y"; empty: nowhere. Errors: those of shape_of().
Result<std::string> difference_when_repeated(const TracedCall& call, std::int64_t vocabulary,
                                             const Implementation& kernel, int threads);

}  // namespace holdfast::bench::kernel_kit
