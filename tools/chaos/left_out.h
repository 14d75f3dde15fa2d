// Says whether a run went on without a host that nothing had happened to. Pure.
#pragma once

#include <map>
#include <span>
#include <string>

#include "runtime/core/json.h"
#include "tools/chaos/chaos_record.h"

namespace holdfast::chaos {

// Returns the ranks of each host from an event of a log, if it is a start that says so.
std::optional<HostRanks> ranks_of_start(const Json& event);

// Returns a sentence about the first start without a rank on such a host; empty: there is none. It checks
// only where each host has to have ranks: copies of one rank each, without spares, as many as the hosts of
// the run have slots, and hosts whose names are those that the first start has for them. Faults of ranks hit
// them on `here`, the host of the campaign.
std::string host_left_out(const ChaosRun& run, std::span<const LaunchHost> hosts, const std::string& here);

}  // namespace holdfast::chaos
