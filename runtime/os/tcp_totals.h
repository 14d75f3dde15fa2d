// TcpTotals: how much of what TCP sent for this process was lost.
#pragma once

#include <cstdint>

namespace holdfast::os {

// TcpTotals are what the TCP sockets of this process have sent since they were opened, in segments, and what of it was lost: sent
// again, but for what had only been late. Sockets of others, such as those of MPI, count as well; those that are closed do not.
struct TcpTotals {
  std::uint64_t sent = 0, lost = 0;
};
TcpTotals tcp_totals();

}  // namespace holdfast::os
