// Operand: what an op does with one of its arrays. The contract of an op lists its arrays once, in an order in which
// what it only reads comes first:
//
//   static void visit_operands(auto& op, auto&& visit) {
//     visit(op.x, reads("x", op.dtype, op.count));
//     visit(op.y, writes("y", op.dtype, op.count));
//   }
//
// with visit(auto& pointer, const Operand& operand). The bytes that the op moves (kernels/cost.h), what an inspector
// digests (kernels/op_outputs.h) and the memory that a measurement hands it (runtime/measure/op_memory.h) follow from
// that. An op over a table of tensors has visit_tensor(op, tensor, visit) beside it, because not everyone may read
// the table. No code of kernels calls any of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct Operand {
  enum class Access : std::uint8_t {
    read,
    written,
    updated,  // read and then written in place
    scratch   // written, and nothing that counts is in it afterwards
  };
  // Content is what an op expects to find in an array.
  enum class Content : std::uint8_t {
    values,      // any numbers
    positive,    // numbers above 0
    tokens,      // numbers of tokens
    first_keys,  // as AttentionForward has them
    words        // integers, or bytes of no type: dtype says nothing
  };

  const char* name = nullptr;  // of the field
  Access access = Access::read;
  DType dtype = DType::fp32;
  std::int64_t count = 0;  // number of elements that move, without gaps between rows
  Content content = Content::values;
  std::int64_t element_bytes = 0;
  // The op uses the first row_columns of each row_stride elements; equal where there are no gaps.
  std::int64_t rows = 0, row_columns = 1, row_stride = 1;
  std::int64_t extent = 0;       // number of elements from the first to the last that may be used
  bool pads = false;             // the op also writes the gaps, which it does not read
  bool optional = false;         // null: the op does without
  bool may_be_infinite = false;  // infinities are right in it

  constexpr bool is_read() const { return access == Access::read || access == Access::updated; }
  constexpr bool is_written() const { return access != Access::read; }
  constexpr bool has_gaps() const { return row_columns != row_stride; }
  constexpr std::uint64_t bytes_read() const {
    return is_read() ? static_cast<std::uint64_t>(count * element_bytes) : 0;
  }
  constexpr std::uint64_t bytes_written() const {
    if (!is_written()) return 0;
    return static_cast<std::uint64_t>((pads ? rows * row_stride : count) * element_bytes);
  }

  // The rest makes an operand that differs from this one.
  template <typename Value>
  constexpr Operand with(Value Operand::*field, Value value) const {
    Operand changed = *this;
    changed.*field = value;
    return changed;
  }
  constexpr Operand if_given() const { return with(&Operand::optional, true); }
  constexpr Operand updated_if(bool added) const {
    return with(&Operand::access, added ? Access::updated : access);
  }
  constexpr Operand holding(Content what) const { return with(&Operand::content, what); }
  constexpr Operand positive() const { return holding(Content::positive); }
  constexpr Operand infinite() const { return with(&Operand::may_be_infinite, true); }
  // `elements`: of the whole array, of which the op uses some, or some of them more than once.
  constexpr Operand out_of(std::int64_t elements) const { return with(&Operand::extent, elements); }
  constexpr Operand of_bytes(std::int64_t each) const {  // words
    return holding(Content::words).with(&Operand::element_bytes, each);
  }
  constexpr Operand in_rows(std::int64_t number, std::int64_t stride) const {
    const std::int64_t columns = number > 0 ? count / number : 0;
    return out_of(columns > 0 ? (number - 1) * stride + columns : 0)
        .with(&Operand::rows, number)
        .with(&Operand::row_columns, columns)
        .with(&Operand::row_stride, stride);
  }
  constexpr Operand padded() const { return out_of(rows * row_stride).with(&Operand::pads, true); }
};

constexpr Operand operand(const char* name, Operand::Access access, DType dtype, std::int64_t count) {
  return {.name = name,
          .access = access,
          .dtype = dtype,
          .count = count,
          .element_bytes = static_cast<std::int64_t>(bytes_of(dtype)),
          .extent = count};
}
constexpr Operand reads(const char* name, DType dtype, std::int64_t count) {
  return operand(name, Operand::Access::read, dtype, count);
}
constexpr Operand writes(const char* name, DType dtype, std::int64_t count) {
  return operand(name, Operand::Access::written, dtype, count);
}
constexpr Operand updates(const char* name, DType dtype, std::int64_t count) {
  return operand(name, Operand::Access::updated, dtype, count);
}
constexpr Operand scratch(const char* name, DType dtype, std::int64_t count) {
  return operand(name, Operand::Access::scratch, dtype, count);
}
constexpr Operand reads_tokens(const char* name, std::int64_t count) {
  return reads(name, DType::int32, count).holding(Operand::Content::tokens);
}

}  // namespace holdfast::kernels
