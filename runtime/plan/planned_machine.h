// PlannedMachine describes the machines that a run would have: memory, prices of ops, links between ranks and
// which ranks share a host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kernels/op.h"
#include "runtime/device/device.h"
#include "runtime/measure/op_timer.h"

namespace holdfast::plan {

// OpPrices says how long an op takes on one rank, for estimates of a step before it runs: from stated peaks,
// or from ops that were timed.
class OpPrices {
 public:
  virtual ~OpPrices() = default;
  // Returns the time of one op. `arguments` is the struct of `id`; its memory is not read, except for the
  // table of the update.
  virtual double seconds(OpId id, const void* arguments) const = 0;
  // Returns the rate at arrays larger than any cache, of bytes read plus written.
  virtual double memory_bytes_per_second() const = 0;
  // Returns the rate of large products, which is the peak for MFU.
  virtual double flops_per_second() const = 0;
  virtual std::string description() const = 0;  // a clause: "stated peaks of 989 TFLOP/s and 3350 GB/s"
};

// Prices an op at the larger of its products at one rate and its bytes at the other (kernels/cost.h): a lower
// bound for any implementation.
class PeakPrices final : public OpPrices {
 public:
  PeakPrices(double flops_per_second, double bytes_per_second, std::string description)
      : flops_per_second_(flops_per_second),
        bytes_per_second_(bytes_per_second),
        description_(std::move(description)) {}
  double seconds(OpId id, const void* arguments) const override;
  double memory_bytes_per_second() const override { return bytes_per_second_; }
  double flops_per_second() const override { return flops_per_second_; }
  std::string description() const override { return description_; }

 private:
  double flops_per_second_, bytes_per_second_;
  std::string description_;
};

// Prices an op by the time that ops of the same shape took; one of another shape is scaled by its products,
// or its bytes if it has none.
class TimedPrices final : public OpPrices {
 public:
  // Takes timed ops. `rounds`: the same ops repeatedly, the update among them; medians count. `launch_seconds`:
  // time of each op in addition to its kernel. `flops_per_second`: of large products, measured separately.
  // Tables in the records are read now.
  TimedPrices(std::span<const std::vector<OpTimer::Record>> rounds, double launch_seconds,
              double flops_per_second, std::string description);
  double seconds(OpId id, const void* arguments) const override;
  double memory_bytes_per_second() const override { return memory_bytes_per_second_; }
  double flops_per_second() const override { return flops_per_second_; }
  std::string description() const override { return description_; }

 private:
  struct Sum {
    double seconds = 0.0, flops = 0.0, bytes = 0.0;
  };
  std::map<std::pair<OpId, std::string>, double> seconds_;  // by op and shape
  std::map<OpId, Sum> sums_;
  double launch_seconds_, flops_per_second_;
  double memory_bytes_per_second_ = 0.0;  // rate of the update, whose data exceeds any cache
  std::string description_;
};

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
