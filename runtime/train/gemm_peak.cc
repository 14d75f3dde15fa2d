#include "runtime/train/gemm_peak.h"

#include <vector>

#include "kernels/matmul.h"

namespace holdfast {

double measure_gemm_peak(Env& env, Device& device, DType dtype) {
  constexpr std::int64_t n = 768;
  constexpr std::int64_t duration_ns = 20'000'000;
  const auto rate_of = [](double products, std::int64_t time_ns) {
    return 2.0 * static_cast<double>(n * n * n) * products / (static_cast<double>(time_ns) * 1e-9);
  };
  std::vector<float> a(n * n, 1.0F), b(n * n, 1.0F), c(n * n);  // large enough for both dtypes
  const Matmul product{.a = a.data(),
                       .b = b.data(),
                       .c = c.data(),
                       .m = n,
                       .n = n,
                       .k = n,
                       .lda = n,
                       .ldb = n,
                       .ldc = n,
                       .transpose_b = true,
                       .dtype = dtype,
                       .dtype_c = dtype};
  const std::int64_t warm_up_ns = env.monotonic_ns();
  device.launch(product);  // makes the primitive
  device.synchronize();
  const std::int64_t begin_ns = env.monotonic_ns();
  if (begin_ns - warm_up_ns > 10 * duration_ns) return rate_of(1.0, begin_ns - warm_up_ns);  // the reference
  std::int64_t elapsed_ns = 0;
  double count = 0.0;
  while (elapsed_ns < duration_ns) {
    device.launch(product);
    device.synchronize();
    count += 1.0;
    elapsed_ns = env.monotonic_ns() - begin_ns;
  }
  return rate_of(count, elapsed_ns);
}

}  // namespace holdfast
