// LaneReduction: sends each lane's gradient buckets to the owners of their blocks while backward still runs,
// and adds them at the owner in lane order (lane_sum.h). It executes what LaneExchange plans, by which sums of
// blocks of lanes may travel in the lanes' place; bits do not depend on the number of ranks, nor on their hosts.
//
// One step, on every rank:
//   reduction.begin_step();
//   for each wave:
//     reduction.begin_wave(wave);                       // opens the exchanges, so posts the receives
//     ... launch the lane's microbatches; for its last microbatch, in bucket order:
//         HF_TRY_VOID(reduction.wait_for_slot(bucket));  // before it is written
//         reduction.bucket_launched(bucket, device.ticket());
//     reduction.backward_launched();
//     HF_TRY_VOID(reduction.finish_wave());             // polls; sends leave as tickets are reached
//   reduction.finish_step();                            // launches the last adds
//   wait_for_device(device, communicator);              // the sums are whole
// A rank without a lane in a wave only receives. When finish_wave() returns, the lane's backward, its sends
// and the adds of the wave are done: the next wave may overwrite the gradient buffer. A single rank receives
// nothing: its waves follow each other in the queue, and only the end of the step waits. After an error the
// transport is abandoned. Nothing is allocated after construction.
//
// Each bucket of a wave is one exchange (transport.h) or two, opened in the same order on every rank. Where buckets
// share memory, of the gradient buffer (BucketPlan::gradient_slots) or of the receive staging alone (staging_places()),
// the first exchange of a bucket is opened, and the bucket may be written, when the previous bucket of its slot has been
// sent and added. This cannot deadlock, because it waits only for exchanges that were opened before it, on every rank.
// A bucket with a place of its own in the gradient buffer waits, too: adds run behind what is launched before them, so
// those of a backward that is launched at once would free no slot before its end.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "parallel/comm/transport.h"
#include "parallel/data/buckets.h"
#include "parallel/data/lane_exchange.h"
#include "parallel/data/lane_sum.h"
#include "parallel/data/link_digests.h"
#include "parallel/group/mesh.h"
#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::parallel {

struct LaneReductionCounts {
  // "Before backward ended" counts sends that were posted before the last bucket of the lane was ready.
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_sent_to_other_hosts = 0;  // part of bytes_sent
  std::uint64_t bytes_sent_before_backward_ended = 0;
  std::uint64_t buckets_sent = 0;
  std::uint64_t buckets_sent_before_backward_ended = 0;
  std::int64_t exposed_us = 0;  // time in finish_wave after this rank's own backward had ended
};

class LaneReduction {
 public:
  // Reserves the memory of LaneSum and LinkDigests in `plan`. Everything passed by reference except `plan` and `waiter`
  // outlives this object. `exchange` is of this rank. `digests_sums`: reduced() has digests. `staging_bytes`: as for
  // staging_places(), the same on all ranks.
  LaneReduction(const BucketPlan& buckets, LaneExchange exchange, Transport& transport, Device& device,
                const Waiter& waiter, MemoryPlan& plan, bool digests_sums = false,
                std::uint64_t staging_bytes = staging_bytes_max);
  ~LaneReduction();
  LaneReduction(const LaneReduction&) = delete;
  LaneReduction& operator=(const LaneReduction&) = delete;
  // Binds the memory. It is called once, after the arena exists; `gradients` is the flat gradient buffer of
  // this rank's lanes.
  void bind(const MemoryArena& arena, float* gradients);
  // Advances other communication while a launch waits for a slot. Returns whether there was progress.
  using Background = std::function<Result<bool>()>;
  void set_background(Background background) { background_ = std::move(background); }
  // Records waves, waits and buckets in `spans` from the next step on; `spans` outlives this object.
  void record(SpanRecorder& spans) { recorded_.spans = &spans; }
  // Passes the point reduce.received at each message that has arrived, before it is used; `faults` outlives this
  // object.
  void use_faults(FaultPoints& faults) { faults_ = &faults; }

  // Launches the kinds of digests of links() while the device plans (Device::begin_planning()).
  void plan_digests();

  // `digests_links`: links() has digests of this step.
  void begin_step(bool digests_links = false);
  Result<void> begin_wave(int wave);
  // Waits until the gradients of this bucket may be written. It is called before the operations that write
  // them are launched, and returns at once where every bucket has a slot of its own.
  Result<void> wait_for_slot(int bucket);
  bool shares_slots() const { return slots_ < bucket_count_; }
  void bucket_launched(int bucket, Device::Ticket ticket);
  void backward_launched();
  // Advances what can be advanced without waiting, for a caller that waits for something else meanwhile.
  // Returns whether there was progress.
  Result<bool> advance();
  bool wave_is_done() const;  // true: finish_wave() would return at once
  Error give_up();            // abandons; returns finish_wave()'s error of a timeout
  Result<void> finish_wave();
  // Returns this rank's range of a tied bucket whose other end is on another stage (LaneSum::sum_of). It is
  // called between the last wave and finish_step().
  std::span<float> sum_of(int bucket) const { return sum_.sum_of(bucket); }
  // Launches the adds of tied buckets. The sums are complete when the device has run what was launched
  // (device_wait.h).
  void finish_step();

  // Returns the owned segments' sums over all lanes, valid from the end of a step to the next begin_step().
  // Their location stays the same from bind() on.
  ReducedGradients reduced() const { return sum_.reduced(); }
  // Returns the sums of squares of reduced(), one for each block of BucketPlan::segments(), in their order.
  std::span<const double> square_sums() const { return sum_.square_sums(); }
  LaneReductionCounts counts() const { return counts_; }
  const LinkDigests& links() const { return links_; }
  // Message of a lane that arrived last, for fault points.
  struct Received {
    std::span<float> values;
    int source = -1;  // Transport::global_rank()
  };
  const Received& last_received() const { return last_received_; }

 private:
  using Exchange = LaneExchange::Exchange;
  using Stage = LaneExchange::Stage;
  // State of one wave of the step, and of the exchanges of its buckets.
  struct Wave {
    bool under_way = false;
    int number = 0;
    std::vector<LanePart> parts;       // in lane order
    LanePart own;                      // that of this rank's lane
    std::vector<ElementRange> summed;  // by bucket: what this rank sums of its block
    bool has_lane = false;
    bool backward_launched = false;  // or there is no lane
    Device::Ticket backward_end = 0, last_add = 0;
    std::int64_t backward_ended_ns = -1, done_ns = -1;  // when these were first seen
    std::vector<Device::Ticket> tickets;                // of the buckets launched so far
    std::size_t ready = 0;                              // number of these that are reached
    int opened = 0,
        sent = 0;  // number of exchanges that were opened, and whose sends are posted to the transport
    Transport::Number first = 0;                // number of the first of them
    std::size_t first_adding = 0;               // all buckets before it are added
    std::vector<std::size_t> next_add;          // by bucket: the part that is added next
    std::vector<int> next_in_block;             // by bucket: the rank whose lane its block's sum has next
    std::vector<Device::Ticket> add_tickets;    // by bucket: ticket of its last add so far
    std::vector<Device::Ticket> block_tickets;  // by bucket: that of the sum of its block
    std::size_t adds_left = 0;
    std::vector<LaneExchange::Message> messages;  // of one exchange
    std::vector<Transport::Incoming> incoming;
    std::vector<Transport::Outgoing> outgoing;
  };
  // Spans of a wave, where they are recorded.
  struct Recorded {
    SpanRecorder* spans = nullptr;
    Span* wave = nullptr;
    std::vector<Span*> buckets;  // [0, noted) have begun, the first `ended` of which are over
    std::size_t noted = 0, ended = 0;
  };

  const ElementRange& owned(int rank, std::size_t bucket) const {
    return exchange_.owned(rank, static_cast<int>(bucket));
  }
  bool backward_ended() const { return wave_.backward_launched && device_->reached(wave_.backward_end); }
  bool exchanged() const;
  bool wave_is_whole() const;
  bool has_added(std::size_t bucket) const;
  bool slot_is_free(std::size_t bucket) const;
  bool is_received(int position, int source) const;
  bool block_is_summed(std::size_t bucket) const;
  std::span<float> received_from(Stage stage, std::size_t bucket, int source) const;
  Exchange exchange_at(int position) const { return exchange_.at(wave_.number, position); }
  std::uint64_t first_index(int target, Stage stage, std::size_t bucket) const;
  void digest_sent(Stage stage, std::size_t bucket);
  void take_received(Stage stage, std::size_t bucket, int source);
  Result<void> open_wave(int wave);
  Result<void> open_next();
  Result<bool> open_exchanges();
  void sum_block(std::size_t bucket);
  void launch_adds(std::size_t bucket);
  void launch_adds();
  bool sends_in(const Exchange& exchange) const;
  std::optional<Device::Ticket> sends_after(const Exchange& exchange) const;
  std::optional<Device::Ticket> next_send_after() const;
  Device::Ticket awaited_ticket() const;
  Result<void> send(int position);
  Result<bool> send_ready();
  Result<bool> move_on();
  Result<void> poll_until_free(std::size_t bucket);
  Result<void> poll_until_whole();
  Awaited awaited() const;
  Error timed_out() const;
  bool recording() const { return recorded_.spans != nullptr && recorded_.spans->on(); }
  std::uint64_t bytes_of(int bucket);
  void note_opened(int bucket, std::uint64_t bytes);
  void note_ended();

  LaneExchange exchange_;
  LaneSchedule schedule_;
  Transport* transport_;
  Device* device_;
  Waiter waiter_;
  int rank_, ranks_;
  std::size_t bucket_count_;
  std::size_t slots_;  // number of slots that buckets share
  Background background_;
  // [rank * (buckets + 1) + bucket]: elements that the rank owns of all buckets before this one
  std::vector<std::uint64_t> elements_before_;
  std::uint64_t largest_bucket_ = 0;  // elements
  LaneSum sum_;
  LinkDigests links_;
  FaultPoints* faults_ = nullptr;
  Received last_received_;
  float* gradients_ = nullptr;
  LaneReductionCounts counts_;
  int next_wave_ = 0;
  Wave wave_;
  Recorded recorded_;
};

}  // namespace holdfast::parallel
