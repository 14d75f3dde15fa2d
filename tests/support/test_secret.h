// Secrets that tests can tell apart.
#pragma once

#include "runtime/os/secret.h"

namespace holdfast::test {

inline Secret secret_of(unsigned char byte) {
  Secret::Bytes bytes;
  bytes.fill(std::byte{byte});
  return Secret(bytes);
}

}  // namespace holdfast::test
