#include "kernels/cpu/library_isa.h"

#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/matmul_cache.h"

namespace holdfast::kernels {

namespace {

dnnl_cpu_isa_t library_isa(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::portable:
      return dnnl_cpu_isa_sse41;
    case CpuIsa::avx2:
      return dnnl_cpu_isa_avx2;
    case CpuIsa::avx512:
      return dnnl_cpu_isa_avx512_core;
    case CpuIsa::avx512_bf16:
      return dnnl_cpu_isa_avx512_core_bf16;
    case CpuIsa::amx:
      break;
  }
  return dnnl_cpu_isa_all;
}

}  // namespace

Result<void> limit_library_isa(CpuIsa isa) {
  if (isa == best_cpu_isa()) return {};  // which the library finds by itself
  const dnnl_cpu_isa_t wanted = library_isa(isa);
  if (dnnl_set_max_cpu_isa(wanted) == dnnl_success || dnnl_get_effective_cpu_isa() == wanted) return {};
  return fail(ExitCode::config,
              "kernels.isa = \"{}\": {} cannot be limited to that in a process that has used it; leave the "
              "key out",
              name_of(isa), cpu::matmul_library());
}

}  // namespace holdfast::kernels
