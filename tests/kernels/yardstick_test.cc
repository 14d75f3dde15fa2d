// The yardsticks of benchmarks do what they are measured for.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "kernels/cpu/library_matmul.h"
#include "kernels/cpu/stream.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

TEST(Stream, GoesOnceThroughEveryElement) {
  constexpr std::size_t read = 16 * 1001, update = 16 * 400, write = 16 * 77;
  for (const CpuIsa isa : available_isas()) {
    for (const bool past_caches : {false, true}) {
      SCOPED_TRACE(name_of(isa));
      // 64-byte aligned, as stores past the caches need.
      Values memory(static_cast<std::int64_t>(read + update + write + 16), DType::fp32);
      const std::size_t misalignment = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
      float* base = memory.as<float>() + (64 - misalignment) / sizeof(float) % 16;
      std::fill_n(base, read, 1.0F);
      std::fill_n(base + read, update, 3.0F);
      const float sum = kernels::cpu::stream_function(isa)({.read = base,
                                                            .update = base + read,
                                                            .write = base + read + update,
                                                            .read_count = read,
                                                            .update_count = update,
                                                            .write_count = write,
                                                            .piece_count = 1024,
                                                            .past_caches = past_caches});
      EXPECT_EQ(sum, static_cast<float>(read));
      const auto all = [](const float* from, std::size_t count, float value) {
        return std::count(from, from + count, value) == static_cast<std::ptrdiff_t>(count);
      };
      EXPECT_TRUE(all(base, read, 1.0F));
      EXPECT_TRUE(all(base + read, update, -3.0F));
      EXPECT_TRUE(all(base + read + update, write, 1.0F));
      EXPECT_TRUE(memory.guard_intact());
    }
  }
}

// On a thread of its own, because it sets that thread's number of OpenMP threads.
TEST(LibraryMatmul, IsAMatmul) {
  constexpr std::int64_t m = 33, n = 47, k = 65;
  for (const int threads : {1, 2}) {
    Tensors tensors = {random_values(m * k, DType::fp32, 1), random_values(n * k, DType::fp32, 2),
                       random_values(m * n, DType::fp32, 3), random_values(n, DType::fp32, 4)};
    Tensors expected = tensors;
    const auto bind = [](Tensors& t) {
      return Matmul{.a = t[0].data(),
                    .b = t[1].data(),
                    .c = t[2].data(),
                    .bias = t[3].data(),
                    .m = m,
                    .n = n,
                    .k = k,
                    .lda = k,
                    .ldb = k,
                    .ldc = n,
                    .transpose_b = true};
    };
    std::thread([&] { kernels::cpu::LibraryMatmul(threads).run(bind(tensors)); }).join();
    reference(bind(expected));
    expect_close(tensors[2], expected[2], {}, "c");
  }
}

}  // namespace
}  // namespace holdfast::test
