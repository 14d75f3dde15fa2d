// Faults that tests inject into the numbers and the devices of a rank: fault points request them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace holdfast::core {

enum class NumberMemory : std::uint8_t {
  weights,             // owned master weights, frozen ones included
  moment1,             // owned first moments
  moment2,             // owned second moments
  ema,                 // owned averages of the weights, where the run has some
  parameters,          // parameters that the model of this rank computes with, those of other owners included
  lane_gradients,      // gradients of one lane of this rank, before they are reduced
  received_gradients,  // gradients of a lane of another rank that have just arrived, before they are added
  summed_gradients,    // owned gradients, summed over all lanes, which the update reads
  activations,         // an activation at the boundary of the stage, between forward and backward
  run_state,           // words of the state that is no tensor: the step, the position in the data
};

// NumberChange says what becomes of a number. These are the classes that were measured on GPUs with faults.
enum class NumberChange : std::uint8_t {
  flip,        // a bit is flipped, or several
  to_nan,      // a quiet NaN
  stuck_at_0,  // a bit is 0, whatever it was
  stuck_at_1,
};

// Corruption: a wrong number in the memory of a rank. The worker, which knows the memory, makes it
// (runtime/train/corruption.h).
struct Corruption {
  NumberMemory memory = NumberMemory::weights;
  NumberChange change = NumberChange::flip;
  // Bit from the least significant one, modulo the bits of the element. None: drawn.
  std::optional<std::uint64_t> bit = {};
  // Element among all of this memory on this rank, modulo their number. None: drawn.
  std::optional<std::uint64_t> element = {};
  std::uint64_t bits = 1;  // number of bits of the number that flip; which is drawn
  std::uint64_t numbers =
      1;  // that are changed in the same way, from `element` to the end of the memory at most
  std::uint64_t stride = 1;  // elements from one of them to the next
  std::uint64_t draw = 0;    // number from which bit and element are drawn where they are left out
};

// Describes the first number that a corruption has changed.
struct CorruptedNumber {
  std::string tensor = {};     // name of the tensor, or of the buffer
  std::uint64_t element = 0;   // among all of the memory on this rank, as Corruption::element
  std::uint64_t bit = 0;       // the lowest bit that it is about; 0 with a NaN
  std::string old_value = {};  // in decimal; text, because numbers of JSON are finite
  std::string new_value = {};
  std::uint64_t numbers = 0;  // that have changed: where a bit is stuck those are fewer, or none

  static void visit_fields(auto& self, auto&& visit) {
    visit("tensor", self.tensor);
    visit("element", self.element);
    visit("bit", self.bit);
    visit("old_value", self.old_value);
    visit("new_value", self.new_value);
    visit("numbers", self.numbers);
  }
};

// DeviceFault: the ways in which a kernel breaks its device or computes wrong numbers, for tests: fault
// points request them and devices perform them.
enum class DeviceFault {
  trap,             // the kernel is aborted: cudaErrorLaunchFailure
  illegal_address,  // it reads unmapped memory: cudaErrorIllegalAddress
  endless,          // it never ends, and later work in the queue never runs
  wrong_product,    // the next matrix product has an error in one tile of its result
  wrong_products,   // the same, and every later product of that shape, as of a broken unit
};

// Returns whether the fault leaves the device usable and makes its numbers wrong.
constexpr bool is_wrong_product(DeviceFault fault) {
  return fault == DeviceFault::wrong_product || fault == DeviceFault::wrong_products;
}

}  // namespace holdfast::core
