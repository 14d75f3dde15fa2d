#include "runtime/os/sodium.h"

#include <sodium.h>

#include "runtime/core/check.h"

namespace holdfast::inline os {

void begin_sodium() {
  static const bool ready = sodium_init() >= 0;
  HF_CHECK(ready, "libsodium finds no random numbers on this system");
}

}  // namespace holdfast::inline os
