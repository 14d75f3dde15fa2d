// Tests that run once for every implementation of an op in the registry, whoever registered it: a file that
// is dropped into kernels/cpu/custom is held to them without an edit here.
//
//   KERNEL_CASES(GeluMatchesReference, OpId::gelu_forward) {
//     expect_op(tensors, bind);  // tests/kernels/op_test.h: of the implementation under test, for its op
//   }
//
// They become tests named after op and implementation:
//
//   test_kernels --gtest_filter=gelu_forward.mine*     all builds: "mine", or "mine_avx2" where there are
//   several
//
// What takes long and says little more stands in LONG_KERNEL_CASES. Those of an op are a test of their own,
// gelu_forward.DISABLED_Long_mine, which tools/test --long runs.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/registry.h"
#include "runtime/device/device.h"

namespace holdfast::test {

// Where the implementations of a registry run, when it is not the CPU device. `variant` counts from 1: runs
// that must give the same bits, and may differ in what must not matter. The device is used at once.
using DeviceProvider = std::function<Device&(const Implementation& implementation, int variant)>;

// The implementation that a running KERNEL_CASES is about, with a device of each number of threads that was
// asked for: the cases share the devices, and so their scratch memory.
class UnderTest {
 public:
  UnderTest(const KernelRegistry& registry, const Implementation& implementation,
            const DeviceProvider& provider)
      : registry_(registry), implementation_(implementation), provider_(provider) {}

  const Implementation& implementation() const { return implementation_; }
  bool on_processor() const { return !provider_; }
  Device& device(int threads);  // or the variant of that number
  // To run it on: fewer for what is slow. The reference takes one thread of any number.
  std::span<const int> thread_counts() const;
  // "portable" of the same op, on one thread.
  Device& portable_device();

  // Expectations made; a test that makes none has seen none of its implementation.
  int checked = 0;

 private:
  const KernelRegistry& registry_;
  const Implementation& implementation_;
  const DeviceProvider provider_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Device> portable_;
};

// Null outside of KERNEL_CASES.
UnderTest*& under_test();

enum class CaseLength { usual, long_ };

// Adds a test to the program's list before main() runs; returns true.
bool add_kernel_cases(const char* name, CaseLength length, std::initializer_list<OpId> ops, void (*run)());

// Makes a test of every implementation of the registry that this processor runs, or of those of one name.
// Before RUN_ALL_TESTS(). `provider`: empty for the CPU. With `long_too` nothing is disabled: for a device
// that is fast.
void register_kernel_tests(const KernelRegistry& registry, std::string_view name = {},
                           const DeviceProvider& provider = {}, bool long_too = false);

#define HF_KERNEL_CASES(name, length, ...)                               \
  void name();                                                           \
  [[maybe_unused]] const bool name##_added =                             \
      add_kernel_cases(#name, CaseLength::length, {__VA_ARGS__}, &name); \
  void name()
#define KERNEL_CASES(name, ...) HF_KERNEL_CASES(name, usual, __VA_ARGS__)
#define LONG_KERNEL_CASES(name, ...) HF_KERNEL_CASES(name, long_, __VA_ARGS__)

}  // namespace holdfast::test
