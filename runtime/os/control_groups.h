// Finds the control groups (cgroup version 1 and 2) that limit this process. Each of them is a folder; a
// limit of a group holds for all groups below it, so the folders of all its ancestors count, too.
//
// /proc/self/cgroup says which group, /proc/self/mountinfo where the hierarchy is mounted. In a container
// the two may disagree: without a namespace of its own for groups the path is the host's, while the mount
// begins at the container's group. What does not exist under the mount point is left out, so that what can
// be read of it still counts.
#pragma once

#include <string>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::os {

struct ControlGroup {
  enum class Version : std::uint8_t { v1, v2 };
  Version version = Version::v2;
  std::string folder;   // without a slash at its end
  bool is_own = false;  // the group of this process, not an ancestor
};

// Returns the groups of `controller` ("memory", "cpu") from the own one up to the visible root: those of
// version 1 where the controller is mounted there, and those of version 2 where that hierarchy exists,
// whatever controllers it has. A folder need not exist.
std::vector<ControlGroup> control_groups(Env& env, const std::string& controller);

}  // namespace holdfast::os
