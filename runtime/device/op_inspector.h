// OpInspector: sees every op that a device is given, right after its launch (Device::inspect_with).
#pragma once

#include "kernels/op.h"

namespace holdfast::device {

class OpInspector {
 public:
  virtual ~OpInspector() = default;

  // Called on the launching thread when the op is in the queue; it has not run yet. `arguments` is its struct,
  // which is valid until the call returns. What is launched on the device in here runs next, and is not
  // inspected. In planning mode it is called, too; pointers may then be null.
  virtual void launched(OpId id, const void* arguments) = 0;
};

}  // namespace holdfast::device
