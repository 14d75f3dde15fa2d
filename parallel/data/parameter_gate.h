// ParameterGate: what a forward asks before it launches what reads a bucket's parameters. They may still be
// on their way (parameter_gather.h).
#pragma once

#include "runtime/core/result.h"

namespace holdfast::inline parallel {

class ParameterGate {
 public:
  virtual ~ParameterGate() = default;
  // Returns when the parameters of this bucket (BucketPlan's number), and of all that a forward reads before
  // it, are whole for what is launched from then on. The error is that of whoever brings them.
  virtual Result<void> wait_for(int bucket) = 0;
};

}  // namespace holdfast::inline parallel
