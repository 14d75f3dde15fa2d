// Proves that this host is ready for a start, as far as one process can without the other ranks and without MPI.
#pragma once

#include "runtime/core/result.h"
#include "runtime/launch/host_ready.h"
#include "runtime/os/env.h"

namespace holdfast::inline cli {

// Makes the proof: enters the working directory; loads the config, and compares it with the launcher's; looks for the
// launcher's run directory; opens the data and reads a sample of each source; makes the device, and a product on it, on
// each GPU that ranks of this host will take; and counts how many of its ranks fit into its memory. Prints "ready" when
// all of this succeeds, and before it line_of() the room that it has, if that is for fewer ranks. Claims nothing and
// changes nothing.
Result<void> prove_ready(Env& env, const ReadyQuestion& question);

}  // namespace holdfast::inline cli
