// Tests what the emulator says about kernels for compute capability 9.0: a right one passes in every order of its
// threads, copies and products, and each mistake is found and named.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm_90a/warpgroup.h"
#include "runtime/core/tensor.h"
#include "runtime/device/cuda/trial.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/shared_memory.h"

namespace holdfast::test {
namespace {

using namespace kernels::cuda;

constexpr int size = 64;  // rows and columns of a tile: a box
constexpr unsigned tile_bytes = size * size * 2;
constexpr int steps = 5, stages = 2;
constexpr int producer_threads = 128, threads = producer_threads + warpgroup_threads;
constexpr int turn = 1;  // a named barrier

enum class Mistake {
  none,
  no_fence_of_barriers,
  waits_for_no_copy,
  waits_for_the_phase_before,
  waits_for_a_phase_that_never_comes,
  expects_too_little,
  expects_too_much,
  copies_before_it_expects,
  arrives_twice,
  reads_what_a_copy_writes,
  writes_what_a_copy_writes,
  gives_memory_away_early,
  writes_what_a_product_reads,
  uses_sums_early,
  changes_sums_early,
  never_waits_for_sums,
  names_no_sums,
  names_sums_in_flight,
  no_fence_of_products,
  one_warp_has_another_operand,
  leads_out_of_memory,
  no_swizzle,
  wrong_stride,
  not_transposed,
  copies_without_end,
  waits_at_a_barrier_alone,
};

// left: 64 x 64 steps. right: 64 steps x 64. Small integers: sums are exact, in whatever order.
struct Operands {
  std::vector<BFloat16> left, right;
  std::vector<float> expected = std::vector<float>(size * size);
  Operands() {
    for (int i = 0; i < size * size * steps; ++i) {
      left.push_back(to_bfloat16(static_cast<float>(i * 7 % 11 - 5)));
      right.push_back(to_bfloat16(static_cast<float>(i * 5 % 13 - 6)));
    }
    for (int row = 0; row < size; ++row) {
      for (int column = 0; column < size; ++column) {
        for (int k = 0; k < size * steps; ++k)
          expected[row * size + column] +=
              to_float(left[row * size * steps + k]) * to_float(right[k * size + column]);
      }
    }
  }
};

// The product by a producing thread and a consuming warpgroup, with a ring of stages between them.
class Kernel {
 public:
  Kernel(const Operands& operands, Mistake mistake) : mistake_(mistake), result_(size * size, 0.0F) {
    EXPECT_EQ(map_rows(left_, operands.left.data(), size * steps, size, 1, size), cudaSuccess);
    EXPECT_EQ(map_rows(right_, operands.right.data(), size, size * steps, 1, size), cudaSuccess);
  }
  std::vector<float> run(std::uint64_t order) {
    cuda_emulator::set_order(order);
    cuda_emulator::run_grid({.grid = {},
                             .block = {threads, 1, 1},
                             .shared_bytes = 2 * stages * tile_bytes + 8 * (2 * stages + 1)},
                            [this] { body(); });
    cuda_emulator::set_order(0);
    return result_;
  }

 private:
  bool is(Mistake mistake) const { return mistake_ == mistake; }
  static SharedAddress tile(int stage, int operand) {
    return shared_address(aligned_shared()) + (2 * stage + operand) * tile_bytes;
  }
  static SharedAddress barrier(int i) {
    return shared_address(aligned_shared()) + 2 * stages * tile_bytes + 8 * i;
  }
  static SharedAddress full(int stage) { return barrier(stage); }
  static SharedAddress empty(int stage) { return barrier(stages + stage); }

  void body() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages; ++i) {
        set_barrier(full(i), 1);
        set_barrier(empty(i), warpgroup_threads / 32);
      }
      if (!is(Mistake::no_fence_of_barriers)) fence_async_proxy();
    }
    __syncthreads();
    if (threadIdx.x < producer_threads) {
      give_registers<24>();
      if (threadIdx.x == 0) produce();
    } else {
      take_registers<240>();
      consume();
    }
  }

  void produce() {
    for (int step = 0; step < steps + (is(Mistake::copies_without_end) ? 1 : 0); ++step) {
      const int stage = step % stages;
      await_phase(empty(stage), static_cast<unsigned>(step / stages % 2) ^ 1U);
      unsigned bytes = 2 * tile_bytes;
      if (is(Mistake::expects_too_little)) bytes -= tile_bytes;
      if (is(Mistake::expects_too_much)) bytes += 128;
      if (!is(Mistake::copies_before_it_expects)) arrive_expecting(full(stage), bytes);
      copy_box(tile(stage, 0), left_, step * size, 0, 0, full(stage));
      copy_box(tile(stage, 1), right_, 0, step * size, 0, full(stage));
      if (is(Mistake::copies_before_it_expects)) arrive_expecting(full(stage), bytes);
      if (is(Mistake::arrives_twice)) arrive(full(stage));
      if (is(Mistake::writes_what_a_copy_writes)) tile(stage, 1)[tile_bytes - 2] = std::byte{1};
    }
  }

  std::uint64_t left_at(int stage, int k) const {
    const Swizzle swizzle = is(Mistake::no_swizzle) ? Swizzle::none : Swizzle::rows_of_128;
    const unsigned stride = is(Mistake::wrong_stride) ? 512 : 1024;
    return matrix_at(matrix_of(tile(stage, 0), 128, stride, swizzle), 32 * static_cast<unsigned>(k));
  }
  std::uint64_t right_at(int stage, int k) const {
    const unsigned stride = is(Mistake::leads_out_of_memory) ? 1 << 17 : 1024;
    return matrix_at(matrix_of(tile(stage, 1), 0, stride, Swizzle::rows_of_128),
                     2048 * static_cast<unsigned>(k));
  }

  void consume() {
    float sums[size / 8][4] = {};
    const bool second_warp = threadIdx.x / 32 == producer_threads / 32 + 1;
    for (int step = 0; step < steps; ++step) {
      const int stage = step % stages;
      const unsigned phase = static_cast<unsigned>(step / stages % 2);
      if (!is(Mistake::waits_for_no_copy))
        await_phase(full(stage), is(Mistake::waits_for_the_phase_before) ? phase ^ 1U : phase);
      if (is(Mistake::waits_for_a_phase_that_never_comes) && step + 1 == steps)
        await_phase(full(stage), phase ^ 1U);
      if (is(Mistake::reads_what_a_copy_writes))
        result_[0] += static_cast<float>(std::to_integer<int>(*tile(steps % stages, 0)));
      if (!is(Mistake::no_fence_of_products) || step == 0) fence_products();
      for (int k = 0; k < size / 16; ++k) {
        const int odd = is(Mistake::one_warp_has_another_operand) && second_warp ? 1 : 0;
        if (is(Mistake::not_transposed)) {
          multiply_shared<false>(sums, left_at(stage, k), right_at(stage, 0), true);
        } else {
          multiply_shared<true>(sums, left_at(stage, k ^ odd), right_at(stage, k), true);
        }
      }
      commit_products();
      if (is(Mistake::uses_sums_early)) sums[3][1] *= 2;
      if (is(Mistake::changes_sums_early)) sums[3][1] = 0;
      if (is(Mistake::writes_what_a_product_reads) && threadIdx.x == threads - 1)
        tile(stage, 0)[0] = std::byte{1};
      if (is(Mistake::gives_memory_away_early)) release(stage);
      if (is(Mistake::never_waits_for_sums) && step + 1 == steps) return;
      if (is(Mistake::names_sums_in_flight)) await_products<1>(sums);
      if (is(Mistake::names_no_sums)) await_products<0>();
      await_products<0>(sums);
      if (!is(Mistake::gives_memory_away_early)) release(stage);
    }
    if (is(Mistake::waits_at_a_barrier_alone) && second_warp) return;
    sync_threads(turn, warpgroup_threads);
    const MmaPlace place;
    for (int i = 0; i < size / 8 * 4; ++i)
      result_[(place.row + i / 2 % 2 * 8) * size + i / 4 * 8 + place.column + i % 2] = sums[i / 4][i % 4];
  }
  static void release(int stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(empty(stage));
  }
  // Of a thread's first element of a sum.
  struct MmaPlace {
    int row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    int column = static_cast<int>(threadIdx.x) % 4 * 2;
  };

  Mistake mistake_;
  std::vector<float> result_;
  CUtensorMap left_, right_;
};

class CudaHopper : public testing::Test {
 protected:
  void expect_sentence(Mistake mistake, const char* sentence, std::initializer_list<std::uint64_t> orders) {
    for (const std::uint64_t order : orders)
      EXPECT_DEATH(Kernel(operands_, mistake).run(order), sentence) << "order " << order;
  }
  const Operands operands_;
};

TEST_F(CudaHopper, ARightKernelIsRightInEveryOrder) {
  constexpr std::uint64_t orders = 60;
  for (std::uint64_t order = 0; order < orders; ++order)
    EXPECT_EQ(Kernel(operands_, Mistake::none).run(order), operands_.expected) << "order " << order;
}

TEST_F(CudaHopper, FindsMistakesWithBarriers) {
  expect_sentence(Mistake::no_fence_of_barriers, "initialisation was not followed by fence.proxy.async",
                  {0, 1, 2});
  expect_sentence(Mistake::waits_for_no_copy,
                  "a product reads shared memory at .* in flight will write: wait for mbarrier", {0, 2, 3});
  expect_sentence(Mistake::waits_for_the_phase_before,
                  "a product reads shared memory at .* in flight will write", {0, 2, 3});
  expect_sentence(
      Mistake::waits_for_a_phase_that_never_comes,
      "wait for each other.*parity 1 of mbarrier .* whose phase 3 lacks 1 of 1 arrivals and 0 bytes",
      {0, 1, 2});
  expect_sentence(Mistake::expects_too_little, "expects 8192 bytes too few", {0, 1, 2});
  expect_sentence(Mistake::copies_before_it_expects, "expects 8192 bytes too few", {0, 1, 2});
  expect_sentence(Mistake::expects_too_much, "wait for each other.*lacks 0 of 1 arrivals and 128 bytes",
                  {0, 1, 2});
  expect_sentence(Mistake::arrives_twice, "has its 1 arrivals of this phase", {0, 2});
  expect_sentence(Mistake::waits_at_a_barrier_alone, "named barrier 1, 96 of 128 threads", {0, 1, 2});
}

TEST_F(CudaHopper, FindsMemoryThatIsUsedWhileItIsInFlight) {
  expect_sentence(Mistake::reads_what_a_copy_writes,
                  "reads or writes shared memory at .*which a copy in flight will write", {0});
  expect_sentence(Mistake::writes_what_a_copy_writes,
                  "reads or writes shared memory at .*which a copy in flight will write", {0, 2, 3});
  expect_sentence(Mistake::gives_memory_away_early, "of which a product in flight reads", {0, 2, 3});
  expect_sentence(Mistake::writes_what_a_product_reads,
                  "was written before it was waited for|without fence.proxy.async", {0, 2, 3});
  expect_sentence(Mistake::copies_without_end, "ends while a copy of thread 0 to .* is in flight", {0});
}

TEST_F(CudaHopper, FindsSumsThatAreUsedWhileTheyAreInFlight) {
#if defined(__x86_64__)
  expect_sentence(Mistake::uses_sums_early, "uses an accumulator of a product .* that it has not waited for",
                  {0, 1, 2});
#endif
  expect_sentence(Mistake::changes_sums_early, "accumulator was changed while a product to it was in flight",
                  {0, 1, 2});
  expect_sentence(Mistake::never_waits_for_sums, "without waiting for its last product", {0, 1, 2});
  expect_sentence(Mistake::names_no_sums, "does not name sums of a product that it waits for", {0, 1, 2});
  expect_sentence(Mistake::names_sums_in_flight, "names sums of a product that it does not wait for",
                  {0, 1, 2});
  expect_sentence(Mistake::no_fence_of_products, "a product without wgmma.fence", {0, 1, 2});
  expect_sentence(Mistake::one_warp_has_another_operand, "its product differs from that of another thread",
                  {0, 1, 2});
}

TEST_F(CudaHopper, ABlockHasSoManyRegisters) {
  const auto take_all = [] {
    cuda_emulator::run_grid({.grid = {}, .block = {3 * warpgroup_threads, 1, 1}},
                            [] { take_registers<240>(); });
  };
  EXPECT_DEATH(take_all(), "threads of the block have .* registers together, and a block has 65536");
}

TEST_F(CudaHopper, AWrongLayoutGivesWrongNumbersOrASentence) {
  expect_sentence(Mistake::leads_out_of_memory, "a matrix descriptor of a product leads to", {0, 1, 2});
  for (const Mistake mistake : {Mistake::no_swizzle, Mistake::wrong_stride, Mistake::not_transposed})
    EXPECT_NE(Kernel(operands_, mistake).run(0), operands_.expected) << static_cast<int>(mistake);
}

// Left operands whose rows are neighbours in memory: the product of a tile's transpose and the tile.
TEST_F(CudaHopper, ALeftMatrixMayBeTransposed) {
  CUtensorMap map;
  ASSERT_EQ(map_rows(map, operands_.right.data(), size, size * steps, 1, size), cudaSuccess);
  std::vector<float> expected(size * size);
  for (int i = 0; i < size * size * size; ++i)
    expected[i / size] += to_float(operands_.right[i % size * size + i / size / size]) *
                          to_float(operands_.right[i % size * size + i / size % size]);
  // In warp `otherwise` the left operand is not transposed.
  const auto run = [&](bool transposed, unsigned otherwise, std::uint64_t order) {
    std::vector<float> result(size * size);
    cuda_emulator::set_order(order);
    const auto body = [&] {
      const SharedAddress tile = shared_address(aligned_shared()), arrived = tile + 2 * tile_bytes;
      if (threadIdx.x == 0) {
        set_barrier(arrived, 1);
        fence_async_proxy();
        arrive_expecting(arrived, tile_bytes);
        copy_box(tile, map, 0, 0, 0, arrived);
      }
      __syncthreads();
      await_phase(arrived, 0);
      float sums[size / 8][4];
      const std::uint64_t matrix = matrix_of(tile, 0, 1024, Swizzle::rows_of_128);
      fence_products();
      for (unsigned k = 0; k < size / 16; ++k) {
        const std::uint64_t rows = matrix_at(matrix, 2048 * k);
        if (transposed && threadIdx.x / 32 != otherwise) {
          multiply_shared<true, true>(sums, rows, rows, k > 0);
        } else {
          multiply_shared<true, false>(sums, rows, rows, k > 0);
        }
      }
      commit_products();
      await_products<0>(sums);
      const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
      for (int i = 0; i < size / 8 * 4; ++i)
        result[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * size + i / 4 * 8 + lane % 4 * 2 + i % 2] =
            sums[i / 4][i % 4];
    };
    cuda_emulator::run_grid(
        {.grid = {}, .block = {warpgroup_threads, 1, 1}, .shared_bytes = 2 * tile_bytes + 8}, body);
    cuda_emulator::set_order(0);
    return result;
  };
  constexpr unsigned none = 4;
  for (const std::uint64_t order : {0, 1, 2, 3}) EXPECT_EQ(run(true, none, order), expected) << order;
  EXPECT_NE(run(false, none, 0), expected);
  EXPECT_DEATH(run(true, 2, 0), "its product differs from that of another thread");
}

// Ordinary stores, which the asynchronous proxy sees after a fence alone.
TEST_F(CudaHopper, FindsStoresWithoutAFence) {
  const auto run = [](bool fence, std::uint64_t order) {
    cuda_emulator::set_order(order);
    cuda_emulator::run_grid({.grid = {}, .block = {warpgroup_threads, 1, 1}, .shared_bytes = 4096}, [&] {
      auto* const ones = reinterpret_cast<std::uint16_t*>(aligned_shared());
      for (unsigned i = threadIdx.x; i < 2048; i += warpgroup_threads) ones[i] = 0x3f80;
      if (fence) fence_async_proxy();
      __syncthreads();
      float sums[1][4] = {};
      const std::uint64_t matrix = matrix_of(shared_address(aligned_shared()), 128, 256, Swizzle::none);
      fence_products();
      multiply_shared<false>(sums, matrix, matrix, true);
      commit_products();
      await_products<0>(sums);
      EXPECT_EQ(sums[0][3], 16.0F);
    });
    cuda_emulator::set_order(0);
  };
  for (const std::uint64_t order : {0, 1, 2}) {
    run(true, order);
    EXPECT_DEATH(run(false, order), "has ordinary stores without fence.proxy.async after them") << order;
  }
}

// What holdfast check says of a GPU of compute capability 9.0.
TEST(CudaTrial, WarpgroupProductsAreRight) {
  cuda_emulator::set_compute_capability(90);
  const Result<std::string> tried = try_own_instructions(0);
  cuda_emulator::set_compute_capability(80);
  ASSERT_TRUE(tried.ok()) << tried.error().message;
  EXPECT_EQ(*tried, "sm_90a: warpgroup products are right");
}

}  // namespace
}  // namespace holdfast::test
