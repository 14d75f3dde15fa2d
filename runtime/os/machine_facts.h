// machine_facts: what this machine offers, for `holdfast check` and --version. It only probes: nothing that
// it makes stays.
#pragma once

#include <string>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::inline os {

struct MachineFact {
  std::string name;  // "io_uring"
  bool there = false;
  std::string detail;  // "available", or why not and what is lost
};

// Returns facts about processors, memory, io_uring and /dev/shm.
std::vector<MachineFact> machine_facts(Env& env);

}  // namespace holdfast::inline os
