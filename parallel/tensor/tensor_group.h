// TensorGroup: what the ranks of one tensor group tell each other in the middle of a forward or a backward.
// Rows (tokens) of a microbatch are cut into as many equal runs as there are ranks: norms and the residual
// stream are computed on the rank's own rows, the products of split weights on all rows (sequence
// parallelism; Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"). So
// what enters a split product is gathered, and what leaves a sum over slices is added and scattered.
//
// The sum over slices is one binary tree of fp32 nodes over all slices of the run, whoever holds them: a rank
// adds its own subtree, sends each peer the rows that are its, and every rank adds the roots of all subtrees
// for its own rows. So the bits depend on the number of slices alone.
//
// A group of one moves nothing and only adds. Where rows are in flight the host waits, and moves other
// communication on meanwhile; what was launched before goes on. Threads: one. Errors: communication; the
// transport is abandoned.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "kernels/device.h"
#include "parallel/comm/transport.h"
#include "parallel/tensor/tensor_share.h"
#include "runtime/core/tensor.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::inline parallel {

// Partial results of all rows, one for each slice of this rank; and where the peers' arrive.
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

  // Takes the transport that moves slices from now on: one of the share's ranks, which outlives this object.
  // Until then nothing moves, as when kernels are only planned.
  void connect(Transport& transport, const Waiter& waiter);
  // Moves on what else is under way while this group waits; whether anything moved.
  using Background = std::function<Result<bool>()>;
  void set_background(Background background) { background_ = std::move(background); }

  // What it waits for goes to `spans`, which outlives it.
  void record(SpanRecorder& spans) { spans_ = &spans; }

  // `whole` is as many equal parts as there are ranks; what was launched before writes this rank's. All are
  // there for what is launched afterwards.
  Result<void> all_gather(Device& device, std::span<std::byte> whole);
  // `whole` is all rows of something that the ranks have a term each of: sends every peer the rows that are
  // its; what arrives of this rank's lies in the order of ranks, for the caller to add. Own rows are not
  // moved.
  Result<void> scatter(Device& device, Device::Ticket ready, std::span<const std::byte> whole,
                       std::span<std::byte> arrivals);

  // After the partial results were launched: adds this rank's subtree. What is launched between the two calls
  // runs while the rows travel. A group of one takes no ticket, so that it may be part of what a device
  // repeats.
  Device::Ticket launch_own_sum(Device& device, const SliceSums& sums);
  // y (own rows, columns) in `dtype` = the sum over all slices (+ bias).
  Result<void> finish_sum(Device& device, Device::Ticket own_sum, const SliceSums& sums, const void* bias,
                          void* y, DType dtype);

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

}  // namespace holdfast::inline parallel
