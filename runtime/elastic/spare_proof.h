// Finds out, where the ranks that compute have ended with an error, whether each of them lacks what spares do not.
#pragma once

#include "runtime/elastic/group.h"

namespace holdfast::elastic {

// Agrees with the spares after an epoch that has ended with `fault` on all active ranks, for a reason of hosts or of this
// minute; all of them call it, and each proves now whether it can do that itself. Where no active rank can, and the
// spares that can are enough for the run, the others are unfit: the error has Reach::host on those and Reach::peers on
// the spares. Else it is `fault`, which may be that of one rank in what it did for all.
Error fault_or_unfit(const Group& group, const RunSetup& setup, const Error& fault);

}  // namespace holdfast::elastic
