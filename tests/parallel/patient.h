// patient: how long tests wait for what ends by itself.
#pragma once

#include "parallel/comm/collectives.h"
#include "runtime/os/env.h"

namespace holdfast::test {

// Returns the waiter of one wait, which a busy machine does not bring to its end.
inline Waiter patient() {
  return {posix_env(), 60'000};
}

}  // namespace holdfast::test
