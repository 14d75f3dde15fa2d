// What this machine can do at most, measured in the same run as what is held against it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "kernels/cost.h"
#include "kernels/cpu/library_matmul.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/team.h"
#include "runtime/core/env.h"
#include "runtime/core/memory_plan.h"

namespace holdfast {

// Sizes of this machine's caches, 0 = not known.
struct CacheSizes {
  std::uint64_t l2_bytes = 0;  // of one core
  std::uint64_t l3_bytes = 0;  // shared
};
CacheSizes cache_sizes(Env& env);
// "L2", "L3" or "DRAM": where `bytes` fit that `threads` cores work on.
std::string level_of(const CacheSizes& caches, std::uint64_t bytes, int threads);

// Both limits are kept per shape: asking again returns the first answer. Call while the device is idle.
class Limits {
 public:
  // Each measurement takes about duration_ms.
  Limits(Env& env, int threads, std::int64_t duration_ms);
  ~Limits();

  // Of the plainest loop that moves what the op must move, with all threads, over and over: its memory comes
  // from the cache level that it fits. Several ways of walking and storing are tried; the fastest counts.
  Result<double> stream_seconds(const OpCost& cost);
  // Of oneDNN alone with its own threads on this very shape, memory warm. Where the library has no bf16, the
  // same product in fp32.
  double product_seconds(const Matmul& shape);
  // FLOP/s of oneDNN alone on one large square product.
  double product_rate(DType dtype);
  void forget();  // measures anew when asked again

 private:
  using Regions = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // floats read, updated, written
  Result<void> reserve(std::int64_t floats);
  // One way: pieces of so many floats, stores through the caches or past them.
  struct Way {
    std::int64_t piece_count = 0;
    bool past_caches = false;
  };
  double pass_seconds(const Regions& regions, const Way& way);
  double measure_product(const Matmul& shape);

  Env* env_;
  int threads_;
  std::int64_t duration_ns_;
  cpu::Team team_;
  cpu::StreamFunction stream_;
  MemoryArena arena_;
  std::int64_t reserved_floats_ = 0;
  float* memory_ = nullptr;
  std::map<Regions, double> stream_seconds_;
  std::map<std::string, double> product_seconds_;
  std::map<DType, double> product_rates_;
};

}  // namespace holdfast
