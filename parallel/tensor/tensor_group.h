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
// A group of one sends nothing and only adds. Otherwise there are two ways, which give the same bits:
//
//   by the host    it waits until the rows that leave are computed, sends them, and waits for those that arrive, while
//                  it advances other communication; work launched before continues. The device's queue runs empty
//                  at every exchange
//   by the device  where the transport is on the device and that orders by events (Transport::send_behind()): exchanges
//                  and work are queued behind each other, and the host goes on launching. It waits only where it is so
//                  far ahead that a launch could block (ahead_max), and in finish()
//
// By the device, this object is the watch of the device's queue from connect() on (Device::watch_with()): wherever the
// launching thread waits for the device, it advances the transport, and gives up when an exchange has held up the
// queue, with everything before it computed, for the waiter's timeout. The end of the transport is the end of every
// exchange in the queue, so the wait ends, and what the device has computed since is worthless. The error comes from
// the next call here, at the latest from finish(), which the caller makes before it uses a result; until then results
// leave only by transports that end together with this one.
//
// A large sum then goes in two halves of every rank's rows, and the second half travels while the first is added. Only
// sums are halved, where a row depends on the same row of the terms alone. A product is not: the library may compute
// another number of rows by another algorithm, whose sums have other last bits. Nor is what follows a gather, which
// reads all rows.
//
// Threads: one, which launches. Errors: communication; the transport is abandoned.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "kernels/tree_sum.h"
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

class TensorGroup final : private QueueWatch {
 public:
  explicit TensorGroup(const TensorShare& share) : share_(share) {}
  ~TensorGroup();
  TensorGroup(const TensorGroup&) = delete;
  TensorGroup& operator=(const TensorGroup&) = delete;
  const TensorShare& share() const { return share_; }
  std::int64_t own_rows(std::int64_t rows) const { return rows / share_.ranks(); }
  std::int64_t first_row(std::int64_t rows) const { return own_rows(rows) * share_.rank(); }

  // Sets the transport that moves slices from now on, of the share's ranks, and the device whose memory it moves; all
  // outlive this object, and all later calls are for that device. Until then nothing is sent, as when kernels are
  // only planned.
  void connect(Transport& transport, Device& device, const Waiter& waiter);
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
  // are not moved. Work launched between the two calls, which touches neither, runs while the rows are in transit.
  struct Scatter {
    std::span<const std::byte> whole;
    std::span<std::byte> arrivals;
    int pieces = 1;                                 // of every rank's rows, each an exchange
    Device::Ticket ready = 0;                       // by the host: of the work that writes `whole`
    std::array<Transport::Number, 2> numbers = {};  // by the device: of the exchanges in the queue
  };
  Result<Scatter> begin_scatter(Device& device, std::span<const std::byte> whole,
                                std::span<std::byte> arrivals, int pieces = 1);
  // Finishes one piece; they come in their order.
  Result<void> finish_scatter(Device& device, const Scatter& scatter, int piece = 0);

  // Adds this rank's subtree and begins to scatter it; called after the partial results were launched. A group of one
  // takes no ticket, so that it may be part of what a device repeats.
  Result<Scatter> begin_sum(Device& device, const SliceSums& sums);
  // Computes y in `dtype` = the sum over all slices (+ bias) (+ residual).
  struct SumTarget {
    void* y = nullptr;               // (own rows, columns)
    const void* bias = nullptr;      // (columns), or null
    const void* residual = nullptr;  // as y, or null
    DType dtype = DType::fp32;       // of all three
  };
  Result<void> finish_sum(Device& device, const Scatter& own_sum, const SliceSums& sums,
                          const SumTarget& target);
  // Finishes one piece of the exchange, and returns the sum of its rows for the caller to launch, alone or as part of
  // another op; they come in their order. The first of its rows is `piece` times its number of them.
  Result<TreeSum> finish_piece(Device& device, const Scatter& own_sum, const SliceSums& sums,
                               const SumTarget& target, int piece);
  // Returns the shape of the sum of this rank's rows, all in one piece.
  TreeSum sum_of(const SliceSums& sums, DType dtype) const;

  // Waits until all exchanges are finished. Returns the first error of one of them, also an earlier one.
  Result<void> finish();
  // Watches the exchanges in the device's queue without waiting for them, for loops that wait for something else.
  Result<void> watch();

 private:
  // Exchanges that may be in the device's queue at once, and the ops that may be behind the first of them: a driver
  // takes some 1,000 launches, and blocks the one after, when nobody watches any more.
  static constexpr std::size_t open_max = 32;
  static constexpr Device::Ticket ahead_max = 256;
  static constexpr Device::Ticket not_followed = ~Device::Ticket{0};
  // Smallest message that half of the rows may be: it travels for longer than an exchange takes to begin.
  static constexpr std::size_t half_bytes_min = std::size_t{1} << 20;

  struct Messages {
    std::array<Transport::Incoming, TreeSum::parts_max> incoming;
    std::array<Transport::Outgoing, TreeSum::parts_max> outgoing;
    std::size_t peers = 0;
  };
  template <typename Source, typename Target>
  Messages messages_with_all(const Source& source_of_peer, const Target& target_of_peer) const;
  Messages messages_of(const Scatter& scatter, int piece) const;
  int pieces_of(const SliceSums& sums) const;
  std::size_t part_of(std::size_t whole_bytes) const;
  Result<bool> advance();

  // These move messages by the host.
  Result<void> wait_for(Device& device, Device::Ticket ticket);
  Result<void> exchange(Device& device, Device::Ticket ready, const Messages& messages);

  // These move them by the device.
  bool is_by_device() const { return device_ != nullptr; }
  template <typename T>
  Result<T> noted(Result<T> outcome);
  Result<Transport::Number> enqueue(const Messages& messages);
  Result<void> follow(Transport::Number number);
  Result<void> wait_until_finished(Transport::Number end, SpanKind kind);
  bool is_far_ahead();
  bool is_held_up() const;
  void look() override { static_cast<void>(watch()); }
  Device::Ticket& followed_at(Transport::Number number) { return followed_at_[number % open_max]; }

  TensorShare share_;
  Transport* transport_ = nullptr;
  const Waiter* waiter_ = nullptr;
  Device* device_ = nullptr;                            // null: by the host
  std::optional<PollBackoff> backoff_;                  // of the exchanges in the queue
  std::array<Device::Ticket, open_max> followed_at_{};  // of all that is before an exchange's end event
  Transport::Number end_ = 0;                           // of the exchanges that were put into the queue
  Transport::Number watched_ = 0;                       // the oldest of them at the last look
  std::int64_t last_look_ns_ = 0;
  Result<void> failure_;
  Background background_;
  SpanRecorder* spans_ = nullptr;
};

}  // namespace holdfast::parallel
