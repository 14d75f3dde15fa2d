#include "parallel/data/lane_reduction.h"

#include <fmt/core.h>

#include "parallel/comm/device_wait.h"
#include "parallel/data/lane_sum.h"

namespace holdfast::inline parallel {

struct LaneReduction::State {
  State(const BucketPlan& plan, LaneSchedule lane_schedule, Transport& group, Device& queue,
        const Waiter& wait, MemoryPlan& memory);

  const ElementRange& owned(int rank_index, std::size_t bucket) const {
    return ranges[static_cast<std::size_t>(rank_index) * bucket_count + bucket];
  }
  bool done() const { return adds_left == 0 && (ranks == 1 || (exchanged() && device->reached(last_add))); }
  bool backward_ended() const { return backward_launched && device->reached(backward_end); }
  bool exchanged() const { return opened == bucket_count && transport->oldest() >= first + bucket_count; }
  std::span<const std::byte> to_send(int target, std::size_t bucket) const {
    const ElementRange& range = owned(target, bucket);
    return std::as_bytes(std::span(gradients + range.begin, range.size()));
  }
  std::span<std::byte> to_receive(int source, std::size_t bucket) const {
    float* const lane = sum.lane(wave, source, static_cast<int>(bucket));
    return std::as_writable_bytes(std::span(lane, owned(rank, bucket).size()));
  }

  Result<void> begin(int wave_index);
  void launched(std::size_t bucket, Device::Ticket ticket);
  void launch_adds(std::size_t bucket);
  void launch_adds();
  bool has_added(std::size_t bucket) const {
    return owned(rank, bucket).size() == 0 || next_add[bucket] == active;
  }
  bool place_is_free(std::size_t bucket) const;
  Result<void> wait_for_place(std::size_t bucket);
  Result<bool> open_exchanges();
  Result<void> send(std::size_t bucket);
  Result<bool> send_ready();
  Result<bool> advance();
  Result<void> poll_until_done();
  Awaited awaited() const;
  Error timed_out() const;
  bool recording() const { return spans != nullptr && spans->on(); }
  void note_opened(std::size_t bucket, std::uint64_t bytes);
  void note_ended();

  LaneSchedule schedule;
  Transport* transport;
  Device* device;
  Waiter waiter;
  int rank, ranks;
  std::size_t bucket_count;
  std::size_t places;  // that buckets take turns in
  Background background;
  std::vector<ElementRange> ranges;
  LaneSum sum;
  float* gradients = nullptr;
  LaneReductionCounts counts;

  int next_wave = 0;

  // One wave.
  bool in_wave = false;
  int wave = 0;
  int active = 0;  // ranks 0 .. active-1 have a lane
  bool has_lane = false;
  bool backward_launched = false;  // or there is no lane
  Device::Ticket backward_end = 0, last_add = 0;
  std::int64_t backward_ended_ns = -1, done_ns = -1;  // when these were first seen
  std::vector<Device::Ticket> tickets;                // of the buckets launched so far
  std::size_t ready = 0;                              // so many of them are reached
  std::size_t sent = 0;                               // so many of them are handed to the transport
  Transport::Number first = 0;                        // of the exchange of bucket 0
  std::size_t opened = 0;                             // buckets
  std::size_t first_adding = 0;                       // all buckets before it are added
  std::vector<int> next_add;                          // by bucket: the rank whose lane is added next
  std::vector<Device::Ticket> add_tickets;            // by bucket: of its last add so far
  std::size_t adds_left = 0;
  std::vector<Transport::Incoming> incoming;  // of one exchange
  std::vector<Transport::Outgoing> outgoing;

  SpanRecorder* spans = nullptr;
  Span* wave_span = nullptr;
  std::vector<Span*> bucket_spans;  // of buckets [0, noted), the first `ended` of which are over
  std::size_t noted = 0, ended = 0;
};

LaneReduction::State::State(const BucketPlan& plan, LaneSchedule lane_schedule, Transport& group,
                            Device& queue, const Waiter& wait, MemoryPlan& memory)
    : schedule(lane_schedule),
      transport(&group),
      device(&queue),
      waiter(wait),
      rank(group.rank()),
      ranks(group.size()),
      bucket_count(static_cast<std::size_t>(plan.local_count())),
      places(static_cast<std::size_t>(plan.gradient_places())),
      sum(plan, lane_schedule, group.rank(), queue, memory) {
  HF_CHECK(plan.ranks() == ranks && schedule.ranks() == ranks);
  HF_CHECK(ranks > 1 || !plan.shares_gradient_memory(), "a rank alone sums where its gradients lie");
  for (int r = 0; r < ranks; ++r) {
    for (std::size_t b = 0; b < bucket_count; ++b) {
      ranges.push_back(plan.gradient_range(static_cast<int>(b), r));
    }
  }
  tickets.reserve(bucket_count);
  next_add.resize(bucket_count);
  add_tickets.resize(bucket_count);
  incoming.reserve(static_cast<std::size_t>(ranks));
  outgoing.reserve(static_cast<std::size_t>(ranks));
  bucket_spans.resize(bucket_count);
}

Result<void> LaneReduction::State::begin(int wave_index) {
  HF_CHECK(!in_wave && wave_index == next_wave && wave_index < schedule.waves() && gradients != nullptr,
           "wave {} after {} waves of the step", wave_index, next_wave);
  ++next_wave;
  in_wave = true;
  wave = wave_index;
  active = schedule.lanes_in_wave(wave);
  has_lane = schedule.lane_of(wave, rank) >= 0;
  backward_end = last_add = device->ticket();
  backward_launched = !has_lane;
  backward_ended_ns = done_ns = -1;
  tickets.clear();
  ready = sent = opened = first_adding = adds_left = 0;
  next_add.assign(bucket_count, 0);
  add_tickets.assign(bucket_count, backward_end);
  for (std::size_t b = 0; b < bucket_count; ++b) {
    if (owned(rank, b).size() > 0) adds_left += static_cast<std::size_t>(active);
  }
  noted = ended = 0;
  if (recording()) wave_span = spans->begin({.kind = SpanKind::lane_wave, .wave = wave});
  return outcome_of(open_exchanges());
}

void LaneReduction::State::launched(std::size_t bucket, Device::Ticket ticket) {
  HF_CHECK(in_wave && has_lane && bucket < bucket_count && bucket == tickets.size(),
           "bucket {} was launched after {} others", bucket, tickets.size());
  tickets.push_back(ticket);
  launch_adds(bucket);
}

// Every add whose turn it is: the lanes of a wave in the order of their ranks, whatever arrived first.
void LaneReduction::State::launch_adds(std::size_t bucket) {
  if (owned(rank, bucket).size() == 0) return;
  for (int& source = next_add[bucket]; source < active; ++source) {
    const bool here = source == rank ? bucket < tickets.size()
                                     : bucket < opened && transport->received(first + bucket, source);
    if (!here) return;
    sum.add(wave, source, static_cast<int>(bucket));
    last_add = add_tickets[bucket] = device->ticket();
    --adds_left;
  }
}

void LaneReduction::State::launch_adds() {
  while (first_adding < bucket_count && has_added(first_adding)) ++first_adding;
  for (std::size_t bucket = first_adding; bucket < opened; ++bucket) launch_adds(bucket);
}

// In the gradient buffer and in what is received; the wave before has left both.
bool LaneReduction::State::place_is_free(std::size_t bucket) const {
  if (bucket < places) return true;
  const std::size_t before = bucket - places;
  return before < opened && transport->oldest() > first + before && has_added(before) &&
         device->reached(add_tickets[before]);
}

Result<void> LaneReduction::State::wait_for_place(std::size_t bucket) {
  PollBackoff backoff(waiter);
  while (!place_is_free(bucket)) {
    HF_TRY(bool moved, advance());
    if (background) {
      HF_TRY(const bool others, background());
      moved |= others;
    }
    const Device::Ticket next = ready < tickets.size() ? tickets[ready] : last_add;
    const bool computing = !device->reached(next) || holds_up_messages(*device);
    if (moved || computing) backoff.reset();
    if (moved) continue;
    if (computing) {
      device->wait(device->reached(next) ? device->ticket() : next, device_poll_us);
    } else if (!backoff.pause([this] { return awaited(); })) {
      return timed_out();
    }
  }
  return {};
}

// In bucket order on every rank, as far as the transport takes them. A rank without a lane sends nothing.
Result<bool> LaneReduction::State::open_exchanges() {
  if (ranks == 1) return false;
  const std::size_t before = opened;
  for (; opened < bucket_count && transport->can_open() && place_is_free(opened); ++opened) {
    incoming.clear();
    for (int source = 0; source < active; ++source) {
      if (source == rank || owned(rank, opened).size() == 0) continue;
      incoming.push_back({.target = to_receive(source, opened), .peer = source});
    }
    HF_TRY(const Transport::Number number, transport->open(incoming));
    if (opened == 0) first = number;
    if (!has_lane) {
      HF_TRY_VOID(transport->send(number, {}));
      note_opened(opened, 0);
    }
  }
  return opened > before;
}

Result<void> LaneReduction::State::send(std::size_t bucket) {
  outgoing.clear();
  const std::uint64_t sent_before = counts.bytes_sent;
  for (int step = 1; step < ranks; ++step) {  // every rank starts at another peer
    const int target = (rank + step) % ranks;
    const std::span<const std::byte> bytes = to_send(target, bucket);
    if (bytes.empty()) continue;
    outgoing.push_back({.source = bytes, .peer = target});
    counts.bytes_sent += bytes.size();
    if (!backward_ended()) counts.bytes_sent_before_backward_ended += bytes.size();
  }
  HF_TRY_VOID(transport->send(first + bucket, outgoing));
  note_opened(bucket, counts.bytes_sent - sent_before);
  ++counts.buckets_sent;
  if (!backward_ended()) ++counts.buckets_sent_before_backward_ended;
  return {};
}

Result<bool> LaneReduction::State::send_ready() {
  const std::size_t before = ready + sent;
  while (ready < tickets.size() && device->reached(tickets[ready])) ++ready;
  for (; sent < ready && sent < opened; ++sent) HF_TRY_VOID(send(sent));
  return ready + sent > before;
}

Result<bool> LaneReduction::State::advance() {
  HF_TRY(const bool sending, send_ready());
  HF_TRY(const bool moved, transport->advance());
  if (moved) launch_adds();
  HF_TRY(const bool opening, open_exchanges());
  const auto note = [this](bool happened, std::int64_t& first_seen_ns) {
    if (happened && first_seen_ns < 0) first_seen_ns = waiter.env().monotonic_ns();
  };
  note(backward_ended(), backward_ended_ns);
  note(done(), done_ns);
  note_ended();
  return sending || moved || opening;
}

void LaneReduction::State::note_opened(std::size_t bucket, std::uint64_t bytes) {
  if (!recording()) return;
  bucket_spans[noted++] = spans->begin({.kind = SpanKind::exchange_bucket,
                                        .bucket = static_cast<std::int32_t>(bucket),
                                        .wave = wave,
                                        .bytes = bytes});
}

void LaneReduction::State::note_ended() {
  if (!recording()) return;
  for (; ended < noted && transport->oldest() > first + ended; ++ended) spans->end(bucket_spans[ended]);
}

Result<void> LaneReduction::State::poll_until_done() {
  HF_CHECK(in_wave && (!has_lane || tickets.size() == bucket_count),
           "{} of {} buckets were launched in wave {}", tickets.size(), bucket_count, wave);
  if (ranks == 1) {
    HF_CHECK(adds_left == 0, "{} adds of wave {} were not launched", adds_left, wave);
    in_wave = false;
    if (recording()) spans->end(wave_span);
    return {};
  }
  PollBackoff backoff(waiter);
  while (true) {
    HF_TRY(const bool moved, advance());
    if (done()) break;
    if (moved || !backward_ended()) backoff.reset();
    if (ready < tickets.size()) {
      device->wait(tickets[ready], device_poll_us);
    } else if (exchanged()) {
      device->wait(last_add, 1000);
      backoff.reset();
    } else if (holds_up_messages(*device)) {
      device->wait(device->ticket(), device_poll_us);
      backoff.reset();
    } else if (!backoff.pause([this] { return awaited(); })) {
      return timed_out();
    }
  }
  counts.exposed_us += (done_ns - backward_ended_ns) / 1000;
  in_wave = false;
  if (recording()) spans->end(wave_span);
  return {};
}

Awaited LaneReduction::State::awaited() const {
  return awaited_of(*transport, "the lane reduction");
}

Error LaneReduction::State::timed_out() const {
  const Transport::Awaited awaited = transport->awaited();
  const int peer = awaited.peer < 0 ? -1 : transport->global_rank(awaited.peer);
  const std::string what = awaited.peer < 0    ? "did not finish: another rank"
                           : awaited.receiving ? fmt::format("did not arrive from rank {}, which", peer)
                                               : fmt::format("was not taken by rank {}, which", peer);
  return fail(
      ExitCode::communication,
      "rank {} saw nothing move for {} ms in wave {} of the lane reduction: bucket {} {} hangs or is out "
      "of reach; look at its output; where the run does not go on by itself, start it again",
      transport->global_rank(rank), waiter.timeout_ms(), wave, awaited.number - first, what);
}

LaneReduction::LaneReduction(const BucketPlan& buckets, LaneSchedule schedule, Transport& transport,
                             Device& device, const Waiter& waiter, MemoryPlan& plan)
    : state_(std::make_unique<State>(buckets, schedule, transport, device, waiter, plan)) {}

LaneReduction::~LaneReduction() {
  if (state_->in_wave && state_->ranks > 1) state_->transport->abandon();  // its buffers go
}

void LaneReduction::bind(const MemoryArena& arena, float* gradients) {
  state_->sum.bind(arena, gradients);
  state_->gradients = gradients;
}

void LaneReduction::record(SpanRecorder& spans) {
  state_->spans = &spans;
}

void LaneReduction::begin_step() {
  HF_CHECK(!state_->in_wave);
  state_->next_wave = 0;
}

Result<void> LaneReduction::begin_wave(int wave) {
  Result<void> result = state_->begin(wave);
  if (!result.ok()) state_->transport->abandon();
  return result;
}

Result<void> LaneReduction::wait_for_place(int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  if (state_->place_is_free(index)) return {};
  const HostSpan wait(state_->spans, {.kind = SpanKind::wait_lanes, .wave = state_->wave});
  Result<void> result = state_->wait_for_place(index);
  if (!result.ok()) state_->transport->abandon();
  return result;
}

void LaneReduction::set_background(Background background) {
  state_->background = std::move(background);
}

void LaneReduction::bucket_launched(int bucket, Device::Ticket ticket) {
  state_->launched(static_cast<std::size_t>(bucket), ticket);
}

// Not the newest ticket: adds of this wave may stand behind the last bucket in the queue already.
void LaneReduction::backward_launched() {
  HF_CHECK(state_->in_wave && !state_->tickets.empty());
  state_->backward_end = state_->tickets.back();
  state_->backward_launched = true;
}

Result<void> LaneReduction::finish_wave() {
  const HostSpan wait(state_->ranks > 1 ? state_->spans : nullptr,
                      {.kind = SpanKind::wait_lanes, .wave = state_->wave});
  Result<void> result = state_->poll_until_done();
  if (!result.ok()) state_->transport->abandon();
  return result;
}

void LaneReduction::finish_step() {
  HF_CHECK(!state_->in_wave && state_->next_wave == state_->schedule.waves());
  state_->sum.add_shadows();
}

Result<bool> LaneReduction::advance() {
  if (!state_->in_wave) return false;
  Result<bool> moved = state_->advance();
  if (!moved.ok()) state_->transport->abandon();
  return moved;
}

Error LaneReduction::give_up() {
  const Error error = state_->timed_out();
  state_->transport->abandon();
  return error;
}

bool LaneReduction::wave_is_done() const {
  return !state_->in_wave || state_->done();
}

std::span<float> LaneReduction::sum_of(int bucket) const {
  return state_->sum.sum_of(bucket);
}

ReducedGradients LaneReduction::reduced() const {
  return state_->sum.reduced();
}

std::span<const double> LaneReduction::square_sums() const {
  return state_->sum.square_sums();
}

LaneReductionCounts LaneReduction::counts() const {
  return state_->counts;
}

}  // namespace holdfast::inline parallel
