// Network: plain TCP sockets between the hosts of a run, beside whatever MPI uses: for what must work when
// MPI does not, and for threads that may not call it.
#pragma once

namespace holdfast {

class Network {
 public:
  virtual ~Network() = default;
};

// Behind Env::network().
Network& posix_network();

}  // namespace holdfast
