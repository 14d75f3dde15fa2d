// Host limits: the highest rates of this machine's processors, measured in the same run as the ops that are
// compared with them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "kernels/cost.h"
#include "kernels/cpu/library_matmul.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/team.h"
#include "kernels/matmul.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/result.h"
#include "runtime/core/tensor.h"
#include "runtime/os/env.h"

namespace holdfast::measure {

// Limits: the highest rates of a device, which the time of an op is compared with. Measured on the same
// machine in the same run (host_limits.h, gpu_limits.h).

// Call while the device is idle. Asking again gives the first answer.
class Limits {
 public:
  virtual ~Limits() = default;

  // Returns the time to move the bytes that the op must move.
  virtual Result<double> stream_seconds(const OpCost& cost) = 0;
  // Returns the time of one matrix product of this shape.
  virtual double product_seconds(const Matmul& shape) = 0;
  // Returns the FLOP/s of one large square product.
  virtual double product_rate(DType dtype) = 0;
  virtual void forget() = 0;  // measures anew when asked again, where other programs can be in the way

  // Returns the memory that holds so many bytes for an op: "L2", "L3", "DRAM".
  virtual std::string level_of(std::uint64_t bytes) const = 0;
  // Returns a description of product_seconds() for sentences: "oneDNN's own rate".
  virtual std::string_view product_name() const = 0;
};

// Returns the limit of any op that is not a matrix product: the larger of its bytes and its multiplications.
inline Result<double> op_seconds(Limits& limits, const OpCost& cost, DType dtype) {
  HF_TRY(const double stream, limits.stream_seconds(cost));
  return cost.flops > 0.0 ? std::max(stream, cost.flops / limits.product_rate(dtype)) : stream;
}

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
