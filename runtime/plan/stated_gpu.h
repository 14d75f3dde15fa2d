// StatedGpu are what `holdfast plan --gpu NAME` reckons with: rates that a GPU reaches, not those of its data sheet. Each number and
// its source is in docs/plan.md.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::plan {

struct StatedGpu {
  std::string_view name;
  double bf16_tflops, fp32_tflops;  // of large matrix products
  double memory_gib, memory_gbs;    // as the driver reports it; 10^9 bytes read or written per second
  double host_link_gbs, link_gbs;   // received from GPUs of the same host, and of others
};
inline constexpr int gpus_per_host = 8;  // HGX and DGX

const StatedGpu* find_gpu(std::string_view name);  // null: unknown
std::string known_gpus();                          // "a100, h100, ..."

}  // namespace holdfast::plan
