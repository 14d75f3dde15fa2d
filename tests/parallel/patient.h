// patient: how long tests wait for what ends by itself.
#pragma once

#include "parallel/collectives.h"
#include "runtime/core/env.h"

namespace holdfast {

// Returns the waiter of one wait, which a busy machine does not bring to its end.
inline Waiter patient() {
  return {posix_env(), 60'000};
}

}  // namespace holdfast
