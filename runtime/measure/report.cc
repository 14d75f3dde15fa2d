#include "runtime/measure/report.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/core/units.h"
#include "runtime/measure/host_limits.h"

namespace holdfast::measure {
namespace {

std::string processor_model(Env& env) {
  const Result<std::string> text = env.read_text("/proc/cpuinfo");
  const std::string key = "model name\t: ";
  const std::size_t begin = text.ok() ? text->find(key) : std::string::npos;
  if (begin == std::string::npos) return "unknown processor";
  return text->substr(begin + key.size(), text->find('\n', begin) - begin - key.size());
}

}  // namespace

Json machine_json(Env& env) {
  const CacheSizes caches = cache_sizes(env);
  return {{"host", env.host_name()},
          {"processor", processor_model(env)},
          {"processors", env.processor_count()},
          {"l2_bytes", caches.l2_bytes},
          {"l3_bytes", caches.l3_bytes}};
}

std::string machine_line(Env& env) {
  const CacheSizes caches = cache_sizes(env);
  return fmt::format("{}, {} processors, L2 {} each, L3 {}", processor_model(env), env.processor_count(),
                     format_bytes(caches.l2_bytes), format_bytes(caches.l3_bytes));
}

std::string rate_text(const OpCost& cost, double seconds) {
  const double flops_per_second = cost.flops / seconds;
  if (flops_per_second >= 1e13) return fmt::format("{:.1f} TFLOP/s", flops_per_second * 1e-12);
  if (cost.flops > 0.0) return fmt::format("{:.1f} GFLOP/s", flops_per_second * 1e-9);
  return fmt::format("{:.1f} GB/s", static_cast<double>(cost.bytes_moved()) / seconds * 1e-9);
}

std::string percent(double share) {
  return fmt::format("{:.{}f} %", 100.0 * share, share < 0.0995 ? 1 : 0);
}

std::string digits(double value) {
  if (value >= 1000.0) return fmt::format("{:.0f}", value);
  if (value >= 100.0) return fmt::format("{:.1f}", value);
  if (value >= 10.0) return fmt::format("{:.2f}", value);
  if (value >= 1.0) return fmt::format("{:.3f}", value);
  return fmt::format("{:.4f}", value);
}

}  // namespace holdfast::measure
