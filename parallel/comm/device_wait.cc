#include "parallel/comm/device_wait.h"

namespace holdfast::parallel {

void wait_for_device(Device& device, Communicator& communicator) {
  constexpr std::int64_t poll_interval_us = 5000;
  const Device::Ticket launched = device.ticket();
  while (!device.wait(launched, poll_interval_us)) poll_peers(communicator);
}

void poll_peers(Communicator& communicator) {
  if (communicator.size() > 1 && !communicator.abandoned()) static_cast<void>(communicator.check_peers());
}

}  // namespace holdfast::parallel
