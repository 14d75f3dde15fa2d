#include "parallel/lane_reduction.h"

#include <algorithm>

#include "parallel/lane_sum.h"

namespace holdfast {
namespace {

using Request = Communicator::Request;

constexpr Request no_request = -1;                                    // of an empty range
constexpr std::size_t requests_in_flight = LaneReduction::ranks_max;  // of each direction, over all peers
static_assert(2 * requests_in_flight <= Communicator::request_count_max);
constexpr std::int64_t poll_interval_us =
    200;  // while the device computes: MPI moves nothing unless it is polled

// Messages with one other rank. Receives are posted and complete in bucket order, sends in the order
// launched; only the oldest of each is tested, so that a poll costs one test per peer and direction.
struct Peer {
  std::size_t receives_posted = 0, receives_done = 0;  // buckets
  std::size_t sends_posted = 0, sends_done = 0;        // places in the order launched
};

}  // namespace

struct LaneReduction::State {
  State(const BucketPlan& plan, LaneSchedule lane_schedule, Communicator& group, Device& queue,
        const Waiter& wait, MemoryPlan& memory);

  // Index helpers: all tables are [rank][bucket].
  std::size_t at(int rank_index, std::size_t bucket) const {
    return static_cast<std::size_t>(rank_index) * bucket_count + bucket;
  }
  const ElementRange& owned(int rank_index, std::size_t bucket) const {
    return ranges[at(rank_index, bucket)];
  }
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
  Result<bool> post_receives();
  Result<bool> post_sends();
  Result<bool> test_receives();
  Result<bool> test_sends();
  Result<bool> advance();
  Result<void> poll_until_done();
  Error timed_out() const;

  LaneSchedule schedule;
  Communicator* communicator;
  Device* device;
  Waiter waiter;
  int rank, ranks;
  std::size_t bucket_count;
  std::size_t window;  // messages in flight per peer and direction
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
  Device::Ticket backward_end = 0, last_add = 0;
  std::vector<std::size_t> order;       // buckets as launched
  std::vector<Device::Ticket> tickets;  // of order
  std::size_t ready = 0;                // so many of order are reached
  std::vector<bool> own_launched;       // by bucket
  std::vector<int> next_add;            // by bucket: the rank whose lane is added next
  std::vector<int> sends_left;          // by place in order: peers it has yet to be posted to
  std::size_t adds_left = 0, messages_left = 0;
  std::vector<Peer> peers;
  std::vector<Request> receives, sends;  // sends: [rank][place in order]
};

LaneReduction::State::State(const BucketPlan& plan, LaneSchedule lane_schedule, Communicator& group,
                            Device& queue, const Waiter& wait, MemoryPlan& memory)
    : schedule(lane_schedule),
      communicator(&group),
      device(&queue),
      waiter(wait),
      rank(group.rank()),
      ranks(group.size()),
      bucket_count(plan.buckets().size()),
      sum(plan, lane_schedule, group.rank(), queue, memory) {
  HF_CHECK(plan.ranks() == ranks && schedule.ranks() == ranks);
  const auto size = static_cast<std::size_t>(ranks);
  HF_CHECK(size <= requests_in_flight, "{} ranks in one group", ranks);
  window = std::max<std::size_t>(1, requests_in_flight / size);
  for (int r = 0; r < ranks; ++r) {
    for (std::size_t b = 0; b < bucket_count; ++b) {
      ranges.push_back(plan.gradient_range(static_cast<int>(b), r));
    }
  }
  order.reserve(bucket_count);
  tickets.reserve(bucket_count);
  own_launched.resize(bucket_count);
  next_add.resize(bucket_count);
  sends_left.resize(bucket_count);
  peers.resize(size);
  receives.resize(size * bucket_count);
  sends.resize(size * bucket_count);
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
  order.clear();
  tickets.clear();
  ready = 0;
  own_launched.assign(bucket_count, false);
  next_add.assign(bucket_count, 0);
  peers.assign(peers.size(), Peer{});
  adds_left = messages_left = 0;
  for (std::size_t b = 0; b < bucket_count; ++b) {
    if (owned(rank, b).size() > 0) adds_left += static_cast<std::size_t>(active);
  }
  const auto sources = static_cast<std::size_t>(active - (has_lane ? 1 : 0));
  const std::size_t targets = has_lane ? peers.size() - 1 : 0;
  messages_left = (sources + targets) * bucket_count;
  HF_TRY_VOID(post_receives());
  return {};
}

void LaneReduction::State::launched(std::size_t bucket, Device::Ticket ticket) {
  HF_CHECK(in_wave && has_lane && bucket < bucket_count && !own_launched[bucket]);
  sends_left[order.size()] = ranks - 1;
  order.push_back(bucket);
  tickets.push_back(ticket);
  own_launched[bucket] = true;
  launch_adds(bucket);
}

// Every add whose turn it is: the lanes of a wave in the order of their ranks, whatever arrived first.
void LaneReduction::State::launch_adds(std::size_t bucket) {
  if (owned(rank, bucket).size() == 0) return;
  for (int& source = next_add[bucket]; source < active; ++source) {
    const bool here = source == rank ? bool{own_launched[bucket]}
                                     : peers[static_cast<std::size_t>(source)].receives_done > bucket;
    if (!here) return;
    sum.add(wave, source, static_cast<int>(bucket));
    last_add = device->ticket();
    --adds_left;
  }
}

Result<bool> LaneReduction::State::post_receives() {
  bool moved = false;
  for (int source = 0; source < active; ++source) {
    if (source == rank) continue;
    Peer& peer = peers[static_cast<std::size_t>(source)];
    for (; peer.receives_posted < bucket_count && peer.receives_posted - peer.receives_done < window;
         ++peer.receives_posted) {
      const std::size_t bucket = peer.receives_posted;
      Request request = no_request;
      if (owned(rank, bucket).size() > 0) {
        HF_TRY(request, communicator->receive(to_receive(source, bucket), source,
                                              tag_gradient + static_cast<int>(bucket)));
      }
      receives[at(source, bucket)] = request;
      moved = true;
    }
  }
  return moved;
}

Result<bool> LaneReduction::State::post_sends() {
  bool moved = false;
  while (ready < order.size() && device->reached(tickets[ready])) {
    ++ready;
    moved = true;
  }
  for (int step = 1; step < ranks; ++step) {  // every rank starts at another peer
    const int target = (rank + step) % ranks;
    Peer& peer = peers[static_cast<std::size_t>(target)];
    for (; peer.sends_posted < ready && peer.sends_posted - peer.sends_done < window; ++peer.sends_posted) {
      const std::size_t bucket = order[peer.sends_posted];
      const std::span<const std::byte> bytes = to_send(target, bucket);
      Request request = no_request;
      if (!bytes.empty()) {
        HF_TRY(request, communicator->send(bytes, target, tag_gradient + static_cast<int>(bucket)));
        counts.bytes_sent += bytes.size();
      }
      sends[at(target, peer.sends_posted)] = request;
      if (--sends_left[peer.sends_posted] == 0) {
        ++counts.buckets_sent;
        if (!device->reached(backward_end)) ++counts.buckets_sent_before_backward_ended;
      }
      moved = true;
    }
  }
  return moved;
}

Result<bool> LaneReduction::State::test_receives() {
  bool moved = false;
  for (int source = 0; source < active; ++source) {
    if (source == rank) continue;
    Peer& peer = peers[static_cast<std::size_t>(source)];
    while (peer.receives_done < peer.receives_posted) {
      const std::size_t bucket = peer.receives_done;
      const Request request = receives[at(source, bucket)];
      bool complete = true;
      if (request != no_request) {
        HF_TRY(complete, communicator->test(request));
      }
      if (!complete) break;
      ++peer.receives_done;
      --messages_left;
      launch_adds(bucket);
      moved = true;
    }
  }
  return moved;
}

Result<bool> LaneReduction::State::test_sends() {
  bool moved = false;
  for (int target = 0; target < ranks; ++target) {
    Peer& peer = peers[static_cast<std::size_t>(target)];
    while (peer.sends_done < peer.sends_posted) {
      const Request request = sends[at(target, peer.sends_done)];
      bool complete = true;
      if (request != no_request) {
        HF_TRY(complete, communicator->test(request));
      }
      if (!complete) break;
      ++peer.sends_done;
      --messages_left;
      moved = true;
    }
  }
  return moved;
}

Result<bool> LaneReduction::State::advance() {
  HF_TRY(const bool sent, post_sends());
  HF_TRY(const bool arrived, test_receives());
  HF_TRY(const bool posted, post_receives());
  HF_TRY(const bool taken, test_sends());
  return sent || arrived || posted || taken;
}

Result<void> LaneReduction::State::poll_until_done() {
  HF_CHECK(in_wave && (!has_lane || order.size() == bucket_count),
           "{} of {} buckets were launched in wave {}", order.size(), bucket_count, wave);
  Rest pause(waiter.env(), waiter.timeout_ms());
  std::int64_t exposed_from_ns = -1;
  while (true) {
    HF_TRY(const bool moved, advance());
    const bool backward_ended = device->reached(backward_end);
    if (backward_ended && exposed_from_ns < 0) exposed_from_ns = waiter.env().monotonic_ns();
    if (messages_left == 0 && adds_left == 0 && device->reached(last_add)) break;
    if (moved || !backward_ended) pause.moved();
    if (ready < order.size()) {
      device->wait(tickets[ready], poll_interval_us);
    } else if (messages_left == 0) {
      device->wait(last_add, 1000);
      pause.moved();
    } else if (!pause.rest()) {
      return timed_out();
    }
  }
  counts.exposed_us += (waiter.env().monotonic_ns() - exposed_from_ns) / 1000;
  in_wave = false;
  return {};
}

Error LaneReduction::State::timed_out() const {
  for (int r = 0; r < ranks; ++r) {
    const Peer& peer = peers[static_cast<std::size_t>(r)];
    const bool receiving = peer.receives_done < peer.receives_posted;
    if (!receiving && peer.sends_done == peer.sends_posted) continue;
    return fail(
        ExitCode::communication,
        "rank {} saw nothing move for {} ms in wave {} of the lane reduction: bucket {} {} rank {}, which "
        "hangs or is out of reach; look at its output, then start the run again",
        rank, waiter.timeout_ms(), wave, receiving ? peer.receives_done : order[peer.sends_done],
        receiving ? "did not arrive from" : "was not taken by", r);
  }
  return fail(ExitCode::communication, "rank {} waits for nobody in wave {}", rank, wave);
}

LaneReduction::LaneReduction(const BucketPlan& buckets, LaneSchedule schedule, Communicator& communicator,
                             Device& device, const Waiter& waiter, MemoryPlan& plan)
    : state_(std::make_unique<State>(buckets, schedule, communicator, device, waiter, plan)) {}

LaneReduction::~LaneReduction() {
  if (state_->in_wave && state_->ranks > 1) state_->communicator->abandon();  // its buffers go
}

void LaneReduction::bind(const MemoryArena& arena, float* gradients) {
  state_->sum.bind(arena, gradients);
  state_->gradients = gradients;
}

void LaneReduction::begin_step() {
  HF_CHECK(!state_->in_wave);
  state_->next_wave = 0;
}

Result<void> LaneReduction::begin_wave(int wave) {
  return state_->begin(wave);
}

void LaneReduction::bucket_launched(int bucket, Device::Ticket ticket) {
  state_->launched(static_cast<std::size_t>(bucket), ticket);
}

// Not the newest ticket: adds of this wave may stand behind the last bucket in the queue already.
void LaneReduction::backward_launched() {
  HF_CHECK(state_->in_wave && !state_->tickets.empty());
  state_->backward_end = state_->tickets.back();
}

Result<void> LaneReduction::finish_wave() {
  Result<void> result = state_->poll_until_done();
  if (!result.ok()) state_->communicator->abandon();
  return result;
}

Result<void> LaneReduction::finish_step() {
  HF_CHECK(!state_->in_wave && state_->next_wave == state_->schedule.waves());
  state_->sum.add_shadows();
  state_->device->synchronize();
  return {};
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

}  // namespace holdfast
