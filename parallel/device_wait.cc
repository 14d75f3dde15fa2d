#include "parallel/device_wait.h"

namespace holdfast {

void wait_for_device(Device& device, Communicator& communicator) {
  constexpr std::int64_t poll_interval_us = 1000;
  const Device::Ticket launched = device.ticket();
  bool peers_are_there = communicator.size() > 1 && !communicator.abandoned();
  while (!device.wait(launched, poll_interval_us)) {
    if (peers_are_there) peers_are_there = communicator.check_peers().ok();
  }
}

}  // namespace holdfast
