// PlannedMachine describes the machines that a run would have: memory, prices of ops, links between ranks and
// which ranks share a host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "runtime/device/device.h"
#include "runtime/plan/op_prices.h"

namespace holdfast::plan {

// Memory that the process of a rank takes beside what its plan counts, on a CPU: heap, MPI, thread stacks,
// the buffers of a save, and its part of mpirun and of the guard. Measured: 26 MiB with the smallest models,
// 42 MiB with llama-15m (docs/measurements_archive.md). Pages of the program file come and go.
inline constexpr std::uint64_t process_bytes = std::uint64_t{64} << 20;

struct PlannedMachine {
  bool host_sees_memory = true;  // the host can read device memory
  bool with_nccl = false;
  // Rank r is on host r / ranks_per_host; 0: all ranks are on one host.
  int ranks_per_host = 0;
  // Memory for one rank, or for all ranks of one host together; unknown if neither is set.
  std::optional<std::uint64_t> rank_bytes = {}, host_bytes = {};
  // Free shared memory for all ranks of one host together; none: unknown.
  std::optional<std::uint64_t> shared_bytes = {};
  // Ranks that compute at the same time on the processors of a host; 0: each has its own.
  int ranks_at_once = 0;
  const OpPrices* prices = nullptr;  // null: no time is estimated
  // Bytes per second that a rank receives from ranks of other hosts, and of its own host (none: the same).
  // Without the first, sending between hosts takes no time; without both, sending takes none.
  std::optional<double> link_bytes_per_second = {}, host_link_bytes_per_second = {};
  // True if messages move while the rank computes. Processors that copy messages do nothing else meanwhile.
  bool overlaps_messages = false;
  // Device that counts the workspace of kernels (runtime/device/counting_device.h), for one planner at
  // a time; outlives this object. Null: the workspace is unknown.
  Device* kernels = nullptr;

  // Returns how many of `ranks` share one host.
  int ranks_on_host(int ranks) const { return ranks_per_host == 0 ? ranks : std::min(ranks, ranks_per_host); }
  bool same_host(int rank, int other) const {
    return ranks_per_host == 0 || rank / ranks_per_host == other / ranks_per_host;
  }
  bool has_links() const {
    return link_bytes_per_second.has_value() || host_link_bytes_per_second.has_value();
  }
  // Returns the time to receive bytes from this host and from others at the same time.
  double transfer_seconds(double bytes_inside, double bytes_between) const {
    const std::optional<double> inside =
        host_link_bytes_per_second.has_value() ? host_link_bytes_per_second : link_bytes_per_second;
    return std::max(inside.has_value() ? bytes_inside / *inside : 0.0,
                    link_bytes_per_second.has_value() ? bytes_between / *link_bytes_per_second : 0.0);
  }
  std::optional<std::uint64_t> bytes_for_rank(int ranks) const {
    if (rank_bytes.has_value() || !host_bytes.has_value()) return rank_bytes;
    return *host_bytes / static_cast<std::uint64_t>(ranks_on_host(ranks));
  }
};

}  // namespace holdfast::plan
