// The device that the tests of this folder compute on: a GPU, or the emulator (main.cc).
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace holdfast::test {

std::unique_ptr<Device> make_gpu_device();
// Whether each of its threads is a fiber, so that tests do less.
bool emulated();

}  // namespace holdfast::test
