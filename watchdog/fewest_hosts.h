// Finds the hosts that are to leave when hosts of a start do not hear each other. Pure. A guard asks it while a run
// trains, the launcher when a start has ended.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace holdfast::watchdog {

// SilentPair says that a guard or a rank of `from` heard nothing of `of`, or waited for it in vain: the link between
// the two is broken, or one of them is.
struct SilentPair {
  std::string from, of;
  bool operator==(const SilentPair&) const = default;
};

struct LinkedHost {
  std::string name;
  int suspicions = 0;   // how much speaks against it already
  bool is_own = false;  // the launcher runs there, if that is known
};

// Returns a smallest set of hosts such that each pair has at least one of them, in the order of `hosts`: left
// out together, they explain all reports. Of several such sets it is the one with the most suspicions, so that one
// broken link does not cost both of its hosts; then one without the launcher's host; then the one whose hosts
// were missed most often; then the one with the later hosts. Pairs of one host with itself, or with hosts that
// are not among `hosts`, do not count. With very many hosts the set may be larger than the smallest one.
std::vector<std::string> fewest_hosts(std::span<const SilentPair> pairs, std::span<const LinkedHost> hosts);

}  // namespace holdfast::watchdog
