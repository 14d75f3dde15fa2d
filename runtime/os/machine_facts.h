// machine_facts: which machine this is, and what it offers, for `holdfast check` and --version. It only probes: nothing that
// it makes stays.
#pragma once

#include <string>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::os {

struct MachineFact {
  std::string name;  // "io_uring"
  bool there = false;
  std::string detail;  // "available", or why not and what is lost
};

// Returns a text that stays the same over boots and names of a host, and differs between machines: the identity that
// the firmware of the machine has, else that of its installation. Empty where neither can be read. Containers of one
// image may have the same one.
std::string machine_identity(Env& env);

// Returns facts about processors, memory, io_uring and /dev/shm.
std::vector<MachineFact> machine_facts(Env& env);

}  // namespace holdfast::os
