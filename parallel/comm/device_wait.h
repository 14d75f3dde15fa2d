// Device wait: waits for a rank's own device while polling the rank's peers, because MPI makes no progress
// and detects no death unless it is polled.
#pragma once

#include <cstdint>

#include "parallel/comm/communicator.h"
#include "runtime/device/device.h"

namespace holdfast::parallel {

// Time that a thread with pending messages waits for its device before it polls them again: MPI makes no
// progress unless it is polled, but every poll takes the processor from a kernel.
inline constexpr std::int64_t device_poll_us = 1000;

// Waits until the device has run everything that was launched so far, and polls the communicator meanwhile,
// at least every 10 ms. A detected death does not end the wait: what was launched runs to its end in any
// case (an exchange in the queue by its watch, Device::watch_with()), and the next call on the communicator reports
// which rank is lost. The launching thread calls it.
void wait_for_device(Device& device, Communicator& communicator);

// Returns whether messages may be in the device's queue, after other work: their copies are where the host
// does not see the device's memory. A wait for a peer checks this first, because a busy or stuck device of
// this rank does not mean that the peer is silent.
inline bool holds_up_messages(Device& device) {
  return !device.host_sees_memory() && !device.idle();
}

// Polls the communicator once, for loops that keep the launching thread busy with its own device. A failure
// that it finds is reported by the next call on the communicator.
void poll_peers(Communicator& communicator);

}  // namespace holdfast::parallel
