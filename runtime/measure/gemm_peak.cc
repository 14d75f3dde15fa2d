#include "runtime/measure/gemm_peak.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "runtime/core/random.h"
#include "runtime/device/host_access.h"

namespace holdfast::measure {
namespace {

// Fills memory with numbers in [-1, 1), the same each time. The power of a multiplier, and with it the clock
// of a processor under load, depends on the bits that change between one operand and the next: a product of
// ones or zeros is a tenth faster than any product of training. The numbers repeat after pattern_count, which
// no width of a matrix here divides, so the rows differ.
void fill_at_random(Device& device, std::span<std::byte> memory, DType dtype, std::uint64_t stream_of) {
  constexpr std::size_t pattern_count = 65'544;
  const RandomStream stream(0, stream_of);
  std::vector<float> numbers(pattern_count);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = 2.0F * static_cast<float>(stream.uniform(i)) - 1.0F;
  }
  std::vector<BFloat16> halves(dtype == DType::bf16 ? pattern_count : 0);
  if (dtype == DType::bf16) std::ranges::transform(numbers, halves.begin(), to_bfloat16);
  const std::span<const std::byte> pattern =
      dtype == DType::bf16 ? std::as_bytes(std::span(halves)) : std::as_bytes(std::span(numbers));
  fill_memory(device, memory, pattern);
}

}  // namespace

Result<GemmPeak> GemmPeak::of_size(Env& env, Device& device, DType dtype, std::int64_t n) {
  GemmPeak product(env, device);
  const std::uint64_t bytes = static_cast<std::uint64_t>(n * n) * bytes_of(dtype);
  MemoryPlan plan;
  const std::array<MemoryPlan::Slot, 3> slots = {plan.reserve("a", MemoryClass::workspace, bytes),
                                                 plan.reserve("b", MemoryClass::workspace, bytes),
                                                 plan.reserve("c", MemoryClass::workspace, bytes)};
  HF_TRY(product.arena_, allocate_memory(device, plan));
  fill_at_random(device, product.arena_.bytes(slots[0]), dtype, 0);
  fill_at_random(device, product.arena_.bytes(slots[1]), dtype, 1);
  product.op_ = {.a = product.arena_.at<float>(slots[0]),
                 .b = product.arena_.at<float>(slots[1]),
                 .c = product.arena_.at<float>(slots[2]),
                 .m = n,
                 .n = n,
                 .k = n,
                 .lda = n,
                 .ldb = n,
                 .ldc = n,
                 .transpose_b = true,
                 .dtype = dtype,
                 .dtype_c = dtype};
  return product;
}

// Takes the smallest product that takes so long that the cost of starting it, and of waiting for its threads,
// is negligible: the processors of a host reach their rate when one product takes a millisecond, and every
// start of a run waits for this. An emulated GPU gets a small product.
Result<GemmPeak> GemmPeak::make(Env& env, Device& device, DType dtype) {
  constexpr std::int64_t largest_n = 8192;
  const bool of_host = device.host_sees_memory();
  const std::int64_t smallest_n = of_host ? 256 : 64, long_ns = of_host ? 1'000'000 : 400'000;
  for (std::int64_t n = smallest_n;; n *= 2) {
    HF_TRY(GemmPeak product, of_size(env, device, dtype, n));
    product.run_ns();  // the first run creates what the later ones need
    if (n < largest_n && product.run_ns() <= long_ns) continue;
    product.first_ns_ = product.run_ns();
    return product;
  }
}

std::int64_t GemmPeak::run_ns(int products) {
  const std::int64_t begin_ns = env_->monotonic_ns();
  for (int i = 0; i < products; ++i) device_->launch(op_);
  device_->synchronize();
  return env_->monotonic_ns() - begin_ns;
}

double GemmPeak::rate(double products, std::int64_t time_ns) const {
  return 2.0 * static_cast<double>(op_.m * op_.n * op_.k) * products / (static_cast<double>(time_ns) * 1e-9);
}

double GemmPeak::rate(std::int64_t duration_ns) {
  constexpr std::int64_t slow_ns = 200'000'000;
  if (first_ns_ > slow_ns) return rate(1.0, first_ns_);  // as with reference kernels
  // A GPU runs several products one after another, because the time between two waits is more than that of a
  // product.
  const int products_at_once = device_->host_sees_memory() ? 1 : 8;
  const std::int64_t begin_ns = env_->monotonic_ns();
  std::int64_t elapsed_ns = 0;
  double count = 0.0;
  while (elapsed_ns < duration_ns) {
    run_ns(products_at_once);
    count += products_at_once;
    elapsed_ns = env_->monotonic_ns() - begin_ns;
  }
  return rate(count, elapsed_ns);
}

}  // namespace holdfast::measure
