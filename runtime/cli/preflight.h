// Preflight: asks all hosts to try themselves (host_trial.h) at the same time, and judges them (runtime/health/preflight_rules.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/health/preflight_rules.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

struct Preflight {
  std::vector<TriedHost> hosts = {};
  std::vector<HostVerdict> verdicts = {};  // of them, in the same order
  std::vector<LinkTrial> links = {};       // between those that answered
  std::string links_trouble = {};          // why there are none though several did; empty: there are

  bool all_fit() const;
  // Returns the hosts that are not fit, each with a sentence.
  std::map<std::string, std::string> unfit() const;
};

// Asks the hosts, and takes what it finds over into the host book. No hosts: this one. `config`, `overrides`: as
// TrialQuestion. `is_stopped` is called again and again, and ends it where it returns true. Errors: the host book cannot be used, or the config is wrong on this host.
Result<Preflight> run_preflight(Env& env, std::vector<LaunchHost> hosts, const std::string& config,
                                const std::vector<std::string>& overrides, double seconds,
                                const std::function<bool()>& is_stopped = {});

// Returns what it found, for people.
std::string to_text(const Preflight& preflight);

}  // namespace holdfast::cli
