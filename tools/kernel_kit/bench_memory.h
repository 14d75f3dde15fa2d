// BenchMemory: the operands of a call that is measured, with numbers that nobody can know before, which change from call
// to call, so that a kernel that remembers results is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/operand.h"
#include "runtime/core/result.h"
#include "runtime/measure/op_memory.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench::kernel_kit {

// QuickRandom makes numbers as fast as memory takes them (SplitMix64).
class QuickRandom {
 public:
  explicit QuickRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }
  std::uint64_t below(std::uint64_t count) { return next() % count; }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

class BenchMemory {
 public:
  // Takes memory as trainers do. ExitCode::does_not_fit where there is none.
  static Result<std::unique_ptr<BenchMemory>> make(const OpSample& sample);

  const void* arguments() const { return call_.arguments(); }
  struct Array {
    Operand operand = {};
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool is_read = false, is_written = false;
    std::span<const std::byte> content() const { return {data, bytes}; }
  };
  const std::vector<Array>& arrays() const { return arrays_; }

  // Gives every array new numbers, also those that the op only writes.
  void renew(QuickRandom& random);
  // Changes one number of each array that the op reads.
  void touch(QuickRandom& random);
  void copy_from(const BenchMemory& other);
  // Takes all arrays out of the caches.
  void flush() const;

 private:
  explicit BenchMemory(const OpSample& sample);
  void add(const void* pointer, const Operand& operand);
  void put(const Array& array, std::size_t index, QuickRandom& random) const;

  std::int64_t tokens_below_;
  OpMemory memory_;
  OpCall call_;
  std::vector<Array> arrays_;
};

}  // namespace holdfast::bench::kernel_kit
