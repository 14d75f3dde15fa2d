#include "kernels/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/team.h"
#include "kernels/device.h"
#include "kernels/registry.h"

namespace holdfast {
namespace {

// Tensors of one dtype with pseudo-random values in [-1, 1].
std::vector<std::byte> random_values(std::int64_t count, DType dtype, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * bytes_of(dtype));
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const float value = static_cast<float>(state >> 40U) / static_cast<float>(1U << 23U) - 1.0F;
    if (dtype == DType::bf16) {
      reinterpret_cast<BFloat16*>(bytes.data())[i] = to_bfloat16(value);
    } else {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    }
  }
  return bytes;
}

double value_at(const std::vector<std::byte>& bytes, std::size_t index, DType dtype) {
  if (dtype == DType::bf16) {
    return static_cast<double>(to_float(reinterpret_cast<const BFloat16*>(bytes.data())[index]));
  }
  return static_cast<double>(reinterpret_cast<const float*>(bytes.data())[index]);
}

struct Case {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  DType dtype = DType::fp32, dtype_c = DType::fp32;
  std::int64_t padding = 0;  // added to every leading dimension
};

std::string describe(const Case& c) {
  return fmt::format("m {} n {} k {} transpose {}{} accumulate {} bias {} {} -> {} padding {}", c.m, c.n, c.k,
                     c.transpose_a, c.transpose_b, c.accumulate, c.bias, name_of(c.dtype), name_of(c.dtype_c),
                     c.padding);
}

// The operands of a case and what op points to.
struct Problem {
  std::vector<std::byte> a, b, bias, c;
  Matmul op;

  explicit Problem(const Case& from) {
    op.m = from.m;
    op.n = from.n;
    op.k = from.k;
    op.transpose_a = from.transpose_a;
    op.transpose_b = from.transpose_b;
    op.accumulate = from.accumulate;
    op.dtype = from.dtype;
    op.dtype_c = from.dtype_c;
    op.lda = (from.transpose_a ? from.m : from.k) + from.padding;
    op.ldb = (from.transpose_b ? from.k : from.n) + from.padding;
    op.ldc = from.n + from.padding;
    a = random_values((from.transpose_a ? from.k : from.m) * op.lda, from.dtype, 1);
    b = random_values((from.transpose_b ? from.n : from.k) * op.ldb, from.dtype, 2);
    c = random_values(from.m * op.ldc, from.dtype_c, 3);
    bias = random_values(from.n, from.dtype, 4);
    op.a = a.data();
    op.b = b.data();
    op.bias = from.bias ? bias.data() : nullptr;
  }

  // Runs op on a copy of c and returns the copy.
  template <typename Run>
  std::vector<std::byte> run(const Run& run_op) const {
    std::vector<std::byte> result = c;
    Matmul bound = op;
    bound.c = result.data();
    run_op(bound);
    return result;
  }
  std::vector<std::byte> run_on(Device& device) const {
    return run([&](const Matmul& bound) {
      device.launch(bound);
      device.synchronize();
    });
  }
  std::vector<std::byte> expected() const {
    return run([](const Matmul& bound) { reference(bound); });
  }
};

void expect_near(const std::vector<std::byte>& actual, const std::vector<std::byte>& expected,
                 const Matmul& op, const std::string& what) {
  double largest = 1e-3, worst = 0;
  for (std::size_t i = 0; i < expected.size() / bytes_of(op.dtype_c); ++i) {
    const double wanted = value_at(expected, i, op.dtype_c);
    largest = std::max(largest, std::abs(wanted));
    worst = std::max(worst, std::abs(value_at(actual, i, op.dtype_c) - wanted));
  }
  EXPECT_LE(worst, largest * (op.dtype_c == DType::bf16 ? 5e-3 : 1e-5)) << what;
}

// A device for every implementation of the product that this processor runs.
struct Candidate {
  std::string name;
  std::unique_ptr<Device> device;
};
std::vector<Candidate> candidates(int threads) {
  std::vector<Candidate> found;
  for (const CpuIsa isa : cpu_isas) {
    if (isa > best_cpu_isa()) break;
    for (const char* name : {name_of(isa), "onednn"}) {
      if (kernel_registry().find(OpId::matmul, name, isa) == nullptr) continue;
      found.push_back({fmt::format("{} on {}", name, name_of(isa)),
                       make_cpu_device({.threads = threads, .isa = isa, .kernels = {{OpId::matmul, name}}})});
    }
  }
  return found;
}

// Runs a case by every implementation.
void expect_matmul(const std::vector<Candidate>& by, const Case& c) {
  const Problem problem(c);
  const std::vector<std::byte> expected = problem.expected();
  for (const Candidate& each : by) {
    expect_near(problem.run_on(*each.device), expected, problem.op, each.name + ": " + describe(c));
  }
}

std::vector<Case> every_kind(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t padding = 0) {
  std::vector<Case> cases;
  for (int flags = 0; flags < 16; ++flags) {
    Case c{m, n, k, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, (flags & 8) != 0};
    c.padding = padding;
    cases.push_back(c);
    c.dtype = DType::bf16;
    cases.push_back(c);
    if (c.accumulate) continue;
    c.dtype_c = DType::bf16;
    cases.push_back(c);
  }
  return cases;
}

TEST(Matmul, AgreesWithTheReferenceOverOddSizesAndEveryKind) {
  const std::vector<Candidate> by = candidates(2);
  const std::int64_t sizes[][3] = {{1, 1, 1},    {1, 97, 33},  {53, 1, 7},    {3, 5, 2},
                                   {17, 33, 65}, {64, 48, 16}, {130, 67, 31}, {5, 200, 129}};
  for (const auto& size : sizes) {
    for (const std::int64_t padding : {0, 3}) {
      for (const Case& c : every_kind(size[0], size[1], size[2], padding)) expect_matmul(by, c);
    }
  }
}

TEST(Matmul, AgreesWithTheReferenceOverSeveralTilesAndLongSums) {
  const std::vector<Candidate> by = candidates(2);
  std::vector<Case> cases = every_kind(17, 33, 4097, 1);
  for (Case c : {Case{300, 410, 70}, Case{530, 150, 40, false, true}, Case{260, 790, 33, true},
                 Case{520, 33, 1030}, Case{70, 100, 2100, true, true}}) {
    c.bias = true;
    cases.push_back(c);
    c.dtype = c.dtype_c = DType::bf16;
    cases.push_back(c);
  }
  for (const Case& c : cases) expect_matmul(by, c);
}

TEST(Matmul, LeavesWhatLiesBetweenRowsAlone) {
  const std::vector<Candidate> by = candidates(2);
  std::vector<Case> cases = every_kind(19, 21, 4200, 5);
  for (const Case& c : every_kind(130, 70, 33, 5)) cases.push_back(c);
  for (std::size_t i = 0; i < cases.size() * by.size(); ++i) {
    const Case& c = cases[i / by.size()];
    const Problem problem(c);
    const std::vector<std::byte> result = problem.run_on(*by[i % by.size()].device);
    const std::size_t row_bytes = static_cast<std::size_t>(problem.op.ldc) * bytes_of(c.dtype_c);
    const std::size_t used_bytes = static_cast<std::size_t>(c.n) * bytes_of(c.dtype_c);
    for (std::size_t row = 0; row < static_cast<std::size_t>(c.m); ++row) {
      const std::size_t gap = row * row_bytes + used_bytes;
      EXPECT_EQ(std::memcmp(&result[gap], &problem.c[gap], row_bytes - used_bytes), 0) << describe(c);
    }
  }
}

TEST(Matmul, EmptySizes) {
  const std::vector<Candidate> by = candidates(2);
  for (const auto& size : {std::array{0, 5, 3}, std::array{5, 0, 3}, std::array{4, 5, 0}}) {
    for (const Case& c : every_kind(size[0], size[1], size[2])) expect_matmul(by, c);
  }
}

TEST(Matmul, SameBitsWithAnyNumberOfThreads) {
  std::vector<Case> cases;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    cases.push_back({64, 64, 65536, true, false, true, false, dtype});
    cases.push_back({17, 33, 4097, true, false, false, false, dtype});
    cases.push_back({256, 256, 16384, true, false, true, false, dtype});
    cases.push_back({256, 768, 3072, true, false, false, true, dtype});
    cases.push_back({1, 2500, 600, false, true, false, true, dtype, dtype});
    cases.push_back({900, 130, 170, false, false, false, true, dtype, dtype});
  }
  for (const Case& c : cases) {
    const Problem problem(c);
    std::map<std::string, std::vector<std::byte>> first;
    for (const int threads : {1, 2, 3, 5, 16}) {
      for (const Candidate& by : candidates(threads)) {
        if (by.name.find("portable") != std::string::npos) continue;  // slow, and the code is AVX2's
        const std::vector<std::byte> result = problem.run_on(*by.device);
        const std::vector<std::byte>& expected = first.try_emplace(by.name, result).first->second;
        EXPECT_EQ(std::memcmp(expected.data(), result.data(), expected.size()), 0)
            << by.name << ": " << describe(c) << ", threads " << threads;
      }
    }
  }
}

TEST(Matmul, VectorInstructionsGiveTheBitsOfEveryProcessor) {
  std::vector<Case> cases = every_kind(37, 101, 1100, 1);
  for (const Case& c : every_kind(130, 35, 70)) cases.push_back(c);
  for (const Case& c : cases) {
    const Problem problem(c);
    std::vector<std::byte> first;
    for (const CpuIsa isa : {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512}) {
      if (isa > best_cpu_isa()) continue;
      const std::unique_ptr<Device> device =
          make_cpu_device({.threads = 2, .isa = isa, .kernels = {{OpId::matmul, name_of(isa)}}});
      const std::vector<std::byte> result = problem.run_on(*device);
      if (first.empty()) first = result;
      EXPECT_EQ(std::memcmp(first.data(), result.data(), first.size()), 0)
          << name_of(isa) << ": " << describe(c);
    }
  }
}

// Columns and rows of a larger product are those of a smaller one: what lets ranks split a matrix.
TEST(Matmul, APartOfAProductHasTheBitsOfTheWhole) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    Case whole{90, 200, 700, false, true};
    whole.dtype = dtype;
    const Problem problem(whole);
    const std::unique_ptr<Device> device = make_cpu_device({.threads = 2});
    const std::vector<std::byte> expected = problem.run_on(*device);
    Problem part = problem;
    part.op.m = 31;
    part.op.n = 77;
    constexpr std::int64_t row = 17, column = 59;
    part.op.a = part.a.data() + static_cast<std::size_t>(row * part.op.lda) * bytes_of(dtype);
    part.op.b = part.b.data() + static_cast<std::size_t>(column * part.op.ldb) * bytes_of(dtype);
    const std::vector<std::byte> result = part.run_on(*device);
    for (std::int64_t i = 0; i < part.op.m * part.op.n; ++i) {
      const std::int64_t r = i / part.op.n, c = i % part.op.n;
      const float actual = reinterpret_cast<const float*>(result.data())[r * part.op.ldc + c];
      const float wanted =
          reinterpret_cast<const float*>(expected.data())[(row + r) * problem.op.ldc + column + c];
      ASSERT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(wanted)) << r << ", " << c;
    }
  }
}

TEST(Matmul, ALongSumOverFewOutputsIsExactEnough) {
  const Problem problem(Case{8, 24, 65536, true, false, true});
  for (const Candidate& by : candidates(2)) {
    expect_near(problem.run_on(*by.device), problem.expected(), problem.op, by.name);
  }
}

// Processors without bf16 instructions; the registry is asked directly because a device never chooses it
// here.
TEST(Matmul, WidensBf16WhereTheLibraryHasNone) {
  cpu::Team team(2, cpu::use_one_thread_per_primitive);
  cpu::use_one_thread_per_primitive();
  cpu::Scratch scratch(2);
  cpu::MatmulCache matmuls(2, cpu::Bf16Products::widened);
  const cpu::Context context(team, scratch, matmuls);
  const Implementation& kernel = *kernel_registry().find(OpId::matmul, "onednn", CpuIsa::portable);
  std::vector<Case> cases;
  for (const auto& size : {std::array{17, 33, 1100}, std::array{70, 45, 512}, std::array{9, 20, 4700}}) {
    for (const Case& c : every_kind(size[0], size[1], size[2], 2)) {
      if (c.dtype == DType::bf16) cases.push_back(c);
    }
  }
  cases.push_back({600, 800, 40, false, true, false, true, DType::bf16, DType::bf16});
  for (const Case& c : cases) {
    const Problem problem(c);
    const std::vector<std::byte> result = problem.run([&](const Matmul& op) {
      kernel.prepare(context, &op);
      ASSERT_TRUE(scratch.allocate());
      kernel.run(context, &op);
    });
    expect_near(result, problem.expected(), problem.op, describe(c));
  }
}

TEST(BiasGradient, AgreesWithTheReferenceOnEveryInstructionSetAndThreadCount) {
  for (const std::int64_t columns : {1, 15, 64, 65, 300}) {
    for (const std::int64_t rows : {0, 1, 77}) {
      for (const DType dtype : {DType::fp32, DType::bf16}) {
        const std::vector<std::byte> dy = random_values(rows * columns, dtype, 5);
        std::vector<float> start(static_cast<std::size_t>(columns), 0.25F);
        BiasGradient op{dy.data(), nullptr, rows, columns, columns % 2 == 1, dtype};
        std::vector<float> expected = start, first;
        op.gradient = expected.data();
        reference(op);
        for (int isa = 0; isa <= static_cast<int>(best_cpu_isa()); ++isa) {
          for (const int threads : {1, 2, 5}) {
            const auto device = make_cpu_device({.threads = threads, .isa = static_cast<CpuIsa>(isa)});
            std::vector<float> result = start;
            op.gradient = result.data();
            device->launch(op);
            device->synchronize();
            if (first.empty()) first = result;
            EXPECT_EQ(std::memcmp(first.data(), result.data(), first.size() * sizeof(float)), 0);
            EXPECT_THAT(result, testing::Pointwise(testing::FloatNear(1e-5F), expected));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace holdfast
