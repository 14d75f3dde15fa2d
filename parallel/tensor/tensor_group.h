// TensorGroup: the communication of the ranks of one tensor group during a forward or a backward. Rows
// (tokens) of a microbatch are cut into as many equal runs as there are ranks: norms and the residual stream
// are computed on the rank's own rows, the products of split weights on all rows (sequence parallelism;
// Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"). So the input of
// a split product is gathered (all-gather), and its output, a sum over slices, is added and scattered
// (reduce-scatter).
//
// The sum over slices is one binary tree of fp32 nodes over all slices of the run, whichever rank holds them:
// a rank adds its own subtree, sends each peer that peer's rows, and every rank adds the roots of all
// subtrees for its own rows. So the bits depend on the number of slices alone.
//
// A group of one sends nothing and only adds. While rows are in flight the host waits and advances other
// communication; work launched before continues. Threads: one. Errors: communication; the transport is
// abandoned.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "parallel/comm/transport.h"
#include "parallel/group/mesh.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::parallel {

// Partial results of all rows, one for each slice of this rank, and the buffer for those of the peers.
struct SliceSums {
  float* parts = nullptr;     // (share.count, rows, columns)
  float* arrivals = nullptr;  // (share.ranks(), rows / ranks, columns); null in a group of one
  std::int64_t rows = 0, columns = 0;
};

class TensorGroup {
 public:
  explicit TensorGroup(const TensorShare& share) : share_(share) {}
  const TensorShare& share() const { return share_; }
  std::int64_t own_rows(std::int64_t rows) const { return rows / share_.ranks(); }
  std::int64_t first_row(std::int64_t rows) const { return own_rows(rows) * share_.rank(); }

  // Sets the transport that moves slices from now on: one of the share's ranks, which outlives this object.
  // Until then nothing is sent, as when kernels are only planned.
  void connect(Transport& transport, const Waiter& waiter);
  // Advances other communication while this group waits; returns whether anything moved.
  using Background = std::function<Result<bool>()>;
  void set_background(Background background) { background_ = std::move(background); }

  // Records this group's waits in `spans`, which outlives it.
  void record(SpanRecorder& spans) { spans_ = &spans; }

  // Gathers the parts of all ranks. `whole` is as many equal parts as there are ranks; work launched before
  // writes this rank's part, and work launched afterwards may read all.
  Result<void> all_gather(Device& device, std::span<std::byte> whole);
  // Sends every peer its rows of `whole`, which is all rows of a sum that each rank has one term of. The
  // peers' terms for this rank's rows go to `arrivals` in the order of ranks, for the caller to add. Own rows
  // are not moved.
  Result<void> scatter(Device& device, Device::Ticket ready, std::span<const std::byte> whole,
                       std::span<std::byte> arrivals);

  // Adds this rank's subtree; called after the partial results were launched. Work launched between the two
  // calls runs while the rows are in transit. A group of one takes no ticket, so that it may be part of what
  // a device repeats.
  Device::Ticket launch_own_sum(Device& device, const SliceSums& sums);
  // Computes y in `dtype` = the sum over all slices (+ bias) (+ residual).
  struct SumTarget {
    void* y = nullptr;               // (own rows, columns)
    const void* bias = nullptr;      // (columns), or null
    const void* residual = nullptr;  // as y, or null
    DType dtype = DType::fp32;       // of all three
  };
  Result<void> finish_sum(Device& device, Device::Ticket own_sum, const SliceSums& sums,
                          const SumTarget& target);

 private:
  Result<void> wait_for(Device& device, Device::Ticket ticket);
  Result<void> exchange_parts(Device& device, Device::Ticket ready,
                              std::span<const Transport::Incoming> incoming,
                              std::span<const Transport::Outgoing> outgoing);
  template <typename Source, typename Target>
  Result<void> exchange_with_all(Device& device, Device::Ticket ready, const Source& source_of_peer,
                                 const Target& target_of_peer);
  std::size_t part_of(std::size_t whole_bytes) const;
  Result<bool> advance();

  TensorShare share_;
  Transport* transport_ = nullptr;
  const Waiter* waiter_ = nullptr;
  Background background_;
  SpanRecorder* spans_ = nullptr;
};

}  // namespace holdfast::parallel
