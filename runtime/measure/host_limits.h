// Host limits: the highest rates of this machine's processors, measured in the same run as the ops that are
// compared with them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "kernels/cpu/library_matmul.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/team.h"
#include "runtime/core/memory_plan.h"
#include "runtime/measure/limits.h"
#include "runtime/os/env.h"

namespace holdfast::measure {

// Sizes of this machine's caches, 0 = not known.
struct CacheSizes {
  std::uint64_t l2_bytes = 0;  // of one core
  std::uint64_t l3_bytes = 0;  // shared
};
CacheSizes cache_sizes(Env& env);
// Returns "L2", "L3" or "DRAM": the level that holds `bytes` on which `threads` cores work.
std::string level_of(const CacheSizes& caches, std::uint64_t bytes, int threads);

// Both limits are kept per shape.
class HostLimits final : public Limits {
 public:
  // Each measurement takes about duration_ms.
  HostLimits(Env& env, int threads, std::int64_t duration_ms);

  // Measures the plainest loop that moves the same bytes as the op, with all threads, over and over: its
  // memory comes from the cache level that it fits. Several ways of walking and storing are tried; the
  // fastest counts.
  Result<double> stream_seconds(const OpCost& cost) override;
  // Measures oneDNN alone with its own threads on this very shape, memory warm. Where the library has no
  // bf16, the same product in fp32.
  double product_seconds(const Matmul& shape) override;
  double product_rate(DType dtype) override;  // of oneDNN alone
  void forget() override;

  std::string level_of(std::uint64_t bytes) const override;
  std::string_view product_name() const override { return "oneDNN's own rate"; }

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
  CacheSizes caches_;
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

}  // namespace holdfast::measure
