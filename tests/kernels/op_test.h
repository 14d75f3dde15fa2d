// Harness of the kernel tests: runs each implementation of an op on the CPU device and compares it with the
// reference and, bit for bit, with itself on other numbers of threads; and gradients with finite differences.
//
//   std::vector<Values> tensors = {random_values(x_count, dtype, 1), Values(y_count, dtype)};
//   expect_op(tensors, [&](std::vector<Values>& t) {
//     return GeluForward{.x = t[0].data(), .y = t[1].data(), .count = x_count, .dtype = dtype};
//   });
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/tensor.h"
#include "runtime/device/device.h"
#include "tests/kernels/kernel_cases.h"

namespace holdfast::test {

// Where tensors lie: on the heap, unless a test program puts them where its device reaches them. To be set
// before the first of them is made.
struct TensorMemory {
  void* (*allocate)(std::size_t bytes);  // 64-byte aligned
  void (*release)(void* memory);
};
inline TensorMemory& tensor_memory() {
  static TensorMemory memory = {
      [](std::size_t bytes) { return ::operator new (bytes, std::align_val_t{64}); },
      [](void* block) { ::operator delete (block, std::align_val_t{64}); }};
  return memory;
}

template <typename T>
struct TensorAllocator {
  using value_type = T;
  T* allocate(std::size_t count) { return static_cast<T*>(tensor_memory().allocate(count * sizeof(T))); }
  void deallocate(T* block, std::size_t) { tensor_memory().release(block); }
  bool operator==(const TensorAllocator&) const = default;
};

// Memory of one tensor with its type. Guarded: elements past the end must still be as made when the op is
// done. Starts in the middle of a cache line, because no kernel may count on more than an element's
// alignment.
class Values {
 public:
  Values(std::int64_t count, DType dtype)
      : count_(count), dtype_(dtype), lines_(byte_count() / sizeof(Line) + 3) {
    std::memset(bytes() + byte_count(), guard, guard_bytes);
  }

  std::int64_t count() const { return count_; }
  DType dtype() const { return dtype_; }
  std::size_t byte_count() const { return static_cast<std::size_t>(count_) * bytes_of(dtype_); }
  void* data() { return bytes(); }
  const void* data() const { return bytes(); }
  template <typename T>
  T* as() {
    return static_cast<T*>(data());
  }
  // From now on starts where a cache line does: some kernels then take another way.
  void move_to_cache_line() { move_to(0); }
  // From now on starts at an element that no wide access can start at.
  void move_off_alignment() { move_to(16 + bytes_of(dtype_)); }

  double operator[](std::int64_t i) const {
    switch (dtype_) {
      case DType::fp32:
        return static_cast<double>(element<float>(i));
      case DType::bf16:
        return static_cast<double>(to_float(element<BFloat16>(i)));
      case DType::int32:
        return static_cast<double>(element<std::int32_t>(i));
      case DType::fp64:
        return element<double>(i);
    }
    return 0;
  }
  void set(std::int64_t i, double value) {
    switch (dtype_) {
      case DType::fp32:
        put(i, static_cast<float>(value));
        break;
      case DType::bf16:
        put(i, to_bfloat16(static_cast<float>(value)));
        break;
      case DType::int32:
        put(i, static_cast<std::int32_t>(value));
        break;
      case DType::fp64:
        put(i, value);
        break;
    }
  }
  bool same_bits(const Values& other) const {
    return byte_count() == other.byte_count() && std::memcmp(data(), other.data(), byte_count()) == 0;
  }
  bool guard_intact() const {
    const std::byte* end = bytes() + byte_count();
    return std::all_of(end, end + guard_bytes, [](std::byte b) { return b == std::byte{guard}; });
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static constexpr std::size_t guard_bytes = 64;
  static constexpr unsigned char guard = 0xa5;

  std::byte* bytes() { return reinterpret_cast<std::byte*>(lines_.data()) + offset_; }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(lines_.data()) + offset_; }

  void move_to(std::size_t offset) {
    std::memmove(reinterpret_cast<std::byte*>(lines_.data()) + offset, data(), byte_count() + guard_bytes);
    offset_ = offset;
  }

  template <typename T>
  T element(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  void put(std::int64_t i, T value) {
    std::memcpy(bytes() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }

  std::int64_t count_;
  DType dtype_;
  std::size_t offset_ = 16;
  std::vector<Line, TensorAllocator<Line>> lines_;
};

using Tensors = std::vector<Values>;

// Uniform in [-scale, scale) from (seed, index).
inline double random_at(std::uint64_t seed, std::int64_t index) {
  std::uint64_t z = seed * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(index) + 1;  // splitmix64
  for (const std::uint64_t factor : {0xbf58476d1ce4e5b9U, 0x94d049bb133111ebU, 0x9e3779b97f4a7c15U}) {
    z = (z ^ (z >> 30)) * factor;
  }
  return static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
}
inline Values random_values(std::int64_t count, DType dtype, std::uint64_t seed, double scale = 1.0) {
  Values values(count, dtype);
  for (std::int64_t i = 0; i < count; ++i) values.set(i, scale * random_at(seed, i));
  return values;
}
// Integers in [0, limit).
inline Values random_tokens(std::int64_t count, std::int64_t limit, std::uint64_t seed) {
  Values values(count, DType::int32);
  for (std::int64_t i = 0; i < count; ++i) {
    values.set(i, std::floor((random_at(seed, i) + 1.0) / 2.0 * static_cast<double>(limit)));
  }
  return values;
}

inline std::vector<CpuIsa> available_isas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512}) {
    if (isa <= best_cpu_isa()) isas.push_back(isa);
  }
  return isas;
}

// Devices are made once per test program: several tests then also share one device's scratch memory.
inline Device& device_of(int threads, CpuIsa isa) {
  static std::map<std::pair<int, CpuIsa>, std::unique_ptr<Device>> devices;
  std::unique_ptr<Device>& device = devices[{threads, isa}];
  if (device == nullptr) device = make_cpu_device({.threads = threads, .isa = isa});
  return *device;
}

template <typename Bind>
Tensors run_op(const Tensors& tensors, const Bind& bind, int threads, CpuIsa isa) {
  Tensors result = tensors;
  Device& device = device_of(threads, isa);
  device.launch(bind(result));
  device.synchronize();
  return result;
}

template <typename Bind>
Tensors run_reference(const Tensors& tensors, const Bind& bind) {
  Tensors result = tensors;
  reference(bind(result));
  return result;
}

struct OpLimits {
  double tolerance = 2e-6;            // relative to the largest value of a tensor
  double bf16_tolerance = 1.0 / 256;  // of bf16 tensors, if it is more: one rounding
};

// Every element within the tolerance times the largest value of the tensor.
inline void expect_close(const Values& actual, const Values& expected, const OpLimits& limits,
                         const std::string& what) {
  ASSERT_EQ(actual.count(), expected.count()) << what;
  double largest = 0;
  for (std::int64_t i = 0; i < expected.count(); ++i) largest = std::max(largest, std::abs(expected[i]));
  const double limit =
      largest * (expected.dtype() == DType::bf16 ? std::max(limits.tolerance, limits.bf16_tolerance)
                                                 : limits.tolerance);
  for (std::int64_t i = 0; i < expected.count(); ++i) {
    ASSERT_LE(std::abs(actual[i] - expected[i]), limit)
        << what << ", element " << i << ": " << actual[i] << ", expected " << expected[i];
  }
}

template <typename Bind>
Tensors run_on(Device& device, const Tensors& tensors, const Bind& bind) {
  Tensors result = tensors;
  device.launch(bind(result));
  device.synchronize();
  return result;
}

// Inside KERNEL_CASES. Runs the implementation under test, if it is one of this op and supports the
// arguments, on every number of threads of thread_counts(): close to the reference (tensors the reference
// does not write must not change), and the same bits each time; those of "portable" where it says so.
// `bind(tensors)` makes the op from a set of tensors.
template <typename Bind>
void expect_op(const Tensors& tensors, const Bind& bind, const OpLimits& limits = {}) {
  HF_CHECK(under_test() != nullptr, "expect_op() outside of KERNEL_CASES");
  UnderTest& subject = *under_test();
  const Implementation& implementation = subject.implementation();
  Tensors probe = tensors;
  const auto op = bind(probe);
  if (implementation.op != op.id) return;
  if (implementation.supports != nullptr && !implementation.supports(&op)) return;
  ++subject.checked;
  const Tensors expected = run_reference(tensors, bind);
  Tensors first;
  if (implementation.same_bits_as_portable) first = run_on(subject.portable_device(), tensors, bind);
  for (const int threads : subject.thread_counts()) {
    const Tensors actual = run_on(subject.device(threads), tensors, bind);
    for (std::size_t t = 0; t < actual.size(); ++t) {
      const std::string what = std::to_string(threads) + " threads, tensor " + std::to_string(t);
      ASSERT_TRUE(actual[t].guard_intact()) << what << ": written past the end";
      if (threads == 1) expect_close(actual[t], expected[t], limits, what);
      ASSERT_TRUE(first.empty() || actual[t].same_bits(first[t])) << what << ": other bits";
    }
    if (testing::Test::HasFatalFailure()) return;
    if (first.empty()) first = actual;
  }
}

// Inside KERNEL_CASES, where the values themselves are looked at: the result of the implementation under
// test, or nothing when it is not one of this op.
template <typename Bind>
std::optional<Tensors> run_under_test(const Tensors& tensors, const Bind& bind, int threads = 1) {
  Tensors probe = tensors;
  const auto op = bind(probe);
  const Implementation& implementation = under_test()->implementation();
  if (implementation.op != op.id) return std::nullopt;
  if (implementation.supports != nullptr && !implementation.supports(&op)) return std::nullopt;
  ++under_test()->checked;
  return run_on(under_test()->device(threads), tensors, bind);
}

// Inside KERNEL_CASES: the bits are the same wherever the tensors lie.
template <typename Bind>
void expect_same_bits_anywhere(const Tensors& tensors, const Bind& bind) {
  const std::optional<Tensors> here = run_under_test(tensors, bind);
  if (!here) return;
  Tensors moved = tensors;
  for (Values& tensor : moved) tensor.move_off_alignment();
  const std::optional<Tensors> there = run_under_test(moved, bind);
  for (std::size_t t = 0; t < tensors.size(); ++t)
    EXPECT_TRUE((*there)[t].same_bits((*here)[t])) << "tensor " << t;
}

// Sum of a[i] * b[i].
inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) sum += a[i] * b[i];
  return sum;
}

// `gradient` is d loss / d input: compared with central differences at about `samples` elements. `loss`
// evaluates a forward reference that reads `input`; fp32 storage limits the accuracy, so steps are large.
inline void expect_gradient(Values& input, const Values& gradient, const std::function<double()>& loss,
                            double step = 1e-2, double tolerance = 2e-3, std::int64_t samples = 64) {
  ASSERT_EQ(input.count(), gradient.count());
  double largest = 0;
  for (std::int64_t i = 0; i < gradient.count(); ++i) largest = std::max(largest, std::abs(gradient[i]));
  ASSERT_GT(largest, 0) << "a gradient of zeros shows nothing";
  const std::int64_t stride = std::max<std::int64_t>(1, input.count() / samples);
  for (std::int64_t i = 0; i < input.count(); i += stride) {
    const double middle = input[i];
    input.set(i, middle + step);
    const double high = input[i];
    const double loss_high = loss();
    input.set(i, middle - step);
    const double low = input[i];
    const double loss_low = loss();
    input.set(i, middle);
    EXPECT_NEAR(gradient[i], (loss_high - loss_low) / (high - low), tolerance * largest) << "element " << i;
  }
}

}  // namespace holdfast::test
