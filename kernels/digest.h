// Digests of tensors: a few words that tell two tensors apart when a bit of one was flipped, moved or lost,
// and that say what is not finite. They guard against faulty hardware, not against an adversary.
//
// All sums are of integers that wrap, so a digest does not depend on the order of summation: every
// implementation on every device gives the same bits, and the digests of consecutive pieces add up to that of
// the whole (first_index, accumulate, add()). A single flipped bit always changes `sum` and `weighted`; two
// different elements of up to 32 bits that change places always change `weighted`, unless their indices
// differ by a multiple of 2^31.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

// Digest of the elements of a tensor, whose bits are taken as an unsigned integer of their size.
struct DigestWords {
  std::uint64_t sum = 0;        // of the bits of all elements
  std::uint64_t weighted = 0;   // of the bits of each element times digest_multiplier() of its index
  std::uint64_t nonfinite = 0;  // number of elements that are infinite or NaN; 0 for int32
  // Bits of the largest magnitude of the finite elements, as fp32 (those of fp64 rounded, and at most the
  // largest finite value of fp32); 0 for int32.
  std::uint32_t largest = 0;
  std::uint32_t reserved = 0;  // always 0

  bool operator==(const DigestWords&) const = default;
};
static_assert(sizeof(DigestWords) == 32 && alignof(DigestWords) == 8, "it travels between ranks");

// Returns the multiplier of the element with an index: odd, and another one for every index less than 2^31
// apart.
[[gnu::always_inline]] constexpr std::uint32_t digest_multiplier(std::uint64_t index) {
  return static_cast<std::uint32_t>(2 * index + 1) * 0x9e3779b1U;
}

// Computes the digest of `count` elements of any dtype, aligned to their size.
struct TensorDigest {
  static constexpr OpId id = OpId::digest;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const void* values = nullptr;
  DType dtype = DType::fp32;
  std::int64_t count = 0;
  DigestWords* result = nullptr;  // 8-byte aligned; of either MemoryKind
  std::int64_t first_index = 0;   // index of the first element in the tensor that this is a piece of
  bool accumulate = false;        // adds the digest to *result, as add() does, instead of replacing it
  static constexpr const char* shape = "{count}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.values, reads("values", op.dtype, op.count));
    visit(op.result,
          writes("result", DType::int32, 1).of_bytes(sizeof(DigestWords)).updated_if(op.accumulate));
  }
};
static_assert(sizeof(TensorDigest) <= op_bytes_max);
void reference(const TensorDigest& op);

// Adds the digest of other elements of the same tensor to `into`.
inline void add(DigestWords& into, const DigestWords& words) {
  into.sum += words.sum;
  into.weighted += words.weighted;
  into.nonfinite += words.nonfinite;
  into.largest = words.largest > into.largest ? words.largest : into.largest;
}

}  // namespace holdfast::kernels
