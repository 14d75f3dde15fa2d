// Simple streaming kernels: they read, update in place and write memory, and compute next to nothing. They
// are yardsticks of bandwidth for benchmarks; no op of the table uses them.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace holdfast::kernels::cpu {

// Three regions of one thread, each of a multiple of 16 floats (0 = none), 64-byte aligned, not overlapping.
struct StreamRegions {
  const float* read = nullptr;
  float* update = nullptr;  // read and written in place
  float* write = nullptr;
  std::int64_t read_count = 0, update_count = 0, write_count = 0;
  std::int64_t piece_count = 4096;  // floats of all regions together that are processed at a time
  bool past_caches = false;         // writes go to memory without being read into a cache first
};

// Passes once through all three regions side by side. The result depends on all that was read, so that no
// read can be left out.
using StreamFunction = float (*)(const StreamRegions& regions);
StreamFunction stream_function(CpuIsa isa);

namespace portable {
float stream(const StreamRegions& regions);
}
namespace avx2 {
float stream(const StreamRegions& regions);
}
namespace avx512 {
float stream(const StreamRegions& regions);
}

}  // namespace holdfast::kernels::cpu
