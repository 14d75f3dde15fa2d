// Counts the processors that this process may really use, by its affinity mask and the quota of its control
// group.
#pragma once

#include <string_view>

namespace holdfast::os {

// Returns the number, at least 1. Reads sched_getaffinity and the cpu.max of this process's cgroup v2 and its
// ancestors.
int available_processors();

// Returns the processors of one cpu.max file ("QUOTA PERIOD" in microseconds, or "max PERIOD"), rounded up; 0
// means no limit.
int processors_of_quota(std::string_view cpu_max);

}  // namespace holdfast::os
