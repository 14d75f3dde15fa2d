#include "runtime/os/errno_reason.h"

#include <array>
#include <cerrno>
#include <cstring>

namespace holdfast::os {

std::string reason_text(int reason) {
  std::array<char, 256> buffer{};
  return strerror_r(reason, buffer.data(), buffer.size());
}

Reach reach_of_reason(int reason) {
  switch (reason) {
    case EIO:
    case EREMOTEIO:
    case ESTALE:
    case ETIMEDOUT:
    case ENOTCONN:
    case ECONNRESET:
    case ECONNREFUSED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case EAGAIN:
    case EBUSY:
    case EINTR:
      return Reach::minute;
    default:
      return Reach::host;
  }
}

bool is_full_disk(int reason) {
  return reason == ENOSPC || reason == EDQUOT;
}

}  // namespace holdfast::os
