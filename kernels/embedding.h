// Token (and learned position) embedding: x_NC[row] = table[tokens[row]] (+ positions[row mod T]).
//
// A slice of the table has the tokens [first_token, first_token + token_count): for a row with another token
// the slice's op writes nothing. All slices together do what one op of the whole table does, except for the
// sign of zeros: a slice writes no -0, so that rows may be added to the zeros that the other slices have
// there.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

constexpr std::int64_t positions_read(const auto& op) {
  return op.rows < op.sequence_length ? op.rows : op.sequence_length;
}

struct EmbeddingForward {
  static constexpr OpId id = OpId::embedding_forward;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const std::int32_t* tokens = nullptr;          // (rows), each in [0, vocabulary)
  const void* table = nullptr;                   // dtype; (vocabulary, width), or (token_count, width)
  const void* positions = nullptr;               // dtype; (>= sequence_length, width), or null
  void* x = nullptr;                             // dtype; (rows, width)
  std::int64_t rows = 0, width = 0, sequence_length = 0;
  std::int64_t first_token = 0, token_count = 0;  // of a slice; no tokens: the whole table
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{width}{tokens}";
  // A row of the table counts as often as a token names it, and every token as one of the slice. Neither op knows
  // how large a whole table is, so its extent is 0 then.
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.tokens, reads_tokens("tokens", op.rows));
    visit(op.table, reads("table", op.dtype, op.rows * op.width).out_of(op.token_count * op.width));
    visit(op.positions, reads("positions", op.dtype, positions_read(op) * op.width).if_given());
    visit(op.x, writes("x", op.dtype, op.rows * op.width));
  }
};
void reference(const EmbeddingForward& op);

// Adds dx to the rows of the gradients, each row's contributions in row order; a slice's table takes only the
// rows of its tokens, the positions take all. The caller zeroes the gradients before the first microbatch of
// a lane.
struct EmbeddingBackward {
  static constexpr OpId id = OpId::embedding_backward;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const std::int32_t* tokens = nullptr;
  const void* dx = nullptr;             // dtype; (rows, width)
  float* table_gradient = nullptr;      // (vocabulary, width) or (token_count, width), added to
  float* positions_gradient = nullptr;  // (>= sequence_length, width), added to; or null
  std::int64_t rows = 0, width = 0, sequence_length = 0;
  std::int64_t first_token = 0, token_count = 0;  // of a slice; no tokens: the whole table
  DType dtype = DType::fp32;
  static constexpr const char* shape = EmbeddingForward::shape;
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.tokens, reads_tokens("tokens", op.rows));
    visit(op.dx, reads("dx", op.dtype, op.rows * op.width));
    visit(op.table_gradient,
          updates("table_gradient", DType::fp32, op.rows * op.width).out_of(op.token_count * op.width));
    visit(op.positions_gradient,
          updates("positions_gradient", DType::fp32, positions_read(op) * op.width).if_given());
  }
};
void reference(const EmbeddingBackward& op);

}  // namespace holdfast::kernels
