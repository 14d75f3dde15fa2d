// try_host: what this host does before a run is started on it (`holdfast preflight`): steps of the run's shapes on every device at
// full load, from a state that is the same everywhere, so that their bits are known; patterns in memory; the disk of the run directory;
// clock, program and sensors. The rules that judge it are in runtime/health/preflight_rules.h.
//
// It needs none of the run's files but the config, no MPI and no other host, and leaves nothing behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/health/preflight_rules.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

// TrialQuestion is what a host is asked for, as one word of a command line.
struct TrialQuestion {
  std::int64_t milliseconds = 10'000;       // of steps at full load
  std::int64_t place = 0;                   // of this host among those that are asked, for HOLDFAST_FAULTS
  std::int64_t ranks = 0;                   // that may run here: so many GPUs are tried; 0: all
  std::string directory = {};               // working directory; empty: as it is
  std::string config = {};                  // path; empty: the shapes of llama-15m
  std::vector<std::string> overrides = {};  // --section.key=value

  static void visit_fields(auto& self, auto&& visit) {
    visit("milliseconds", self.milliseconds);
    visit("place", self.place);
    visit("ranks", self.ranks);
    visit("directory", self.directory);
    visit("config", self.config);
    visit("overrides", self.overrides);
  }
};

// Errors: the config is wrong. What a device or the disk cannot do is part of the result.
Result<HostTrials> try_host(Env& env, const TrialQuestion& question);

}  // namespace holdfast::cli
