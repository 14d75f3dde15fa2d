#include "runtime/measure/host_limits.h"

#include <fmt/core.h>

#include <atomic>
#include <limits>
#include <vector>

#include "runtime/core/median.h"
#include "runtime/measure/op_memory.h"
#include "runtime/measure/op_text.h"

namespace holdfast::measure {
namespace {

constexpr std::int64_t line_floats = 16;
constexpr std::int64_t host_rounds = 3;
constexpr std::int64_t ways = 6;         // that stream_seconds() tries
constexpr std::int64_t rest_us = 5'000;  // OpenMP's threads spin for a while after a product

std::int64_t whole_lines(std::uint64_t bytes) {
  const auto floats = static_cast<std::int64_t>((bytes + sizeof(float) - 1) / sizeof(float));
  return (floats + line_floats - 1) / line_floats * line_floats;
}

// "2048K" as the system writes a cache's size.
std::uint64_t cache_bytes(Env& env, int index) {
  const Result<std::string> text =
      env.read_text(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
  if (!text.ok()) return 0;
  std::uint64_t kibibytes = 0;
  for (const char c : *text) {
    if (c < '0' || c > '9') break;
    kibibytes = 10 * kibibytes + static_cast<std::uint64_t>(c - '0');
  }
  return kibibytes * 1024;
}

double seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

}  // namespace

CacheSizes cache_sizes(Env& env) {
  return {.l2_bytes = cache_bytes(env, 2), .l3_bytes = cache_bytes(env, 3)};
}

std::string level_of(const CacheSizes& caches, std::uint64_t bytes, int threads) {
  if (caches.l2_bytes == 0) return "?";
  if (bytes <= caches.l2_bytes * static_cast<std::uint64_t>(threads)) return "L2";
  return bytes <= caches.l3_bytes ? "L3" : "DRAM";
}

HostLimits::HostLimits(Env& env, int threads, std::int64_t duration_ms)
    : env_(&env),
      threads_(threads),
      caches_(cache_sizes(env)),
      duration_ns_(std::max<std::int64_t>(1, duration_ms) * 1'000'000),
      team_(threads, cpu::use_one_thread_per_primitive),
      stream_(cpu::stream_function(best_cpu_isa())) {}

Result<void> HostLimits::reserve(std::int64_t floats) {
  if (floats <= reserved_floats_) return {};
  MemoryPlan plan;
  const MemoryPlan::Slot slot =
      plan.reserve("stream", MemoryClass::workspace, static_cast<std::uint64_t>(floats) * sizeof(float));
  arena_ = {};
  HF_TRY(arena_, MemoryArena::allocate(plan));
  memory_ = arena_.at<float>(slot);
  reserved_floats_ = floats;
  std::fill_n(memory_, floats, 1.0F);
  return {};
}

// Each thread keeps to its own part of every region, so that small parts stay in its own cache.
double HostLimits::pass_seconds(const Regions& regions, const Way& way) {
  const auto [read, update, write] = regions;
  std::atomic<float> sink{0.0F};
  std::int64_t passes = 1;
  const auto run_part = [&](std::int64_t index, int) {
    const auto part = [&](std::int64_t count, std::int64_t end) {
      return count * (index + end) / threads_ / line_floats * line_floats;
    };
    const auto size = [&](std::int64_t count) { return part(count, 1) - part(count, 0); };
    const cpu::StreamRegions mine{.read = memory_ + part(read, 0),
                                  .update = memory_ + read + part(update, 0),
                                  .write = memory_ + read + update + part(write, 0),
                                  .read_count = size(read),
                                  .update_count = size(update),
                                  .write_count = size(write),
                                  .piece_count = way.piece_count,
                                  .past_caches = way.past_caches};
    for (std::int64_t pass = 0; pass < passes; ++pass) sink.store(stream_(mine), std::memory_order_relaxed);
  };
  const auto time = [&] {
    const std::int64_t begin_ns = env_->monotonic_ns();
    team_.run(threads_, run_part);
    return std::max<std::int64_t>(1, env_->monotonic_ns() - begin_ns);
  };
  time();                                        // brings the memory in
  constexpr std::int64_t shortest_ns = 500'000;  // beside which waking the other threads is nothing
  passes = std::clamp<std::int64_t>(std::max(shortest_ns, duration_ns_ / ways / host_rounds) / time(), 1,
                                    1'000'000);
  std::vector<double> times;
  for (std::int64_t round = 0; round < host_rounds; ++round) {
    times.push_back(seconds(time()) / static_cast<double>(passes));
  }
  return median(times);
}

Result<double> HostLimits::stream_seconds(const OpCost& cost) {
  // Larger than any cache; what is larger still takes proportionally longer.
  constexpr std::uint64_t largest_bytes = std::uint64_t{768} << 20U;
  const double scale =
      std::max(1.0, static_cast<double>(cost.working_set_bytes()) / static_cast<double>(largest_bytes));
  const auto scaled = [&](std::uint64_t bytes) {
    return whole_lines(static_cast<std::uint64_t>(static_cast<double>(bytes) / scale));
  };
  const Regions regions{scaled(cost.bytes_read - cost.bytes_updated), scaled(cost.bytes_updated),
                        scaled(cost.bytes_written - cost.bytes_updated)};
  const auto [read, update, write] = regions;
  if (read + update + write == 0) return 0.0;
  const auto [found, fresh] = stream_seconds_.try_emplace(regions, 0.0);
  if (fresh) {
    HF_TRY_VOID(reserve(read + update + write));
    found->second = std::numeric_limits<double>::max();
    for (const std::int64_t piece_count : {512, 4096, 32768}) {
      for (const bool past_caches : {false, true}) {
        if (past_caches && write == 0) continue;
        found->second = std::min(found->second, pass_seconds(regions, {piece_count, past_caches}));
      }
    }
  }
  return found->second * scale;
}

double HostLimits::measure_product(const Matmul& shape) {
  Matmul op = shape;
  cpu::LibraryMatmul library(threads_);
  if (!library.supports(op.dtype)) op.dtype = op.dtype_c = DType::fp32;
  OpMemory memory;
  op = memory.with_operands(op);
  library.run(op);
  library.run(op);
  std::vector<double> times;
  const std::int64_t end_ns = env_->monotonic_ns() + duration_ns_;
  std::int64_t now_ns = env_->monotonic_ns();
  do {
    const std::int64_t begin_ns = now_ns;
    library.run(op);
    now_ns = env_->monotonic_ns();
    times.push_back(seconds(now_ns - begin_ns));
  } while (now_ns < end_ns || times.size() < host_rounds);
  env_->sleep_us(rest_us);
  return median(times);
}

double HostLimits::product_seconds(const Matmul& shape) {
  const auto [found, fresh] = product_seconds_.try_emplace(shape_text(Matmul::id, &shape), 0.0);
  if (fresh) found->second = measure_product(shape);
  return found->second;
}

double HostLimits::product_rate(DType dtype) {
  const auto [found, fresh] = product_rates_.try_emplace(dtype, 0.0);
  if (fresh) {
    constexpr std::int64_t n = 2048;
    const Matmul square{.m = n,
                        .n = n,
                        .k = n,
                        .lda = n,
                        .ldb = n,
                        .ldc = n,
                        .transpose_b = true,
                        .dtype = dtype,
                        .dtype_c = dtype};
    found->second = 2.0 * static_cast<double>(n * n * n) / measure_product(square);
  }
  return found->second;
}

std::string HostLimits::level_of(std::uint64_t bytes) const {
  return measure::level_of(caches_, bytes, threads_);
}

void HostLimits::forget() {
  stream_seconds_.clear();
  product_seconds_.clear();
  product_rates_.clear();
}

}  // namespace holdfast::measure
