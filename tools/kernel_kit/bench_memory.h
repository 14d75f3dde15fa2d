// BenchMemory: the operands of a call that is measured, with numbers that nobody can know before, which change from call
// to call, so that a kernel that remembers results is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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
  using Given = std::span<const std::span<const std::byte>>;
  // Takes memory as trainers do. `given`: numbers that a run had in the arrays, by operand, instead of random ones; empty where
  // there are none. They outlive it. ExitCode::does_not_fit where there is no memory.
  static Result<std::unique_ptr<BenchMemory>> make(const OpSample& sample, Given given = {});

  const void* arguments() const { return call_.arguments(); }
  struct Array {
    Operand operand = {};
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool is_read = false, is_written = false;
    std::span<const std::byte> given = {};  // what a run had in it
    std::span<const std::byte> content() const { return {data, bytes}; }
  };
  const std::vector<Array>& arrays() const { return arrays_; }

  // Gives every array new numbers, also those that the op only writes; of given ones some are then exchanged, as by touch().
  void renew(QuickRandom& random);
  // Gives some numbers of every array others, at random places, which are alike in arrays that are alike.
  void touch(QuickRandom& random);
  // Gives the arrays that the op updates in place new numbers: calls in a row would drive them to any size.
  void renew_updated(QuickRandom& random);

  // Place is an element of an array.
  struct Place {
    std::size_t array = 0, byte = 0, count = 0;
  };
  // Some places where touch() has scrambled what the op writes, and what was there before; empty after renew().
  struct Scrambled {
    std::vector<Place> places = {};
    std::vector<std::byte> before = {};
  };
  const Scrambled& scrambled() const { return scrambled_; }
  void copy_from(const BenchMemory& other);
  // Takes all arrays out of the caches.
  void flush() const;

 private:
  BenchMemory(const OpSample& sample, Given given);
  void add(const void* pointer, const Operand& operand);
  void put(const Array& array, std::size_t index, QuickRandom& random) const;
  void renew(const Array& array, QuickRandom& random) const;
  void scramble(std::size_t index, std::span<const double> common, QuickRandom& random);
  void remember(std::size_t index, std::size_t byte, std::size_t count);

  std::int64_t tokens_below_;
  Given given_;
  std::size_t operands_ = 0;  // number of those that were added
  OpMemory memory_;
  OpCall call_;
  std::vector<Array> arrays_;
  Scrambled scrambled_;
};

}  // namespace holdfast::bench::kernel_kit
