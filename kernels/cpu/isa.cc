#include "kernels/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace holdfast::kernels {

namespace {

#ifdef __clang__  // 14 does not know the names below, and what it compiles (preset fuzz) need not be fast

CpuIsa find_best() {
  return CpuIsa::portable;
}

#else

// Linux hands out the memory for a thread's tiles only to processes that asked (arch_prctl(2); Linux 5.16).
bool tiles_permitted() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

CpuIsa find_best() {
  if (__builtin_cpu_supports("x86-64-v3") == 0) return CpuIsa::portable;
  if (__builtin_cpu_supports("x86-64-v4") == 0) return CpuIsa::avx2;
  if (__builtin_cpu_supports("avx512bf16") == 0) return CpuIsa::avx512;
  const bool tiles = __builtin_cpu_supports("amx-tile") != 0 && __builtin_cpu_supports("amx-bf16") != 0;
  return tiles && tiles_permitted() ? CpuIsa::amx : CpuIsa::avx512_bf16;
}

#endif

}  // namespace

const char* name_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::portable:
      return "portable";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
    case CpuIsa::avx512_bf16:
      return "avx512_bf16";
    case CpuIsa::amx:
      return "amx";
  }
  return "unknown";
}

std::optional<CpuIsa> cpu_isa_of(std::string_view name) {
  for (const CpuIsa isa : cpu_isas) {
    if (name == name_of(isa)) return isa;
  }
  return std::nullopt;
}

CpuIsa best_cpu_isa() {
  static const CpuIsa best = find_best();
  return best;
}

}  // namespace holdfast::kernels
