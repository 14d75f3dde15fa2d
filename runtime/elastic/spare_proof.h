// What spares find out where all ranks that compute lack the same: whether they lack it, too.
#pragma once

#include "runtime/elastic/group.h"

namespace holdfast::elastic {

// Agrees with the spares after an epoch that has ended with `fault` on all active ranks, for a reason of hosts or of this
// minute; all of them call it. If the spares can do what the others could not, and are enough for the run, the others
// are unfit: the error has Reach::host on those and Reach::peers on the spares. Else it is `fault`.
Error fault_or_unfit(const Group& group, const RunSetup& setup, const Error& fault);

}  // namespace holdfast::elastic
