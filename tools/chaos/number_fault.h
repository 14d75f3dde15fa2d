// Number faults are those that make numbers of a run wrong: which fault point of the program makes each of
// them, and what must become of it. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "tools/chaos/chaos_fault.h"

namespace holdfast::chaos {

// Says which bits the finished run must have.
enum class NumberPromise : std::uint8_t {
  healed,           // those of the undisturbed run: every update compares this, or no NaN is used
  healed_if_found,  // the same if a verdict found it: a wrong number that comes once may be where no check is
  same_as_twin,     // those of a run that reads the same spoiled sample, and that nothing else happens to
};
NumberPromise promise_of(ChaosFault fault);

// Place of a number fault in a run.
struct NumberPlace {
  std::uint64_t step = 1;             // of the run, counted from 1
  int rank = 0;                       // launched
  std::uint64_t lanes_of_rank = 1;    // lanes that a rank computes in a step
  std::uint64_t samples_of_step = 1;  // samples of a step of the whole run
  std::uint64_t draw = 0;             // number that all the rest is drawn from: memory, bit, lane, sample
};

// Returns the entry of HOLDFAST_FAULTS: "step.begin@12:1=flip:weights:22". If faults before it have taken
// passes of the point from the rank, it happens in another step.
std::string number_fault_point(ChaosFault fault, const NumberPlace& place);

// Returns the step that reads the sample of such an entry, of a bad_sample.
std::uint64_t step_of_sample(std::uint64_t sample, std::uint64_t samples_of_step);

}  // namespace holdfast::chaos
