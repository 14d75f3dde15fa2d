// CpuIsa: the instruction sets of a processor, as one ladder: each level includes all levels below it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace holdfast::kernels {

enum class CpuIsa : std::uint8_t {
  portable,     // x86-64
  avx2,         // x86-64-v3: AVX2, FMA, F16C
  avx512,       // x86-64-v4: AVX-512 F, BW, CD, DQ, VL
  avx512_bf16,  // dot products of bf16 pairs
  amx,          // tiles, with products of bf16
};
inline constexpr CpuIsa cpu_isas[] = {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_bf16,
                                      CpuIsa::amx};

const char* name_of(CpuIsa isa);
std::optional<CpuIsa> cpu_isa_of(std::string_view name);

// Returns the highest level that this processor has and that the operating system lets this process use.
CpuIsa best_cpu_isa();

}  // namespace holdfast::kernels
