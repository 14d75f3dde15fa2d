// ResizableSharedMemory: shared memory (env.h) whose length can change. The objects of
// Env::create_shared_memory() and open_shared_memory() may be of this type; a caller that wants to resize
// finds out by dynamic_cast, and does without where they are not.
#pragma once

#include <cstdint>

#include "runtime/os/env.h"

namespace holdfast::os {

class ResizableSharedMemory : public SharedMemory {
 public:
  // Changes the length to `bytes` > 0. Existing pages keep their content; new ones are zero and reserved, as
  // create_shared_memory() reserves them; removed ones are free at once. bytes() may have moved afterwards.
  // On an error the length is unchanged.
  virtual Result<void> resize(std::uint64_t bytes) = 0;
};

}  // namespace holdfast::os
