// Corruption of the numbers of a worker, for tests: finds the memory that a fault point names
// (runtime/os/fault_point.h) and changes numbers in it, on the host or on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/injected_fault.h"
#include "runtime/core/tensor.h"
#include "runtime/device/host_access.h"
#include "runtime/train/lane_runner.h"
#include "runtime/train/step_parts.h"

namespace holdfast::train {

// One contiguous tensor, or part of one.
struct NumberRegion {
  std::string tensor;
  std::byte* memory = nullptr;
  std::uint64_t elements = 0;
  DType dtype = DType::fp32;  // or bf16
};

// One element of a list of regions.
struct ChosenNumber {
  std::size_t region = 0;
  std::uint64_t element = 0;            // in the region
  std::uint64_t element_of_memory = 0;  // in all regions, one after the other
  std::uint32_t mask = 0;               // bits that the change is about
};

// Returns the elements and bits that a corruption names, or draws them. At least one region has an element.
// Pure.
std::vector<ChosenNumber> choose_numbers(const Corruption& corruption, std::span<const NumberRegion> regions);

// Returns an element of an fp32 (32 bits) or bf16 (16 bits) tensor after a change of the bits of `mask`. Pure.
std::uint32_t changed_bits(std::uint32_t bits, DType dtype, NumberChange change, std::uint32_t mask);

// Changes the numbers that the corruption names and returns what the first that differs was and is, or where there is
// none the first one. Waits for launched ops. With no element in the regions nothing is changed, and the tensor has no
// name.
CorruptedNumber corrupt(const Corruption& corruption, std::span<const NumberRegion> regions,
                        HostAccess& access);

// Changes numbers of this rank, at a fault point of a step. Finishes a gather of parameters first where the
// number is a weight or a parameter, so that nothing that arrives overwrites it, and nothing that is under
// way carries it to some of the ranks; the others advance theirs wherever they wait. An error of the gather meets the
// run later. Called on the launching thread.
CorruptedNumber corrupt(const Corruption& corruption, StepParts& parts, LaneRunner& lanes);

}  // namespace holdfast::train
