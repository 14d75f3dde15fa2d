#include "runtime/core/normal_lanes.h"

#include <array>
#include <cstddef>

namespace holdfast::core {

// Declares the functions of runtime/core/per_isa/normal_lanes.cc.
#define HF_DECLARE(isa)                                                                             \
  namespace isa {                                                                                   \
  void fill_normals(std::uint64_t key, std::uint64_t first_element, float deviation, float* values, \
                    std::int64_t count);                                                            \
  }
HF_DECLARE(portable)
HF_DECLARE(avx2)
HF_DECLARE(avx512)
#undef HF_DECLARE

std::span<const NormalFiller> normal_fillers() {
  static constexpr std::array<NormalFiller, 3> all = {
      {{"portable", portable::fill_normals}, {"avx2", avx2::fill_normals}, {"avx512", avx512::fill_normals}}};
  std::size_t count = 1;
#ifndef __clang__  // 14 does not know these names, and what it compiles (preset fuzz) need not be fast
  if (__builtin_cpu_supports("x86-64-v3") != 0) count = 2;
  if (__builtin_cpu_supports("x86-64-v4") != 0) count = 3;
#endif
  return std::span(all).first(count);
}

}  // namespace holdfast::core
