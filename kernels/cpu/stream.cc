#include "kernels/cpu/stream.h"

namespace holdfast::kernels::cpu {

StreamFunction stream_function(CpuIsa isa) {
  if (isa >= CpuIsa::avx512) return avx512::stream;
  return isa >= CpuIsa::avx2 ? avx2::stream : portable::stream;
}

}  // namespace holdfast::kernels::cpu
