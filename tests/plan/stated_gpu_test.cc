// Rates of GPUs that a plan states: those that docs/plan.md has with their sources.
#include "runtime/plan/stated_gpu.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace holdfast::test {
namespace {

// Returns "1,807" of 1807.
std::string shown(double number) {
  std::string text = fmt::format("{}", number);
  if (number >= 1000.0) text.insert(1, ",");
  return text;
}

TEST(StatedGpu, RatesAreThoseOfTheDocument) {
  std::stringstream document;
  document << std::ifstream(HF_SOURCE_DIR "/docs/plan.md").rdbuf();
  const auto row = [&](const char* name, double StatedGpu::*rate) {
    std::string text = fmt::format("| {} |", name);
    for (const char* gpu : {"a100", "h100", "h200", "b200"})
      text += fmt::format(" {} |", shown(find_gpu(gpu)->*rate));
    EXPECT_NE(document.str().find(text), std::string::npos) << text;
  };
  row("large products in bf16, TFLOP/s", &StatedGpu::bf16_tflops);
  row("in fp32, TFLOP/s", &StatedGpu::fp32_tflops);
  row("memory, GB/s", &StatedGpu::memory_gbs);
  row("within a host (NVLink), GB/s", &StatedGpu::host_link_gbs);
  row("between hosts, GB/s for a GPU", &StatedGpu::link_gbs);
  EXPECT_EQ(find_gpu("h300"), nullptr);
  EXPECT_EQ(known_gpus(), "a100, h100, h200, b200");
}

}  // namespace
}  // namespace holdfast::test
