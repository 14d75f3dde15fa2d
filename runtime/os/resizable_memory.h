// ResizableSharedMemory: shared memory (env.h) whose length can change. What Env::create_shared_memory() and
// open_shared_memory() return may be one; whoever wants to resize asks by dynamic_cast and does without where
// it is none.
#pragma once

#include <cstdint>

#include "runtime/os/env.h"

namespace holdfast::inline os {

class ResizableSharedMemory : public SharedMemory {
 public:
  // Makes it `bytes` > 0 long. Pages that were there keep their content; those that are gained are zero and
  // reserved, as create_shared_memory() reserves them; those that are lost are free at once. bytes() may be
  // elsewhere afterwards. On an error the length is what it was.
  virtual Result<void> resize(std::uint64_t bytes) = 0;
};

}  // namespace holdfast::inline os
