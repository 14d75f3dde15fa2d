// Says what an errno means: a text for people, and the reach of an error with this cause.
#pragma once

#include <string>

#include "runtime/core/result.h"

namespace holdfast::os {

std::string reason_text(int reason);

// Returns whether a disk had no room for a write, which all lack that write there.
bool is_full_disk(int reason);

// Returns Reach::minute for what may be different at the next attempt (a full disk, a server that does not answer,
// too many open files), else Reach::host: what one host lacks, another may have. Whether all hosts lack it is
// for their ranks to find out together (parallel/comm/agreement.h).
Reach reach_of_reason(int reason);

}  // namespace holdfast::os
