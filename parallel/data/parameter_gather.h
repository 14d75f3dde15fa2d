// ParameterGather: after the update every rank sends its owned ranges of the flat parameter buffer to all
// others, bucket by bucket in forward order, while the next forward runs (ZeRO stage 1: Rajbhandari et al.
// 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models").
//
//   gather.begin();                        // after the update; returns without waiting
//   ... HF_TRY_VOID(gather.wait_for(b));   // before something that reads bucket b is launched
//   HF_TRY_VOID(gather.finish());          // before anything else reads parameters or uses the transport
//
// A bucket is one exchange (transport.h), so they arrive in the order of the forward. Where the two ends of a
// tied weight are on two stages, the embedding's owner first tells the head's, who then tells its group: that
// is the last bucket of its forward.
//
// No deadlock: a rank sends as soon as it has begun, whatever it waits for. Whoever waits here moves the
// rest of its communication on (the background), and whoever waits elsewhere calls advance(): the ranks of
// another stage, or of the group that shares a layer, ask for parameters at other times.
//
// Threads: one. Errors: communication; the transport is abandoned. Nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "parallel/comm/transport.h"
#include "parallel/data/buckets.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::inline parallel {

struct ParameterGatherCounts {
  std::uint64_t buckets = 0;          // gathered
  std::uint64_t buckets_awaited = 0;  // of these, those that were not there when they were asked for
  std::int64_t gather_us = 0;         // from begin() until all was there and sent
  std::int64_t exposed_us = 0;        // of that: the host waited, and the device had nothing left to do
};

class ParameterGather {
 public:
  // What is passed by reference but `waiter` outlives this object. `dtype_bytes`: of an element of the
  // buffer.
  ParameterGather(const BucketPlan& buckets, Transport& transport, Device& device, const Waiter& waiter,
                  std::size_t dtype_bytes);
  ~ParameterGather();
  ParameterGather(const ParameterGather&) = delete;
  ParameterGather& operator=(const ParameterGather&) = delete;
  // The flat parameter buffer.
  void bind(std::byte* parameters) { parameters_ = parameters; }
  // Where BucketPlan says that a tied weight's other end is elsewhere: with that stage's rank of the same
  // place in its group.
  void connect_tied(Transport& pair) { tied_ = &pair; }
  // Moves on what else is under way while this waits; whether anything moved.
  using Background = std::function<Result<bool>()>;
  void set_background(Background background) { background_ = std::move(background); }
  // From now on the waits go to `spans`, which outlives it.
  void record(SpanRecorder& spans) { spans_ = &spans; }

  // The device has written what this rank owns, and nothing that was launched reads the buffer any more.
  Result<void> begin();
  // Moves on what can move without waiting. Whether anything moved.
  Result<bool> advance();
  // Returns when the parameters of this bucket (BucketPlan's number), and of all that a forward reads before
  // it, are whole for what is launched from then on.
  Result<void> wait_for(int bucket);
  // All parameters are whole, and all that was to be sent is sent.
  Result<void> finish();

  ParameterGatherCounts counts() const { return counts_; }

 private:
  enum class Tied { none, sending, receiving, arrived, whole };

  std::span<std::byte> bytes_of(int bucket, int owner) const;
  Result<void> begin_tied();
  Result<bool> advance_tied();
  Result<bool> open_exchanges();
  Result<bool> send_ready();
  bool sends_finished() const;
  void note_progress();
  template <typename Done>
  Result<void> wait_until(const Done& done);
  bool waits_for_tied_alone() const;
  Awaited awaited() const;
  Error give_up();

  const BucketPlan* buckets_;
  Transport* transport_;
  Device* device_;
  Waiter waiter_;
  std::size_t dtype_bytes_;
  int rank_, ranks_;
  std::byte* parameters_ = nullptr;
  Transport* tied_ = nullptr;
  Background background_;
  SpanRecorder* spans_ = nullptr;
  std::vector<int> order_;          // buckets that have parameters here, in forward order
  std::vector<std::size_t> place_;  // by bucket: its place in order_, or that of the one it shadows
  std::vector<Transport::Incoming> incoming_;  // of one exchange
  std::vector<Transport::Outgoing> outgoing_;

  // One gather; counts are of order_.
  bool under_way_ = false;
  Transport::Number first_ = 0;  // of the first bucket's exchange
  std::size_t opened_ = 0, sent_ = 0, whole_ = 0;
  Tied tied_state_ = Tied::none;
  Transport::Number tied_number_ = 0;
  Device::Ticket tied_ticket_ = 0;
  std::int64_t began_ns_ = 0;
  ParameterGatherCounts counts_;
};

}  // namespace holdfast::inline parallel
