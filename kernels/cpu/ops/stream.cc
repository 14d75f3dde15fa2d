#include "kernels/cpu/stream.h"

#include <xmmintrin.h>

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

constexpr std::int64_t unroll = 4;  // independent sums hide the latency of an add

HF_INLINE void store_past_caches(float* to, NativeF32 value) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, value);
#elif defined(__AVX2__)
  _mm256_stream_ps(to, value);
#else
  _mm_stream_ps(to, value);
#endif
}

HF_INLINE void store_past_caches(float* to, f32x16 value) {
  for (int p = 0; p < native_parts; ++p) store_past_caches(to + p * native_lanes, value.part[p]);
}

float sum_of(const float* from, std::int64_t count) {
  f32x16 sums[unroll] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + unroll * vector_lanes <= count; i += unroll * vector_lanes) {
    for (std::int64_t u = 0; u < unroll; ++u) sums[u] = sums[u] + load(from + i + u * vector_lanes);
  }
  for (; i < count; i += vector_lanes) sums[0] = sums[0] + load(from + i);
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void update(float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += vector_lanes) store(to + i, -load(to + i));
}

void write(float* to, std::int64_t count, float value, bool past_caches) {
  const f32x16 values = broadcast(value);
  if (past_caches) {
    for (std::int64_t i = 0; i < count; i += vector_lanes) store_past_caches(to + i, values);
  } else {
    for (std::int64_t i = 0; i < count; i += vector_lanes) store(to + i, values);
  }
}

// The end of piece `index` of `pieces` in a region.
std::int64_t end_of(std::int64_t count, std::int64_t index, std::int64_t pieces) {
  return index + 1 == pieces ? count : count * (index + 1) / pieces / vector_lanes * vector_lanes;
}

}  // namespace

float stream(const StreamRegions& regions) {
  const std::int64_t total = regions.read_count + regions.update_count + regions.write_count;
  const std::int64_t pieces = larger(1, total / regions.piece_count);
  float sum = 0.0F;
  std::int64_t read = 0, updated = 0, written = 0;
  for (std::int64_t index = 0; index < pieces; ++index) {
    const std::int64_t read_end = end_of(regions.read_count, index, pieces);
    const std::int64_t update_end = end_of(regions.update_count, index, pieces);
    const std::int64_t write_end = end_of(regions.write_count, index, pieces);
    if (read_end > read) sum += sum_of(regions.read + read, read_end - read);
    if (update_end > updated) update(regions.update + updated, update_end - updated);
    if (write_end > written) write(regions.write + written, write_end - written, 1.0F, regions.past_caches);
    read = read_end;
    updated = update_end;
    written = write_end;
  }
  if (regions.past_caches) _mm_sfence();
  return sum;
}

}  // namespace holdfast::kernels::cpu::HF_ISA
