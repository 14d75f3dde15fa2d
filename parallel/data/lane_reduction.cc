#include "parallel/data/lane_reduction.h"

#include <fmt/core.h>

#include <algorithm>

#include "parallel/comm/device_wait.h"

namespace holdfast::parallel {

LaneReduction::LaneReduction(const BucketPlan& buckets, LaneSchedule schedule, Transport& transport,
                             Device& device, const Waiter& waiter, MemoryPlan& plan, bool digests_sums)
    : schedule_(schedule),
      transport_(&transport),
      device_(&device),
      waiter_(waiter),
      rank_(transport.rank()),
      ranks_(transport.size()),
      bucket_count_(static_cast<std::size_t>(buckets.local_count())),
      slots_(static_cast<std::size_t>(buckets.gradient_slots())),
      sum_(buckets, schedule, transport.rank(), device, plan, digests_sums),
      links_(transport, device, plan) {
  HF_CHECK(buckets.ranks() == ranks_ && schedule_.ranks() == ranks_);
  HF_CHECK(ranks_ > 1 || !buckets.shares_gradient_memory(), "a rank alone sums where its gradients lie");
  for (int r = 0; r < ranks_; ++r) {
    std::uint64_t before = 0;
    for (std::size_t b = 0; b < bucket_count_; ++b) {
      ranges_.push_back(buckets.gradient_range(static_cast<int>(b), r));
      elements_before_.push_back(before);
      before += ranges_.back().size();
    }
    elements_before_.push_back(before);
  }
  wave_.tickets.reserve(bucket_count_);
  wave_.next_add.resize(bucket_count_);
  wave_.add_tickets.resize(bucket_count_);
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
  std::uint64_t largest = 0;
  for (const ElementRange& range : ranges_) largest = std::max(largest, range.size());
  links_.plan(largest);
}

void LaneReduction::begin_step(bool digests_links) {
  HF_CHECK(!wave_.under_way);
  links_.begin_step(digests_links);
  next_wave_ = 0;
}

bool LaneReduction::exchanged() const {
  return wave_.opened == bucket_count_ && transport_->oldest() >= wave_.first + bucket_count_;
}

bool LaneReduction::wave_is_whole() const {
  return wave_.adds_left == 0 &&
         (ranks_ == 1 || (exchanged() && backward_ended() && device_->reached(wave_.last_add)));
}

bool LaneReduction::has_added(std::size_t bucket) const {
  return owned(rank_, bucket).size() == 0 || wave_.next_add[bucket] == wave_.active;
}

std::span<const float> LaneReduction::to_send(int target, std::size_t bucket) const {
  const ElementRange& range = owned(target, bucket);
  return {gradients_ + range.begin, range.size()};
}

std::span<float> LaneReduction::received_lane(int source, std::size_t bucket) const {
  return {sum_.lane(wave_.number, source, static_cast<int>(bucket)), owned(rank_, bucket).size()};
}

std::span<std::byte> LaneReduction::to_receive(int source, std::size_t bucket) const {
  return std::as_writable_bytes(received_lane(source, bucket));
}

// Returns the index of a bucket's first element in all that one rank sends to its owner in the step.
std::uint64_t LaneReduction::first_index(int owner, std::size_t bucket) const {
  const std::uint64_t* const before =
      elements_before_.data() + static_cast<std::size_t>(owner) * (bucket_count_ + 1);
  return static_cast<std::uint64_t>(wave_.number) * before[bucket_count_] + before[bucket];
}

void LaneReduction::digest_sent(std::size_t bucket) {
  if (!links_.wanted()) return;
  for (int target = 0; target < ranks_; ++target) {
    if (target != rank_ && owned(target, bucket).size() > 0)
      links_.launch_sent(target, to_send(target, bucket), first_index(target, bucket));
  }
}

// Takes a lane that has arrived from another rank, before it is added.
void LaneReduction::take_received(int source, std::size_t bucket) {
  const std::span<float> lane = received_lane(source, bucket);
  last_received_ = {.values = lane, .source = transport_->global_rank(source)};
  if (faults_ != nullptr) HF_FAULT_POINT(*faults_, "reduce.received");
  links_.launch_received(source, lane, first_index(rank_, bucket));
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
  wave_.active = schedule_.lanes_in_wave(wave_.number);
  wave_.has_lane = schedule_.lane_of(wave_.number, rank_) >= 0;
  wave_.backward_end = wave_.last_add = device_->ticket();
  wave_.backward_launched = !wave_.has_lane;
  wave_.backward_ended_ns = wave_.done_ns = -1;
  wave_.tickets.clear();
  wave_.ready = wave_.sent = wave_.opened = wave_.first_adding = wave_.adds_left = 0;
  wave_.next_add.assign(bucket_count_, 0);
  wave_.add_tickets.assign(bucket_count_, wave_.backward_end);
  for (std::size_t b = 0; b < bucket_count_; ++b) {
    if (owned(rank_, b).size() > 0) wave_.adds_left += static_cast<std::size_t>(wave_.active);
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
  digest_sent(index);
  launch_adds(index);
}

// Takes the ticket of the last bucket and not the newest one: adds of this wave may be in the queue after the
// last bucket already. A stage on which everything is frozen has no bucket, and no adds.
void LaneReduction::backward_launched() {
  HF_CHECK(wave_.under_way && wave_.tickets.empty() == (bucket_count_ == 0));
  wave_.backward_end = wave_.tickets.empty() ? device_->ticket() : wave_.tickets.back();
  wave_.backward_launched = true;
}

// Launches every add whose turn it is. The lanes of a wave are added in the order of their ranks, whatever
// arrived first.
void LaneReduction::launch_adds(std::size_t bucket) {
  if (owned(rank_, bucket).size() == 0) return;
  for (int& source = wave_.next_add[bucket]; source < wave_.active; ++source) {
    const bool here = source == rank_
                          ? bucket < wave_.tickets.size()
                          : bucket < wave_.opened && transport_->received(wave_.first + bucket, source);
    if (!here) return;
    if (source != rank_) take_received(source, bucket);
    sum_.add(wave_.number, source, static_cast<int>(bucket));
    wave_.last_add = wave_.add_tickets[bucket] = device_->ticket();
    --wave_.adds_left;
  }
}

void LaneReduction::launch_adds() {
  while (wave_.first_adding < bucket_count_ && has_added(wave_.first_adding)) ++wave_.first_adding;
  for (std::size_t bucket = wave_.first_adding; bucket < wave_.opened; ++bucket) launch_adds(bucket);
}

// Returns whether the slot of the bucket is free in the gradient buffer and in the receive staging. The wave
// before does not use them any more.
bool LaneReduction::slot_is_free(std::size_t bucket) const {
  if (bucket < slots_) return true;
  const std::size_t before = bucket - slots_;
  return before < wave_.opened && transport_->oldest() > wave_.first + before && has_added(before) &&
         device_->reached(wave_.add_tickets[before]);
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
    const Device::Ticket next =
        wave_.ready < wave_.tickets.size() ? wave_.tickets[wave_.ready] : wave_.last_add;
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

// Opens exchanges in bucket order on every rank, as many as the transport takes. A rank without a lane sends
// nothing.
Result<bool> LaneReduction::open_exchanges() {
  if (ranks_ == 1) return false;
  const std::size_t before = wave_.opened;
  for (; wave_.opened < bucket_count_ && transport_->can_open() && slot_is_free(wave_.opened);
       ++wave_.opened) {
    wave_.incoming.clear();
    for (int source = 0; source < wave_.active; ++source) {
      if (source == rank_ || owned(rank_, wave_.opened).size() == 0) continue;
      wave_.incoming.push_back({.target = to_receive(source, wave_.opened), .peer = source});
    }
    HF_TRY(const Transport::Number number, transport_->open(wave_.incoming));
    if (wave_.opened == 0) wave_.first = number;
    if (!wave_.has_lane) {
      HF_TRY_VOID(transport_->send(number, {}));
      note_opened(wave_.opened, 0);
    }
  }
  return wave_.opened > before;
}

Result<void> LaneReduction::send(std::size_t bucket) {
  wave_.outgoing.clear();
  const std::uint64_t sent_before = counts_.bytes_sent;
  for (int step = 1; step < ranks_; ++step) {  // every rank starts with a different peer
    const int target = (rank_ + step) % ranks_;
    const std::span<const std::byte> bytes = std::as_bytes(to_send(target, bucket));
    if (bytes.empty()) continue;
    wave_.outgoing.push_back({.source = bytes, .peer = target});
    counts_.bytes_sent += bytes.size();
    if (!backward_ended()) counts_.bytes_sent_before_backward_ended += bytes.size();
  }
  HF_TRY_VOID(transport_->send(wave_.first + bucket, wave_.outgoing));
  note_opened(bucket, counts_.bytes_sent - sent_before);
  ++counts_.buckets_sent;
  if (!backward_ended()) ++counts_.buckets_sent_before_backward_ended;
  return {};
}

Result<bool> LaneReduction::send_ready() {
  const std::size_t before = wave_.ready + wave_.sent;
  while (wave_.ready < wave_.tickets.size() && device_->reached(wave_.tickets[wave_.ready])) ++wave_.ready;
  for (; wave_.sent < wave_.ready && wave_.sent < wave_.opened; ++wave_.sent) HF_TRY_VOID(send(wave_.sent));
  return wave_.ready + wave_.sent > before;
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

void LaneReduction::note_opened(std::size_t bucket, std::uint64_t bytes) {
  if (!recording()) return;
  recorded_.buckets[recorded_.noted++] = recorded_.spans->begin({.kind = SpanKind::exchange_bucket,
                                                                 .bucket = static_cast<std::int32_t>(bucket),
                                                                 .wave = wave_.number,
                                                                 .bytes = bytes});
}

void LaneReduction::note_ended() {
  if (!recording()) return;
  for (; recorded_.ended < recorded_.noted && transport_->oldest() > wave_.first + recorded_.ended;
       ++recorded_.ended)
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
    if (wave_.ready < wave_.tickets.size()) {
      device_->wait(wave_.tickets[wave_.ready], device_poll_us);
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
              awaited.number - wave_.first, what);
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
