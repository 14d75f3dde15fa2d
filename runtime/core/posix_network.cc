#include "runtime/core/network.h"

namespace holdfast {
namespace {

class PosixNetwork final : public Network {};

}  // namespace

Network& posix_network() {
  static PosixNetwork network;  // stateless
  return network;
}

}  // namespace holdfast
