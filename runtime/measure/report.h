// The machine that figures were measured on, and how they are written for people.
#pragma once

#include <string>

#include "kernels/cost.h"
#include "runtime/core/json.h"
#include "runtime/os/env.h"

namespace holdfast::measure {

// Describes processor, number of processors, caches and memory, which every reported figure needs.
Json machine_json(Env& env);
// "Intel(R) Xeon(R) Processor, 2 processors, L2 2 MiB, L3 105 MiB".
std::string machine_line(Env& env);

// "213.4 GFLOP/s", or "98.1 GB/s" (10^9 bytes) of an op that has no products.
std::string rate_text(const OpCost& cost, double seconds);
std::string percent(double share);  // "83 %"
// Four digits: "1234", "12.34", "0.0123".
std::string digits(double value);

}  // namespace holdfast::measure
