// PeerWaits: how long a rank has waited for others, for those for which it has waited longest. It is of a fixed size,
// because every rank sends it to rank 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace holdfast::core {

struct PeerWait {
  std::int32_t peer = -1;  // a rank of the run; -1: none
  float waited_ms = 0.0F;
};
inline constexpr std::size_t peers_told = 8;
using PeerWaits = std::array<PeerWait, peers_told>;

}  // namespace holdfast::core
