// Measures what Open MPI itself keeps of every death and growth: a leader makes the same MPI calls as
// MpiWorld, and nothing else. tests/system/many_recoveries_test.py compares a run with it.
#pragma once

#include <span>
#include <string>

namespace holdfast::test {

// Goes through `growths` growths by one process and its deaths, in each of which the two exchange messages of
// these sizes a few times, and prints how many bytes of anonymous memory each has cost: "164000 bytes each".
// The first ones are left out. Called again in the processes that it starts, which get the same arguments.
// Ends the process; the caller has not started MPI.
[[noreturn]] void measure_growth_memory(const std::string& program, int growths,
                                        std::span<const int> message_bytes);

}  // namespace holdfast::test
