// Protections of a run: what of its fault tolerance is on and with which numbers, and what is off and why. Each start tells it on the
// console and in its event, and each recovery and growth what has changed, so that nothing is off without a word. One table has
// their names, which are also labels of the metrics. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/rank/memory_fit.h"

namespace holdfast::elastic {

// ArmedFacts are what a start has found out beside its config, which is resolved.
struct ArmedFacts {
  int ranks = 1, copies = 1, spares = 0,
      hosts = 1;                // active ranks; replicas of the model; hosts of all ranks
  bool has_membership = false;  // MPI tells of deaths, and there is another rank
  bool has_launcher = false;
  bool is_watched = false;            // ranks have a board, and a guard
  bool measures_ranks = false;        // the device says how long it computes
  bool has_buddies = false;           // ranks store replicas for each other
  bool replicas_cross_hosts = false;  // all of them on another host
  SnapshotTiers tiers = SnapshotTiers::none;
  std::string lacks_memory = {};       // why tiers are fewer than wanted; empty: they are not
  std::int64_t audit_every_steps = 0;  // 0: none
};

struct Protection {
  std::string name = {};
  bool is_on = false;
  std::string words = {};  // on: its numbers; off: why
};

// Returns all protections, in the order of the table.
std::vector<Protection> protections_of(const Config& config, const ArmedFacts& facts);

// Return the words of those that are on, or off, by name.
std::map<std::string, std::string> protections_by_name(const std::vector<Protection>& all, bool is_on);

// Returns a line for the console: "armed: snapshots (auto), watchdog (5s to 10m)", "not armed: spares (elastic.spares = 0)".
std::string armed_line(const std::vector<Protection>& all, bool is_on);

// Returns lines for the console of what is on now and was not `before`, or the other way round: "armed again: ...", "no longer
// armed: shrink (1 of 1 copies are the fewest)".
std::vector<std::string> armed_news(const std::vector<Protection>& before,
                                    const std::vector<Protection>& now);

}  // namespace holdfast::elastic
