// Which hosts answer, asked the way mpirun starts its daemons: by ssh, or what PRTE_MCA_plm_ssh_agent names.
#pragma once

#include <vector>

#include "runtime/core/env.h"
#include "watchdog/restart_policy.h"

namespace holdfast {

// One answer for each host, all asked at once, ten seconds at most. This host always answers.
std::vector<bool> probe_hosts(Env& env, const std::vector<LaunchHost>& hosts);

}  // namespace holdfast
