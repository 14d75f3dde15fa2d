// What planning a product on cuBLASLt makes, and running it does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <set>

#include "kernels/cuda/matmul_cache.h"
#include "kernels/matmul.h"
#include "kernels/optimizer.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

using cuda_emulator::made;

Matmul weight_gradient(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
  return {.m = m,
          .n = n,
          .k = k,
          .lda = m,
          .ldb = n,
          .ldc = n,
          .transpose_a = true,
          .accumulate = true,
          .dtype = dtype};
}

std::unique_ptr<Device> cuda_device() {
  Result<std::unique_ptr<Device>> made = make_cuda_device({});
  HF_CHECK(made.ok(), "{}", made.error().message);
  return std::move(made).value();
}

TEST(CudaMatmul, APlannedProductMakesNothingWhenItRuns) {
  const std::unique_ptr<Device> device = cuda_device();
  const Matmul split = weight_gradient(32, 48, 4096, DType::bf16);  // its parts need workspace
  const Matmul odd = weight_gradient(33, 47, 70, DType::bf16);      // the library has nothing for it
  device->begin_planning();
  for (const Matmul& op : {split, odd, split}) device->launch(op);
  ASSERT_TRUE(device->end_planning().ok());
  EXPECT_EQ(device->workspace_bytes(), 4U * 32 * 48 * sizeof(float));

  Values a = random_values(4096 * 48, DType::bf16, 1), c(48 * 48, DType::fp32);
  device->launch(Matmul{});  // the first mark of an event
  device->synchronize();
  const auto before = made().counts();
  EXPECT_GE(before.heuristics, 2U);
  for (Matmul op : {split, odd, split}) {
    op.a = op.b = a.data();
    op.c = c.data();
    device->launch(op);
  }
  device->synchronize();
  EXPECT_EQ(made().counts(), before);
}

TEST(CudaMatmul, TheSameShapeIsAskedForOnce) {
  Result<std::unique_ptr<cuda::MatmulCache>> cache = cuda::MatmulCache::make();
  ASSERT_TRUE(cache.ok());
  const ProductShape shape = product_shape(weight_gradient(32, 48, 4096, DType::bf16));
  ProductShape other = shape;
  other.accumulate = false;
  EXPECT_EQ((*cache)->find(shape), nullptr);
  const auto before = made().counts();
  const cuda::Product& product = (*cache)->product(shape);
  EXPECT_EQ(&(*cache)->product(shape), &product);
  EXPECT_EQ((*cache)->find(shape), &product);
  EXPECT_NE(&(*cache)->product(other), &product);
  EXPECT_EQ(made().counts().heuristics, before.heuristics + 2);
}

// Split sums are never added in the order in which blocks arrive; the emulated library would prefer that.
TEST(CudaMatmul, TheChosenAlgorithmsAreWrittenDown) {
  const std::unique_ptr<Device> device = cuda_device();
  device->begin_planning();
  device->launch(weight_gradient(33, 47, 70, DType::bf16));
  device->launch(weight_gradient(32, 48, 4096, DType::bf16));
  ASSERT_TRUE(device->end_planning().ok());
  EXPECT_EQ(device->plan_description(),
            "m 32 n 48 k 4096 lda 32 ldb 48 ldc 48 TN accumulate bf16 -> fp32: algorithm 1 tile 0 stages 0 "
            "splits 4 reduction 2 swizzle 0 custom 0 inner 0 cluster 0\n"
            "m 33 n 47 k 70 lda 33 ldb 47 ldc 47 TN accumulate bf16 -> fp32: none");
}

std::string plan_with(const std::string& text, const std::string& algorithm) {
  const std::unique_ptr<Device> device = cuda_device();
  device->prefer_plan(algorithms_of(text + ": " + algorithm));
  device->begin_planning();
  device->launch(weight_gradient(32, 48, 4096, DType::bf16));
  EXPECT_TRUE(device->end_planning().ok());
  return device->plan_description();
}

TEST(CudaMatmul, TakesTheAlgorithmsOfAPlan) {
  const std::string shape = plan_shape(product_shape(weight_gradient(32, 48, 4096, DType::bf16)));
  const std::string rest = " swizzle 0 custom 0 inner 0 cluster 0";
  const std::string wanted = "algorithm 2 tile 0 stages 0 splits 3 reduction 2" + rest;
  EXPECT_EQ(plan_with(shape, wanted), shape + ": " + wanted);
  EXPECT_EQ(plan_with(shape, "none"), shape + ": none");  // the own kernel
  const std::string chosen = shape + ": algorithm 1 tile 0 stages 0 splits 4 reduction 2" + rest;
  EXPECT_EQ(plan_with("m 1 n 1 k 1", wanted), chosen) << "a plan of other shapes";
  for (const std::string& other : {
           "algorithm 99 tile 0 stages 0 splits 1 reduction 0" + rest,  // not of this library
           "algorithm 1 tile 7 stages 0 splits 1 reduction 0" + rest,
           "algorithm 1 tile 0 stages 0 splits 9999 reduction 2" + rest,
           "algorithm 1 tile 0 stages 0 splits 2 reduction 1" + rest,  // in place
           "algorithm ? tile 0 stages 0 splits 1 reduction 0" + rest,
           std::string("algorithm 1 tile 0"),
           std::string(
               "algorithm 1 tile 0 stages 0 splits 1 reduction 0 swizzle 0 custom 0 inner 0 cluster 0 x"),
       }) {
    EXPECT_EQ(plan_with(shape, other), chosen) << other;
  }
}

TEST(CudaMatmul, OffersSumsInPartsBesideItsChoice) {
  const std::unique_ptr<Device> device = cuda_device();
  const Matmul product = weight_gradient(32, 48, 512, DType::bf16);
  device->begin_planning();
  device->launch(product);
  ASSERT_TRUE(device->end_planning().ok());
  const std::vector<std::string> algorithms = device->algorithms_for(product);
  ASSERT_THAT(algorithms, testing::SizeIs(testing::Gt(3)));
  EXPECT_THAT(device->plan_description(), testing::EndsWith(": " + algorithms.front()));
  EXPECT_THAT(algorithms, testing::Contains(testing::HasSubstr("splits 3 reduction 2")));
  EXPECT_THAT(algorithms, testing::Not(testing::Contains(testing::HasSubstr("reduction 1"))));
  EXPECT_EQ(std::set(algorithms.begin(), algorithms.end()).size(), algorithms.size());
}

// In bf16 the library multiplies by GELU's derivative, where the rows of its input begin at 16 bytes; in fp32 its
// product is as any other.
TEST(CudaMatmul, TheLibraryTakesTheDerivativeOfGelu) {
  const std::unique_ptr<Device> device = cuda_device();
  alignas(16) const char somewhere = 0;
  const auto gradient = [&somewhere](std::int64_t n, DType dtype) {
    return Matmul{.gelu_of = &somewhere,
                  .m = 32,
                  .n = n,
                  .k = 64,
                  .lda = 64,
                  .ldb = n,
                  .ldc = n,
                  .dtype = dtype,
                  .dtype_c = dtype};
  };
  device->begin_planning();
  device->launch(gradient(48, DType::bf16));
  device->launch(gradient(48, DType::fp32));
  device->launch(gradient(44, DType::bf16));
  ASSERT_TRUE(device->end_planning().ok());
  const std::string what = " tile 0 stages 0 splits 1 reduction 0 swizzle 0 custom 0 inner 0 cluster 0\n";
  EXPECT_EQ(device->plan_description(),
            "m 32 n 44 k 64 lda 64 ldb 44 ldc 44 NN gelu bf16 -> bf16: none\n"
            "m 32 n 48 k 64 lda 64 ldb 48 ldc 48 NN gelu bf16 -> bf16: algorithm 1" +
                what + "m 32 n 48 k 64 lda 64 ldb 48 ldc 48 NN gelu fp32 -> fp32: algorithm 1" +
                what.substr(0, what.size() - 1));
  EXPECT_THAT(device->slow_paths(),
              testing::ElementsAre(testing::HasSubstr("has no algorithm for it (32 x 44 x 64 bf16)")));

  // An input that begins elsewhere is for the own kernel.
  Values a = random_values(32 * 64, DType::bf16, 1), b = random_values(64 * 48, DType::bf16, 2);
  Values input = random_values(32 * 48 + 1, DType::bf16, 3, 4.0);
  for (const std::int64_t first : {0, 1}) {
    Values c(32 * 48, DType::bf16), expected(32 * 48, DType::bf16);
    Matmul op = gradient(48, DType::bf16);
    op.a = a.data();
    op.b = b.data();
    op.gelu_of = input.as<BFloat16>() + first;
    op.c = c.data();
    device->launch(op);
    device->synchronize();
    op.c = expected.data();
    reference(op);
    expect_close(c, expected, {.tolerance = 5e-3}, "c");
  }
}

// A cuBLASLt that is newer than this program may say anything, and the program goes on.
class CudaMatmulOfAnotherLibrary : public testing::Test {
 protected:
  ~CudaMatmulOfAnotherLibrary() override { cuda_emulator::library_quirks() = {}; }

  std::string plan_of(const cuda_emulator::LibraryQuirks& quirks) {
    cuda_emulator::library_quirks() = quirks;
    device_ = cuda_device();
    device_->begin_planning();
    device_->launch(weight_gradient(64, 48, 512, DType::bf16));
    EXPECT_TRUE(device_->end_planning().ok());
    return device_->plan_description();
  }
  void expect_right_product() {
    Values a = random_values(512 * 64, DType::bf16, 1), b = random_values(512 * 48, DType::bf16, 2);
    Values c(64 * 48, DType::fp32), expected(64 * 48, DType::fp32);
    Matmul op = weight_gradient(64, 48, 512, DType::bf16);
    op.a = a.data();
    op.b = b.data();
    op.c = c.data();
    device_->launch(op);
    device_->synchronize();
    op.c = expected.data();
    reference(op);
    expect_close(c, expected, {.tolerance = 1e-5}, "c");
  }

  std::unique_ptr<Device> device_;
};

TEST_F(CudaMatmulOfAnotherLibrary, TakesTheFirstAnswerWhoseSumsHaveAnOrder) {
  EXPECT_THAT(plan_of({.in_place_sums_first = true}), testing::HasSubstr("reduction 0"));
  EXPECT_THAT(device_->slow_paths(), testing::IsEmpty());
  expect_right_product();
}

TEST_F(CudaMatmulOfAnotherLibrary, TakesTheOwnKernelWhereNoneHas) {
  EXPECT_THAT(plan_of({.in_place_sums_alone = true}), testing::HasSubstr(": none"));
  EXPECT_THAT(device_->slow_paths(),
              testing::ElementsAre(testing::HasSubstr("in an order that is not known (64 x 48 x 512 bf16)")));
  expect_right_product();
}

TEST_F(CudaMatmulOfAnotherLibrary, UnknownAttributesAreShownAsSuch) {
  EXPECT_THAT(plan_of({.reports_sums_alone = true}),
              testing::HasSubstr("algorithm ? tile ? stages ? splits ? reduction 0 swizzle ?"));
  expect_right_product();
}

TEST_F(CudaMatmulOfAnotherLibrary, WhatTellsNothingIsNotBelieved) {
  EXPECT_THAT(plan_of({.reports_nothing = true}), testing::HasSubstr(": none"));
  expect_right_product();
}

TEST_F(CudaMatmulOfAnotherLibrary, ARefusedQuestionIsAReasonToTakeTheOwnKernel) {
  EXPECT_THAT(plan_of({.refuses_preferences = true}), testing::HasSubstr(": none"));
  EXPECT_THAT(device_->slow_paths(), testing::ElementsAre(testing::HasSubstr("refused a preference")));
  expect_right_product();
}

// Its table is in the GPU's memory, which ends a host that reads it.
TEST(CudaDevice, PlanningReadsNoMemoryOfAnOp) {
  void* const unreadable = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(unreadable, MAP_FAILED);
  const std::unique_ptr<Device> device = cuda_device();
  device->begin_planning();
  device->launch(AdamW{.tensors = static_cast<const OptimizerTensor*>(unreadable), .tensor_count = 3});
  EXPECT_TRUE(device->end_planning().ok());
  munmap(unreadable, 4096);
}

// A slice that starts where the library was not told that it may: the own kernel, with the right result.
TEST(CudaMatmul, TakesAddressesOfAnyAlignment) {
  const std::unique_ptr<Device> device = cuda_device();
  Values a = random_values(64 * 65, DType::bf16, 1), b = random_values(64 * 64, DType::bf16, 2);
  Values c(64 * 64, DType::fp32), expected(64 * 64, DType::fp32);
  Matmul op = weight_gradient(64, 64, 64, DType::bf16);
  op.a = a.as<BFloat16>() + 1;
  op.b = b.data();
  op.c = c.data();
  device->launch(op);
  device->synchronize();
  op.c = expected.data();
  reference(op);
  expect_close(c, expected, {.tolerance = 1e-5}, "c");
}

// Growing waits for what is on the stream; the op that wanted more is put there afterwards.
TEST(CudaDevice, WaitsForAnOpThatMadeTheWorkspaceGrow) {
  const std::unique_ptr<Device> device = cuda_device();
  Values a = random_values(4096 * 48, DType::bf16, 1), b = random_values(4096 * 48, DType::bf16, 2);
  for (const std::int64_t n : {8, 16, 48}) {
    Values c(48 * n, DType::fp32), expected(48 * n, DType::fp32);
    Matmul op = weight_gradient(48, n, 4096, DType::bf16);
    op.a = a.data();
    op.b = b.data();
    op.c = c.data();
    device->launch(op);
    device->synchronize();
    op.c = expected.data();
    reference(op);
    expect_close(c, expected, {.tolerance = 1e-5}, "c");
  }
}

TEST(CudaDevice, NamesTheLibraryThatDecidesBits) {
  EXPECT_THAT(cuda_device()->description(), testing::HasSubstr("cuBLASLt 13.1.0"));
}

}  // namespace
}  // namespace holdfast::test
