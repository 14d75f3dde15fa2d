// ParameterGather: gathers the parameters that their owners have updated. After the update every rank sends
// its owned ranges of the flat parameter buffer to all others, bucket by bucket in forward order, while the
// next forward runs (ZeRO stage 1: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training
// Trillion Parameter Models").
//
//   gather.begin(trained);                 // after the update; returns without waiting
//   ... HF_TRY_VOID(gather.wait_for(b));   // before something that reads bucket b is launched
//   HF_TRY_VOID(gather.finish());          // before anything else reads parameters or uses the transport
//
// Each bucket is one exchange (transport.h), or one and the next where it goes to hosts and then inside them
// (GatherExchange), so buckets arrive in the order of the forward. Where the two
// ends of a tied weight are on two stages, the embedding's owner first sends it to the head's, which then
// sends it to its group: that is the last bucket of its forward.
//
// It cannot deadlock: a rank sends as soon as it has begun, whatever it waits for. A rank that waits here
// advances the rest of its communication (the background), and one that waits elsewhere, a collective between two
// steps included (Waiter::with_background()), calls advance(): the ranks of another stage, or of the group that shares a
// layer, need parameters at other times.
//
// Threads: one. Errors: communication; the transport is abandoned. Nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "parallel/comm/transport.h"
#include "parallel/data/buckets.h"
#include "parallel/data/gather_exchange.h"
#include "runtime/device/device.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::parallel {

struct ParameterGatherCounts {
  std::uint64_t buckets = 0;          // number of buckets gathered
  std::uint64_t buckets_awaited = 0;  // those of `buckets` that had not arrived when needed
  std::uint64_t bytes_sent_to_other_hosts = 0;
  std::int64_t gather_us = 0;   // from begin() until all was received and sent
  std::int64_t exposed_us = 0;  // part of gather_us in which the host waited and the device was idle
};

class ParameterGather {
 public:
  // Parameters that a gather brings: those that an update changes, or the frozen ones, too.
  enum class Which { trained, all };
  // Constructs the gather. All arguments passed by reference except `waiter` outlive this object.
  // `dtype_bytes`: size of an element of the buffer.
  ParameterGather(const BucketPlan& buckets, const LaneExchange& lanes, Transport& transport, Device& device,
                  const Waiter& waiter, std::size_t dtype_bytes);
  ~ParameterGather();
  ParameterGather(const ParameterGather&) = delete;
  ParameterGather& operator=(const ParameterGather&) = delete;
  // Sets the flat parameter buffer.
  void bind(std::byte* parameters) { parameters_ = parameters; }
  // Connects the pair of ranks that exchange a tied weight, where BucketPlan says that its other end is on
  // another stage: this rank and that stage's rank of the same number in its group.
  void connect_tied(Transport& pair) { tied_ = &pair; }
  // Advances other communication while this object waits. Returns whether there was progress.
  using Background = std::function<Result<bool>()>;
  void set_background(Background background) { background_ = std::move(background); }
  // Records waits in `spans` from now on; `spans` outlives this object.
  void record(SpanRecorder& spans) { spans_ = &spans; }

  // Begins a gather. The device has written what this rank owns, and nothing that was launched reads the
  // buffer any more.
  Result<void> begin(Which which);
  // Advances what can be advanced without waiting. Returns whether there was progress.
  Result<bool> advance();
  // Returns when the parameters of this bucket (BucketPlan's number; it is not frozen), and all trained ones
  // that a forward reads before it, are complete for what is launched from then on.
  Result<void> wait_for(int bucket);
  // Returns when all parameters are complete and all sends are done.
  Result<void> finish();

  ParameterGatherCounts counts() const { return counts_; }

 private:
  enum class Tied { none, sending, receiving, arrived, whole };

  using Stage = GatherExchange::Stage;

  std::span<std::byte> bytes_of(const ElementRange& range) const;
  // Returns the number of exchanges that bring the first `buckets` buckets.
  std::size_t exchanges_of(std::size_t buckets) const {
    return buckets + (buckets > 0 && exchange_.has_two_stages() ? 1 : 0);
  }
  // Calls visit(stage, bucket) for the messages that an exchange has.
  template <typename Visit>
  void for_stages(std::size_t exchange, const Visit& visit) const;
  bool may_send(std::size_t exchange) const;
  bool all_received(std::size_t exchange, Stage stage) const;
  Result<void> begin_tied(Which which);
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
  const LaneExchange* lanes_;
  GatherExchange exchange_;
  Transport* transport_;
  Device* device_;
  Waiter waiter_;
  std::size_t dtype_bytes_;
  int rank_, ranks_;
  std::byte* parameters_ = nullptr;
  Transport* tied_ = nullptr;
  Background background_;
  SpanRecorder* spans_ = nullptr;
  std::vector<int> order_;          // buckets that have parameters here, in forward order; frozen ones last
  std::size_t trained_count_ = 0;   // number of buckets of order_ that are not frozen
  std::vector<std::size_t> place_;  // by bucket: its index in order_, or that of the one it shadows
  std::vector<GatherExchange::Message> messages_;  // of one exchange, as are these:
  std::vector<Transport::Incoming> incoming_;
  std::vector<Transport::Outgoing> outgoing_;

  // State of one gather.
  bool under_way_ = false;
  std::size_t count_ = 0;              // it gathers the first buckets of order_, so many
  Transport::Number first_ = 0;        // number of the first exchange
  std::size_t opened_ = 0, sent_ = 0;  // exchanges
  std::size_t whole_ = 0;              // buckets of order_
  Tied tied_state_ = Tied::none;
  Transport::Number tied_number_ = 0;
  Device::Ticket tied_ticket_ = 0;
  std::int64_t began_ns_ = 0;
  std::int64_t ended_ns_ = 0;  // of the last gather, while none is under way
  ParameterGatherCounts counts_;
};

}  // namespace holdfast::parallel
