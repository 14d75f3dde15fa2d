// Products with known results: right on every device, and wrong where the device is broken.
#include "runtime/integrity/product_check.h"

#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "runtime/device/device.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

class ProductTestTest : public testing::Test {
 protected:
  void note(const Matmul& op) { test.launched(Matmul::id, &op); }
  void note_all(DType dtype) {
    // The derivative and the residual are left out of the test.
    note({.gelu_of = this, .m = 48, .n = 80, .k = 72, .transpose_b = true, .dtype = dtype, .dtype_c = dtype});
    note({.residual = this, .m = 33, .n = 17, .k = 130, .dtype = dtype, .dtype_c = dtype});
    note({.m = 40, .n = 24, .k = 56, .transpose_a = true, .accumulate = true, .dtype = dtype});
  }
  void use(Device& device) {
    MemoryPlan plan;
    access.emplace(device, plan);
    const MemoryPlan::Slot slot = plan.reserve("scratch", MemoryClass::workspace, 64 << 10);
    arena = allocate_memory(device, plan).value();
    access->bind(arena);
    place.emplace(ProductTest::Place{
        .device = device, .access = *access, .scratch = arena.bytes(slot), .wait = [&device] {
          device.synchronize();
        }});
  }

  void run(std::uint64_t step) {
    paces = 0;
    test.run(*place, step, [this] { ++paces; });
  }

  ProductTest test;
  int paces = 0;
  MemoryArena arena;
  std::optional<HostAccess> access;
  std::optional<ProductTest::Place> place;
};

TEST_F(ProductTestTest, EveryShapeIsNotedOnce) {
  note_all(DType::bf16);
  note_all(DType::bf16);
  EXPECT_EQ(test.shapes(), 3U);
  note_all(DType::fp32);
  EXPECT_EQ(test.shapes(), 6U);
  note({.m = 1 << 14, .n = 1 << 14, .k = 8});
  note({.m = 8, .n = 8, .k = 1 << 20});
  EXPECT_EQ(test.shapes(), 6U) << "too large";
}

TEST_F(ProductTestTest, AProcessorThatIsRightIsFoundRight) {
  note_all(DType::fp32);
  note_all(DType::bf16);
  for (const CpuIsa isa : {CpuIsa::portable, best_cpu_isa()}) {
    const std::unique_ptr<Device> device = make_cpu_device({.threads = 2, .isa = isa});
    use(*device);
    run(4);
    EXPECT_FALSE(test.finding().has_value()) << test.finding()->shape;
    EXPECT_EQ(paces, 6);
    for (const std::byte each : place->scratch) ASSERT_EQ(each, std::byte{0});
  }
}

TEST_F(ProductTestTest, AWrongProductIsFoundAndToldFromOneThatStaysWrong) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    test = {};
    note_all(dtype);
    const std::unique_ptr<Device> device = make_cpu_device({});
    use(*device);
    device->launch_fault(DeviceFault::wrong_product);
    run(8);
    ASSERT_TRUE(test.finding().has_value());
    EXPECT_FALSE(test.finding()->lasts);
    EXPECT_EQ(test.finding()->right_step, 0U);
    EXPECT_EQ(paces, 1);
    device->launch_fault(DeviceFault::wrong_products);
    run(9);
    ASSERT_TRUE(test.finding().has_value());
    EXPECT_TRUE(test.finding()->lasts);
    EXPECT_EQ(test.finding()->right_step, 8U) << "at the second try";
    EXPECT_THAT(test.finding()->shape, HasSubstr("of 48 x 72 by 72 x 80 numbers in "));
    test.forget();
    EXPECT_FALSE(test.finding().has_value());
  }
}

TEST(SmallProduct, TellsARightDeviceFromAWrongOne) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const std::unique_ptr<Device> device = make_cpu_device({});
    const Result<void> right = try_product(*device, dtype);
    EXPECT_TRUE(right.ok()) << right.error().message;
    device->launch_fault(DeviceFault::wrong_products);
    const Result<void> wrong = try_product(*device, dtype);
    ASSERT_FALSE(wrong.ok());
    EXPECT_EQ(wrong.error().code, ExitCode::config);
    EXPECT_EQ(wrong.error().reach, Reach::host);
    EXPECT_THAT(
        wrong.error().message,
        testing::AllOf(HasSubstr("computes wrong numbers: a product of 128 x 128 by 128 x 128 numbers in "),
                       HasSubstr("and again when it is made again")));
  }
}

TEST_F(ProductTestTest, AUnitThatOnlyOneShapeUsesIsFound) {
  note_all(DType::fp32);
  const std::unique_ptr<Device> device = make_cpu_device({});
  use(*device);
  run(5);
  EXPECT_FALSE(test.finding().has_value());
  std::vector<float> numbers(2400, 1.0F);
  device->launch_fault(DeviceFault::wrong_products);
  device->launch(Matmul{.a = numbers.data(),
                        .b = numbers.data(),
                        .c = numbers.data(),
                        .m = 40,
                        .n = 24,
                        .k = 56,
                        .lda = 40,
                        .ldb = 24,
                        .ldc = 24,
                        .transpose_a = true,
                        .accumulate = true});
  run(9);
  ASSERT_TRUE(test.finding().has_value());
  EXPECT_TRUE(test.finding()->lasts);
  EXPECT_EQ(test.finding()->right_step, 5U);
  EXPECT_THAT(test.finding()->shape, HasSubstr("of 40 x 56 by 56 x 24 numbers in fp32"));
}

TEST_F(ProductTestTest, AShapeThatDoesNotFitIsLeftOut) {
  note({.m = 256, .n = 256, .k = 256});
  const std::unique_ptr<Device> device = make_cpu_device({});
  use(*device);
  device->launch_fault(DeviceFault::wrong_products);
  run(1);
  EXPECT_FALSE(test.finding().has_value());
}

}  // namespace
}  // namespace holdfast::test
