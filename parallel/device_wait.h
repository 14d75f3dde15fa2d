// Waiting for a rank's own device without leaving its peers alone: MPI moves nothing and sees no death unless
// it is polled.
#pragma once

#include "kernels/device.h"
#include "parallel/communicator.h"

namespace holdfast {

// Waits until the device has run everything that was launched so far, and polls the communicator meanwhile,
// at least every 10 ms. A death that is seen ends the polling, not the wait: what was launched runs to its
// end in any case, and the next call on the communicator says who is lost. Called by the launching thread.
void wait_for_device(Device& device, Communicator& communicator);

}  // namespace holdfast
