#include "parallel/data/lane_reduction.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "parallel/comm/device_wait.h"

namespace holdfast::parallel {

LaneReduction::LaneReduction(const BucketPlan& buckets, LaneExchange exchange, Transport& transport,
                             Device& device, const Waiter& waiter, MemoryPlan& plan, bool digests_sums,
                             std::uint64_t staging_bytes)
    : exchange_(std::move(exchange)),
      schedule_(exchange_.schedule()),
      transport_(&transport),
      device_(&device),
      waiter_(waiter),
      rank_(transport.rank()),
      ranks_(transport.size()),
      bucket_count_(static_cast<std::size_t>(buckets.local_count())),
      slots_(index(staging_places(buckets, staging_bytes))),
      sum_(buckets, exchange_, device, plan, digests_sums, static_cast<int>(slots_)),
      links_(transport, device, plan) {
  HF_CHECK(buckets.ranks() == ranks_ && schedule_.ranks() == ranks_ && exchange_.rank() == rank_);
  HF_CHECK(slots_ > 1 || bucket_count_ <= 1 || !exchange_.sums_blocks(),
           "the last stage of a bucket comes after the first one of the next");
  HF_CHECK(ranks_ > 1 || !buckets.shares_gradient_memory(), "a rank alone sums where its gradients lie");
  for (int r = 0; r < ranks_; ++r) {
    std::uint64_t before = 0;
    for (std::size_t b = 0; b < bucket_count_; ++b) {
      elements_before_.push_back(before);
      before += owned(r, b).size();
    }
    elements_before_.push_back(before);
  }
  for (std::size_t b = 0; b < bucket_count_; ++b) {
    const LanePart all{.first = 0, .count = 1};  // whose rank sums for all owners
    largest_bucket_ = std::max(largest_bucket_, exchange_.summed_range(static_cast<int>(b), all, 0).size());
  }
  wave_.tickets.reserve(bucket_count_);
  wave_.parts.reserve(static_cast<std::size_t>(ranks_));
  wave_.summed.resize(bucket_count_);
  wave_.next_add.resize(bucket_count_);
  wave_.next_in_block.resize(bucket_count_);
  wave_.add_tickets.resize(bucket_count_);
  wave_.block_tickets.resize(bucket_count_);
  wave_.messages.reserve(2 * static_cast<std::size_t>(ranks_));
  wave_.incoming.reserve(static_cast<std::size_t>(ranks_));
  wave_.outgoing.reserve(static_cast<std::size_t>(ranks_));
  recorded_.buckets.resize(bucket_count_);
}

LaneReduction::~LaneReduction() {
  if (wave_.under_way && ranks_ > 1) transport_->abandon();  // its buffers are released
}

void LaneReduction::bind(const MemoryArena& arena, float* gradients) {
  sum_.bind(arena, gradients);
  links_.bind(arena);
  gradients_ = gradients;
}

void LaneReduction::plan_digests() {
  std::uint64_t largest = exchange_.sums_blocks() ? largest_bucket_ : 0;
  for (int rank = 0; rank < ranks_; ++rank)
    for (std::size_t bucket = 0; bucket < bucket_count_; ++bucket)
      largest = std::max(largest, owned(rank, bucket).size());
  links_.plan(largest);
}

void LaneReduction::begin_step(bool digests_links) {
  HF_CHECK(!wave_.under_way);
  links_.begin_step(digests_links);
  next_wave_ = 0;
}

bool LaneReduction::exchanged() const {
  const int count = exchange_.count(wave_.number);
  return wave_.opened == count && transport_->oldest() >= wave_.first + static_cast<Transport::Number>(count);
}

bool LaneReduction::wave_is_whole() const {
  return wave_.adds_left == 0 &&
         (ranks_ == 1 || (exchanged() && backward_ended() && device_->reached(wave_.last_add)));
}

bool LaneReduction::has_added(std::size_t bucket) const {
  const bool added = owned(rank_, bucket).size() == 0 || wave_.next_add[bucket] == wave_.parts.size();
  return added && block_is_summed(bucket);
}

// Returns whether the adds of what this rank sums of its block are launched; true where that is nothing.
bool LaneReduction::block_is_summed(std::size_t bucket) const {
  return wave_.summed[bucket].size() == 0 || wave_.next_in_block[bucket] == wave_.own.end();
}

// Returns where the gradients of a rank are received.
std::span<float> LaneReduction::received_from(Stage stage, std::size_t bucket, int source) const {
  const int number = static_cast<int>(bucket);
  if (stage == Stage::inside)
    return {sum_.lane_of_block(wave_.number, source, number), wave_.summed[bucket].size()};
  return {sum_.part(wave_.number, source, number), owned(rank_, bucket).size()};
}

bool LaneReduction::is_received(int position, int source) const {
  return position < wave_.opened &&
         transport_->received(wave_.first + static_cast<Transport::Number>(position), source);
}

// Returns the index of the first element of a message in all that one rank sends to its target in the step: those of
// its own ranges first, then those of the ranges that it sums.
std::uint64_t LaneReduction::first_index(int target, Stage stage, std::size_t bucket) const {
  const std::uint64_t* const before =
      elements_before_.data() + static_cast<std::size_t>(target) * (bucket_count_ + 1);
  const auto wave = static_cast<std::uint64_t>(wave_.number);
  if (stage == Stage::to_owners) return wave * before[bucket_count_] + before[bucket];
  const auto waves = static_cast<std::uint64_t>(schedule_.waves());
  return waves * before[bucket_count_] + (wave * bucket_count_ + bucket) * largest_bucket_;
}

void LaneReduction::digest_sent(Stage stage, std::size_t bucket) {
  if (!links_.wanted()) return;
  wave_.messages.clear();
  exchange_.outgoing(wave_.number, stage, static_cast<int>(bucket), wave_.messages);
  for (const LaneExchange::Message& message : wave_.messages)
    links_.launch_sent(message.peer, {gradients_ + message.range.begin, message.range.size()},
                       first_index(message.peer, stage, bucket));
}

// Takes what has arrived from another rank, before it is added.
void LaneReduction::take_received(Stage stage, std::size_t bucket, int source) {
  const std::span<float> values = received_from(stage, bucket, source);
  last_received_ = {.values = values, .source = transport_->global_rank(source)};
  if (faults_ != nullptr) HF_FAULT_POINT(*faults_, "reduce.received");
  links_.launch_received(source, values, first_index(rank_, stage, bucket));
}

Result<void> LaneReduction::begin_wave(int wave) {
  Result<void> result = open_wave(wave);
  if (!result.ok()) transport_->abandon();
  return result;
}

Result<void> LaneReduction::open_wave(int wave) {
  HF_CHECK(!wave_.under_way && wave == next_wave_ && wave < schedule_.waves() &&
               (gradients_ != nullptr || bucket_count_ == 0),
           "wave {} after {} waves of the step", wave, next_wave_);
  ++next_wave_;
  wave_.under_way = true;
  wave_.number = wave;
  exchange_.parts(wave_.number, wave_.parts);
  wave_.has_lane = schedule_.lane_of(wave_.number, rank_) >= 0;
  wave_.own = wave_.has_lane ? exchange_.part_of(wave_.number, rank_) : LanePart();
  wave_.backward_end = wave_.last_add = device_->ticket();
  wave_.backward_launched = !wave_.has_lane;
  wave_.backward_ended_ns = wave_.done_ns = -1;
  wave_.tickets.clear();
  wave_.sent = wave_.opened = 0;
  wave_.ready = wave_.first_adding = wave_.adds_left = 0;
  wave_.next_add.assign(bucket_count_, 0);
  wave_.next_in_block.assign(bucket_count_, wave_.own.first);
  wave_.add_tickets.assign(bucket_count_, wave_.backward_end);
  wave_.block_tickets.assign(bucket_count_, wave_.backward_end);
  for (std::size_t b = 0; b < bucket_count_; ++b) {
    wave_.summed[b] =
        wave_.own.is_block() ? exchange_.summed_range(static_cast<int>(b), wave_.own, rank_) : ElementRange();
    if (owned(rank_, b).size() > 0) wave_.adds_left += wave_.parts.size();
  }
  recorded_.noted = recorded_.ended = 0;
  if (recording())
    recorded_.wave = recorded_.spans->begin({.kind = SpanKind::lane_wave, .wave = wave_.number});
  return outcome_of(open_exchanges());
}

void LaneReduction::bucket_launched(int bucket, Device::Ticket ticket) {
  const auto index = static_cast<std::size_t>(bucket);
  HF_CHECK(wave_.under_way && wave_.has_lane && index < bucket_count_ && index == wave_.tickets.size(),
           "bucket {} was launched after {} others", bucket, wave_.tickets.size());
  wave_.tickets.push_back(ticket);
  digest_sent(wave_.own.is_block() ? Stage::inside : Stage::to_owners, index);
  launch_adds(index);
}

// Takes the ticket of the last bucket and not the newest one: adds of this wave may be in the queue after the
// last bucket already. A stage on which everything is frozen has no bucket, and no adds.
void LaneReduction::backward_launched() {
  HF_CHECK(wave_.under_way && wave_.tickets.empty() == (bucket_count_ == 0));
  wave_.backward_end = wave_.tickets.empty() ? device_->ticket() : wave_.tickets.back();
  wave_.backward_launched = true;
}

// Launches the adds of what this rank sums of its block, as far as the lanes have arrived.
void LaneReduction::sum_block(std::size_t bucket) {
  const int number = static_cast<int>(bucket), position = exchange_.first_position(wave_.number, number);
  while (!block_is_summed(bucket)) {
    const int member = wave_.next_in_block[bucket];
    const bool here = member == rank_ ? bucket < wave_.tickets.size() : is_received(position, member);
    if (!here) return;
    if (member != rank_) take_received(Stage::inside, bucket, member);
    sum_.add_to_block(wave_.number, member, number);
    ++wave_.next_in_block[bucket];
    if (block_is_summed(bucket)) digest_sent(Stage::to_owners, bucket);
    wave_.block_tickets[bucket] = device_->ticket();
  }
}

// Launches every add whose turn it is. The parts of a wave are added in the order of their lanes, whatever
// arrived first.
void LaneReduction::launch_adds(std::size_t bucket) {
  sum_block(bucket);
  if (owned(rank_, bucket).size() == 0) return;
  const int number = static_cast<int>(bucket), position = exchange_.last_position(wave_.number, number);
  for (std::size_t& next = wave_.next_add[bucket]; next < wave_.parts.size(); ++next) {
    const LanePart& part = wave_.parts[next];
    const int source = exchange_.source_of(part, rank_);
    const bool here = source != rank_   ? is_received(position, source)
                      : part.is_block() ? block_is_summed(bucket)
                                        : bucket < wave_.tickets.size();
    if (!here) return;
    if (source != rank_) take_received(Stage::to_owners, bucket, source);
    sum_.add(wave_.number, part, number);
    wave_.last_add = wave_.add_tickets[bucket] = device_->ticket();
    --wave_.adds_left;
  }
}

void LaneReduction::launch_adds() {
  while (wave_.first_adding < bucket_count_ && has_added(wave_.first_adding)) ++wave_.first_adding;
  for (std::size_t bucket = wave_.first_adding;
       bucket < bucket_count_ &&
       exchange_.first_position(wave_.number, static_cast<int>(bucket)) < wave_.opened;
       ++bucket)
    launch_adds(bucket);
}

// Returns whether the slot of the bucket is free in the receive staging, and in a gradient buffer with slots. The wave
// before does not use them any more.
bool LaneReduction::slot_is_free(std::size_t bucket) const {
  if (bucket < slots_) return true;
  const std::size_t before = bucket - slots_;
  const int last = exchange_.last_position(wave_.number, static_cast<int>(before));
  return last < wave_.opened && transport_->oldest() > wave_.first + static_cast<Transport::Number>(last) &&
         has_added(before) && device_->reached(wave_.add_tickets[before]);
}

Result<void> LaneReduction::wait_for_slot(int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  if (slot_is_free(index)) return {};
  const HostSpan wait(recorded_.spans, {.kind = SpanKind::wait_lanes, .wave = wave_.number});
  Result<void> result = poll_until_free(index);
  if (!result.ok()) transport_->abandon();
  return result;
}

Result<void> LaneReduction::poll_until_free(std::size_t bucket) {
  PollBackoff backoff(waiter_);
  while (!slot_is_free(bucket)) {
    HF_TRY(bool moved, move_on());
    if (background_) {
      HF_TRY(const bool others, background_());
      moved |= others;
    }
    const Device::Ticket next = awaited_ticket();
    const bool computing = !device_->reached(next) || holds_up_messages(*device_);
    if (moved || computing) backoff.reset();
    if (moved) continue;
    if (computing) {
      device_->wait(device_->reached(next) ? device_->ticket() : next, device_poll_us);
    } else if (!backoff.pause([this] { return awaited(); })) {
      return timed_out();
    }
  }
  return {};
}

// Opens exchanges in the same order on every rank, as many as the transport takes.
Result<bool> LaneReduction::open_exchanges() {
  if (ranks_ == 1) return false;
  const int before = wave_.opened, count = exchange_.count(wave_.number);
  for (; wave_.opened < count && transport_->can_open(); ++wave_.opened) {
    const Exchange exchange = exchange_at(wave_.opened);
    const int bucket = std::max(exchange.inside, exchange.to_owners);  // the only one that may begin
    const bool begins = wave_.opened == exchange_.first_position(wave_.number, bucket);
    if (begins && !slot_is_free(static_cast<std::size_t>(bucket))) break;
    HF_TRY_VOID(open_next());
  }
  return wave_.opened > before;
}

// Opens the next exchange. Where this rank sends nothing in it, that is said at once.
Result<void> LaneReduction::open_next() {
  const Exchange exchange = exchange_at(wave_.opened);
  wave_.incoming.clear();
  for (const Stage stage : {Stage::inside, Stage::to_owners}) {
    if (exchange.of(stage) < 0) continue;
    const auto bucket = static_cast<std::size_t>(exchange.of(stage));
    wave_.messages.clear();
    exchange_.incoming(wave_.number, stage, exchange.of(stage), wave_.messages);
    for (const LaneExchange::Message& message : wave_.messages)
      wave_.incoming.push_back({.target = std::as_writable_bytes(received_from(stage, bucket, message.peer)),
                                .peer = message.peer});
  }
  HF_TRY(const Transport::Number number, transport_->open(wave_.incoming));
  if (wave_.opened == 0) wave_.first = number;
  if (sends_in(exchange)) return {};
  HF_TRY_VOID(transport_->send(number, {}));
  if (!wave_.has_lane && exchange.to_owners >= 0) note_opened(exchange.to_owners, 0);
  return {};
}

// Returns whether this rank may have something to send in an exchange.
bool LaneReduction::sends_in(const Exchange& exchange) const {
  return wave_.has_lane && (exchange.to_owners >= 0 || wave_.own.is_block());
}

// Returns the ticket after which the messages of an exchange can be sent; none: not all before it is launched.
std::optional<Device::Ticket> LaneReduction::sends_after(const Exchange& exchange) const {
  const int newest = std::max(wave_.own.is_block() ? exchange.inside : -1, exchange.to_owners);
  if (static_cast<std::size_t>(newest) >= wave_.tickets.size()) return {};
  const Device::Ticket lanes = wave_.tickets[static_cast<std::size_t>(newest)];
  if (exchange.to_owners < 0) return lanes;
  const auto summed = static_cast<std::size_t>(exchange.to_owners);
  if (!block_is_summed(summed)) return {};
  return std::max(lanes, wave_.block_tickets[summed]);
}

std::optional<Device::Ticket> LaneReduction::next_send_after() const {
  for (int position = wave_.sent; position < wave_.opened; ++position)
    if (const Exchange exchange = exchange_at(position); sends_in(exchange)) return sends_after(exchange);
  return {};
}

// Returns the ticket of what the device must do next for this wave to go on.
Device::Ticket LaneReduction::awaited_ticket() const {
  if (wave_.ready < wave_.tickets.size()) return wave_.tickets[wave_.ready];
  return next_send_after().value_or(wave_.last_add);
}

Result<void> LaneReduction::send(int position) {
  const Exchange exchange = exchange_at(position);
  wave_.messages.clear();
  wave_.outgoing.clear();
  exchange_.outgoing(wave_.number, exchange, wave_.messages);
  const bool ended = backward_ended();
  for (const LaneExchange::Message& message : wave_.messages) {
    const std::span<const float> values(gradients_ + message.range.begin, message.range.size());
    wave_.outgoing.push_back({.source = std::as_bytes(values), .peer = message.peer});
    counts_.bytes_sent += values.size_bytes();
    if (!exchange_.same_host(message.peer)) counts_.bytes_sent_to_other_hosts += values.size_bytes();
    if (!ended) counts_.bytes_sent_before_backward_ended += values.size_bytes();
  }
  HF_TRY_VOID(transport_->send(wave_.first + static_cast<Transport::Number>(position), wave_.outgoing));
  if (const int begun = wave_.own.is_block() ? exchange.inside : exchange.to_owners; begun >= 0)
    note_opened(begun, recording() ? bytes_of(begun) : 0);
  if (exchange.to_owners < 0) return {};
  ++counts_.buckets_sent;
  if (!ended) ++counts_.buckets_sent_before_backward_ended;
  return {};
}

Result<bool> LaneReduction::send_ready() {
  const std::size_t ready_before = wave_.ready;
  while (wave_.ready < wave_.tickets.size() && device_->reached(wave_.tickets[wave_.ready])) ++wave_.ready;
  bool posted = false;
  for (; wave_.sent < wave_.opened; ++wave_.sent) {
    const Exchange exchange = exchange_at(wave_.sent);
    if (!sends_in(exchange)) continue;
    const std::optional<Device::Ticket> after = sends_after(exchange);
    if (!after.has_value() || !device_->reached(*after)) break;
    HF_TRY_VOID(send(wave_.sent));
    posted = true;
  }
  return posted || wave_.ready > ready_before;
}

Result<bool> LaneReduction::advance() {
  if (!wave_.under_way) return false;
  Result<bool> moved = move_on();
  if (!moved.ok()) transport_->abandon();
  return moved;
}

bool LaneReduction::wave_is_done() const {
  return !wave_.under_way || wave_is_whole();
}

Result<bool> LaneReduction::move_on() {
  HF_TRY(const bool sending, send_ready());
  HF_TRY(const bool moved, transport_->advance());
  if (moved) launch_adds();
  HF_TRY(const bool opening, open_exchanges());
  const auto note = [this](bool happened, std::int64_t& first_seen_ns) {
    if (happened && first_seen_ns < 0) first_seen_ns = waiter_.env().monotonic_ns();
  };
  const bool whole = wave_is_whole();  // asked first: what ends meanwhile has ended in both
  note(backward_ended(), wave_.backward_ended_ns);
  note(whole, wave_.done_ns);
  note_ended();
  return sending || moved || opening;
}

// Returns the bytes that this rank sends of a bucket.
std::uint64_t LaneReduction::bytes_of(int bucket) {
  wave_.messages.clear();
  exchange_.outgoing(wave_.number, {.inside = bucket, .to_owners = bucket}, wave_.messages);
  std::uint64_t bytes = 0;
  for (const LaneExchange::Message& message : wave_.messages) bytes += message.range.size() * sizeof(float);
  return bytes;
}

void LaneReduction::note_opened(int bucket, std::uint64_t bytes) {
  if (!recording()) return;
  recorded_.buckets[recorded_.noted++] = recorded_.spans->begin(
      {.kind = SpanKind::exchange_bucket, .bucket = bucket, .wave = wave_.number, .bytes = bytes});
}

void LaneReduction::note_ended() {
  if (!recording()) return;
  const auto last = [this] {
    const int position = exchange_.last_position(wave_.number, static_cast<int>(recorded_.ended));
    return wave_.first + static_cast<Transport::Number>(position);
  };
  for (; recorded_.ended < recorded_.noted && transport_->oldest() > last(); ++recorded_.ended)
    recorded_.spans->end(recorded_.buckets[recorded_.ended]);
}

Result<void> LaneReduction::finish_wave() {
  const HostSpan wait(ranks_ > 1 ? recorded_.spans : nullptr,
                      {.kind = SpanKind::wait_lanes, .wave = wave_.number});
  Result<void> result = poll_until_whole();
  if (!result.ok()) transport_->abandon();
  return result;
}

Result<void> LaneReduction::poll_until_whole() {
  HF_CHECK(wave_.under_way && (!wave_.has_lane || wave_.tickets.size() == bucket_count_),
           "{} of {} buckets were launched in wave {}", wave_.tickets.size(), bucket_count_, wave_.number);
  if (ranks_ == 1) {
    HF_CHECK(wave_.adds_left == 0, "{} adds of wave {} were not launched", wave_.adds_left, wave_.number);
    wave_.under_way = false;
    if (recording()) recorded_.spans->end(recorded_.wave);
    return {};
  }
  PollBackoff backoff(waiter_);
  while (true) {
    HF_TRY(const bool moved, move_on());
    if (wave_.done_ns >= 0) break;  // not if it has become whole since move_on(), which takes the time
    if (moved || !backward_ended()) backoff.reset();
    const std::optional<Device::Ticket> next = next_send_after();
    if (wave_.ready < wave_.tickets.size()) {
      device_->wait(wave_.tickets[wave_.ready], device_poll_us);
    } else if (next.has_value() && !device_->reached(*next)) {
      device_->wait(*next, device_poll_us);
    } else if (exchanged()) {
      device_->wait(backward_ended() ? wave_.last_add : wave_.backward_end, 1000);
      backoff.reset();
    } else if (holds_up_messages(*device_)) {
      device_->wait(device_->ticket(), device_poll_us);
      backoff.reset();
    } else if (!backoff.pause([this] { return awaited(); })) {
      return timed_out();
    }
  }
  counts_.exposed_us += (wave_.done_ns - wave_.backward_ended_ns) / 1000;
  wave_.under_way = false;
  if (recording()) recorded_.spans->end(recorded_.wave);
  return {};
}

Awaited LaneReduction::awaited() const {
  return awaited_of(*transport_, "the lane reduction");
}

Error LaneReduction::timed_out() const {
  const Transport::Awaited awaited = transport_->awaited();
  const int peer = awaited.peer < 0 ? -1 : transport_->global_rank(awaited.peer);
  const std::string what = awaited.peer < 0    ? "did not finish: another rank"
                           : awaited.receiving ? fmt::format("did not arrive from rank {}, which", peer)
                                               : fmt::format("was not taken by rank {}, which", peer);
  return fail(ExitCode::communication,
              "rank {} saw nothing move for {} ms in wave {} of the lane reduction: bucket {} {} hangs or is "
              "unreachable; "
              "look at its output; where the run does not go on by itself, start it again",
              transport_->global_rank(rank_), waiter_.timeout_ms(), wave_.number,
              exchange_at(static_cast<int>(awaited.number - wave_.first)).to_owners, what);
}

Error LaneReduction::give_up() {
  const Error error = timed_out();
  transport_->abandon();
  return error;
}

void LaneReduction::finish_step() {
  HF_CHECK(!wave_.under_way && next_wave_ == schedule_.waves());
  sum_.add_tied();
}

}  // namespace holdfast::parallel
