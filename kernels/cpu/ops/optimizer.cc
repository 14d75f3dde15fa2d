#include "kernels/optimizer.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"
#include "runtime/core/shard_spec.h"

namespace holdfast::cpu::HF_ISA {

namespace {

constexpr std::int64_t adamw_chunk_elements = 4096;  // four streams of 16 KiB

// The divisions by the corrections are products with their inverses: one division and one root an element are
// left.
void update(const AdamW& op, std::int64_t first, std::int64_t size) {
  float* weight = op.weight + first;
  float* moment1 = op.moment1 + first;
  float* moment2 = op.moment2 + first;
  const float* gradient = op.gradient + first;
  BFloat16* copy = op.copy == nullptr ? nullptr : op.copy + first;
  const f32x16 beta1 = broadcast(op.beta1), rest1 = broadcast(1.0F - op.beta1);
  const f32x16 beta2 = broadcast(op.beta2), rest2 = broadcast(1.0F - op.beta2);
  const f32x16 inverse1 = broadcast(1.0F / op.correction1), inverse2 = broadcast(1.0F / op.correction2);
  const f32x16 epsilon = broadcast(op.epsilon), decay = broadcast(op.weight_decay);
  const f32x16 minus_rate = broadcast(-op.learning_rate), scale = broadcast(op.gradient_scale);
  for_lanes(size, [&](std::int64_t i, auto lanes) {
    const f32x16 g = load(gradient + i, lanes) * scale;
    const f32x16 m = fma(load(moment1 + i, lanes), beta1, rest1 * g);
    const f32x16 v = fma(load(moment2 + i, lanes), beta2, rest2 * g * g);
    const f32x16 direction = (m * inverse1) / (sqrt(v * inverse2) + epsilon);
    const f32x16 w = load(weight + i, lanes);
    const f32x16 updated = fma(minus_rate, fma(decay, w, direction), w);
    store(moment1 + i, m, lanes);
    store(moment2 + i, v, lanes);
    store(weight + i, updated, lanes);
    if (copy != nullptr) store(copy + i, updated, lanes);
  });
}

// Element i of each 32 goes to lane i of four vectors of eight; the vectors are added as a tree at the end.
double square_sum(const float* values, std::int64_t count) {
  constexpr std::int64_t stride = 32;
  f64x8 sums[4] = {zero_f64(), zero_f64(), zero_f64(), zero_f64()};
  const auto add_stride = [&sums](const float* from) __attribute__((always_inline)) {
    for (int part = 0; part < 4; ++part) {
      const f64x8 value = load_f64(from + part * 8);
      sums[part] = fma(value, value, sums[part]);
    }
  };
  std::int64_t i = 0;
  for (; i + stride <= count; i += stride) add_stride(values + i);
  if (i < count) {
    float rest[stride] = {};
    __builtin_memcpy(rest, values + i, static_cast<std::size_t>(count - i) * sizeof(float));
    add_stride(rest);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

void run_adamw(const Context& context, const void* arguments) {
  const AdamW& op = *static_cast<const AdamW*>(arguments);
  for_chunks(context, op.count, adamw_chunk_elements,
             [&](std::int64_t first, std::int64_t size) { update(op, first, size); });
}

void run_square_sum(const Context& context, const void* arguments) {
  const SquareSum& op = *static_cast<const SquareSum*>(arguments);
  constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);
  for_chunks(context, op.count, block, [&](std::int64_t first, std::int64_t size) {
    op.sums[first / block] = square_sum(op.values + first, size);
  });
}

}  // namespace holdfast::cpu::HF_ISA
