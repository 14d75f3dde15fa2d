// Waiting for a rank's own device without leaving its peers alone: MPI moves nothing and sees no death unless
// it is polled.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "parallel/comm/communicator.h"

namespace holdfast::inline parallel {

// How long a thread that has messages to move waits for its device before it looks at them again: MPI moves
// nothing unless it is polled, but every look takes the processor from a kernel.
inline constexpr std::int64_t device_poll_us = 1000;

// Waits until the device has run everything that was launched so far, and polls the communicator meanwhile,
// at least every 10 ms. A death that is seen does not end the wait: what was launched runs to its
// end in any case, and the next call on the communicator says who is lost. Called by the launching thread.
void wait_for_device(Device& device, Communicator& communicator);

// Whether messages may stand in the device's queue, behind other work: their copies do where the host does
// not see the device's memory. A wait for a peer asks this first, because a device at work, or stuck, is no
// silence of the peer.
inline bool holds_up_messages(Device& device) {
  return !device.host_sees_memory() && !device.idle();
}

// Polls the communicator once, for loops that keep the launching thread busy with its own device. What it
// finds is said by the next call on the communicator.
void poll_peers(Communicator& communicator);

}  // namespace holdfast::inline parallel
