// Link trials: all pairs of hosts exchange messages under mpirun, as ranks of a run do, in rounds in which each host has one
// partner (the circle method of tournaments). What it means is judged by runtime/health/preflight_rules.h.
#pragma once

#include <functional>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/health/preflight_rules.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

// Starts one rank on each of the hosts, of which there are two or more. Errors: communication, a clause: the ranks did not
// come to the end; config where there is no mpirun. `is_stopped` is called again and again, and ends it where it returns true.
Result<std::vector<LinkTrial>> try_links(Env& env, const std::vector<LaunchHost>& hosts,
                                         const std::function<bool()>& is_stopped);

// Takes part as a rank, and prints what was measured on rank 0. Returns the exit code.
int try_links_as_rank(Env& env);

// Returns the partner of a rank in a round of a tournament of `size` ranks, or -1 if it has none. There are rounds_of(size)
// of them, counted from 0. Pure.
int partner_in_round(int rank, int size, int round);
inline int rounds_of(int size) {
  return size + size % 2 - 1;
}

}  // namespace holdfast::cli
