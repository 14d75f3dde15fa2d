#include "parallel/data/parameter_gather.h"

#include <algorithm>

#include "parallel/comm/device_wait.h"

namespace holdfast::parallel {
namespace {

constexpr const char* gathering = "the gathering of parameters";
constexpr const char* passing = "the passing of a tied weight";

}  // namespace

ParameterGather::ParameterGather(const BucketPlan& buckets, const LaneExchange& lanes, Transport& transport,
                                 Device& device, const Waiter& waiter, std::size_t dtype_bytes)
    : buckets_(&buckets),
      lanes_(&lanes),
      exchange_(buckets, lanes),
      transport_(&transport),
      device_(&device),
      waiter_(waiter),
      dtype_bytes_(dtype_bytes),
      rank_(transport.rank()),
      ranks_(transport.size()),
      place_(buckets.buckets().size()) {
  HF_CHECK(buckets.ranks() == ranks_ && lanes.rank() == rank_);
  for (const bool frozen : {false, true}) {
    for (int bucket = static_cast<int>(place_.size()); bucket-- > 0;) {  // backward order reversed
      if (buckets.buckets()[index(bucket)].tied_to >= 0 || buckets.is_frozen(bucket) != frozen) continue;
      place_[index(bucket)] = order_.size();
      order_.push_back(bucket);
    }
    if (!frozen) trained_count_ = order_.size();
  }
  for (std::size_t bucket = 0; bucket < place_.size(); ++bucket) {
    const int real = buckets.buckets()[bucket].tied_to;
    if (real >= 0) place_[bucket] = place_[index(real)];
  }
  messages_.reserve(index(ranks_));
  incoming_.reserve(index(ranks_));
  outgoing_.reserve(index(ranks_));
}

ParameterGather::~ParameterGather() {
  if (under_way_) transport_->abandon();  // the buffer is released
}

std::span<std::byte> ParameterGather::bytes_of(const ElementRange& range) const {
  return {parameters_ + range.begin * dtype_bytes_, range.size() * dtype_bytes_};
}

template <typename Visit>
void ParameterGather::for_stages(std::size_t exchange, const Visit& visit) const {
  if (exchange < count_) visit(Stage::between, order_[exchange]);
  if (exchange_.has_two_stages() && exchange > 0) visit(Stage::inside, order_[exchange - 1]);
}

Result<void> ParameterGather::begin(Which which) {
  HF_CHECK(!under_way_ && parameters_ != nullptr);
  under_way_ = true;
  began_ns_ = waiter_.env().monotonic_ns();
  opened_ = sent_ = whole_ = 0;
  count_ = which == Which::all ? order_.size() : trained_count_;
  HF_TRY_VOID(begin_tied(which));
  return outcome_of(advance());
}

Result<void> ParameterGather::begin_tied(Which which) {
  const int tied = std::max(buckets_->imported(), buckets_->exported());
  tied_state_ = Tied::none;
  if (tied < 0 || (which == Which::trained && buckets_->is_frozen(tied))) return {};
  const std::span<std::byte> bytes = bytes_of(buckets_->parameter_range(tied, rank_));
  if (bytes.empty()) return {};  // both ends know this
  HF_CHECK(tied_ != nullptr && tied_->size() == 2);
  const int peer = 1 - tied_->rank();
  const bool sends = buckets_->imported() >= 0;
  tied_state_ = sends ? Tied::sending : Tied::receiving;
  const Transport::Incoming incoming{.target = bytes, .peer = peer};
  const Transport::Outgoing outgoing{.source = bytes, .peer = peer};
  HF_TRY(tied_number_, tied_->open(std::span(&incoming, sends ? 0 : 1)));
  return tied_->send(tied_number_, std::span(&outgoing, sends ? 1 : 0));
}

// Advances the exchange of the tied weight. The bytes that arrived may still be a copy in the device's queue,
// and the group's transport need not come after it.
Result<bool> ParameterGather::advance_tied() {
  if (tied_state_ == Tied::none || tied_state_ == Tied::whole) return false;
  HF_TRY(bool moved, tied_->advance());
  if (tied_state_ == Tied::receiving && tied_->received(tied_number_, 1 - tied_->rank())) {
    tied_ticket_ = device_->ticket();
    tied_state_ = Tied::arrived;
    moved = true;
  }
  const bool finished = tied_->oldest() > tied_number_;
  const bool whole =
      tied_state_ == Tied::sending || (tied_state_ == Tied::arrived && device_->reached(tied_ticket_));
  if (!finished || !whole) return moved;
  tied_state_ = Tied::whole;
  return true;
}

Result<bool> ParameterGather::open_exchanges() {
  const std::size_t before = opened_;
  const std::size_t count = exchanges_of(count_);
  if (ranks_ == 1) opened_ = count;
  for (; opened_ < count && transport_->can_open(); ++opened_) {
    messages_.clear();
    incoming_.clear();
    for_stages(opened_, [this](Stage stage, int bucket) { exchange_.incoming(stage, bucket, messages_); });
    for (const GatherExchange::Message& message : messages_)
      incoming_.push_back({.target = bytes_of(message.range), .peer = message.peer});
    HF_TRY(const Transport::Number number, transport_->open(incoming_));
    if (opened_ == 0) first_ = number;
    HF_CHECK(number == first_ + opened_, "another exchange was opened during a gathering of parameters");
  }
  return opened_ > before;
}

// Returns whether all that the stage of an exchange brings is here.
bool ParameterGather::all_received(std::size_t exchange, Stage stage) const {
  return std::ranges::all_of(exchange_.peers(stage),
                             [&](int peer) { return transport_->received(first_ + exchange, peer); });
}

// Returns whether this rank has what it sends in an exchange: its own parameters, unless another stage sends
// them first, and those that it passes on.
bool ParameterGather::may_send(std::size_t exchange) const {
  bool has_all = true;
  for_stages(exchange, [&](Stage stage, int bucket) {
    const bool arrives = tied_state_ == Tied::receiving || tied_state_ == Tied::arrived;
    if (bucket == buckets_->exported() && arrives) has_all = false;
    if (stage == Stage::inside && !all_received(exchange - 1, Stage::between)) has_all = false;
  });
  return has_all;
}

Result<bool> ParameterGather::send_ready() {
  const std::size_t before = sent_;
  for (; sent_ < opened_ && may_send(sent_); ++sent_) {
    if (ranks_ == 1) continue;
    messages_.clear();
    outgoing_.clear();
    for_stages(sent_, [this](Stage stage, int bucket) { exchange_.outgoing(stage, bucket, messages_); });
    for (const GatherExchange::Message& message : messages_) {
      const std::span<const std::byte> bytes = bytes_of(message.range);
      outgoing_.push_back({.source = bytes, .peer = message.peer});
      if (!lanes_->same_host(message.peer)) counts_.bytes_sent_to_other_hosts += bytes.size();
    }
    HF_TRY_VOID(transport_->send(first_ + sent_, outgoing_));
  }
  return sent_ > before;
}

Result<bool> ParameterGather::advance() {
  if (!under_way_) return false;
  HF_TRY(const bool tied, advance_tied());
  HF_TRY(const bool opened, open_exchanges());
  HF_TRY(const bool sent, send_ready());
  HF_TRY(const bool moved, ranks_ > 1 ? transport_->advance() : Result<bool>(false));
  note_progress();
  return tied || opened || sent || moved;
}

bool ParameterGather::sends_finished() const {
  const bool tied = tied_state_ == Tied::none || tied_state_ == Tied::whole;
  return tied && (ranks_ == 1 || transport_->oldest() >= first_ + exchanges_of(count_));
}

void ParameterGather::note_progress() {
  const auto is_here = [this](std::size_t bucket) {
    if (sent_ < exchanges_of(bucket + 1)) return false;
    return all_received(bucket, Stage::between) &&
           (!exchange_.has_two_stages() || all_received(bucket + 1, Stage::inside));
  };
  while (whole_ < count_ && is_here(whole_)) ++whole_;
  if (whole_ < count_ || !sends_finished()) return;
  under_way_ = false;
  ended_ns_ = waiter_.env().monotonic_ns();
  if (ranks_ == 1) return;
  counts_.buckets += count_;
  counts_.gather_us += (ended_ns_ - began_ns_) / 1000;
}

Result<void> ParameterGather::wait_for(int bucket) {
  const std::size_t place = place_[index(bucket)];
  return wait_until([this, place] { return !under_way_ || place < whole_; });
}

Result<void> ParameterGather::finish() {
  return wait_until([this] { return !under_way_; });
}

template <typename Done>
Result<void> ParameterGather::wait_until(const Done& done) {
  if (done()) return {};
  HF_TRY_VOID(outcome_of(advance()));  // the bucket may have arrived since the last call
  if (done()) return {};
  const HostSpan span(spans_, {.kind = SpanKind::wait_parameters});
  if (whole_ < count_) ++counts_.buckets_awaited;
  const Device::Ticket launched = device_->ticket();
  std::int64_t idle_since_ns = -1;
  PollBackoff backoff(waiter_);
  while (!done()) {
    const bool computing = !device_->reached(launched) || holds_up_messages(*device_);
    if (!computing && idle_since_ns < 0) idle_since_ns = waiter_.env().monotonic_ns();
    HF_TRY(bool moved, advance());
    if (background_) {
      HF_TRY(const bool others, background_());
      moved |= others;
    }
    if (moved || computing) backoff.reset();
    if (moved) continue;
    if (computing) {
      device_->wait(device_->reached(launched) ? device_->ticket() : launched, device_poll_us);
    } else if (!backoff.pause([this] { return awaited(); })) {
      return give_up();
    }
  }
  if (idle_since_ns < 0) return {};
  // The gather may have ended before what the background did last.
  const std::int64_t ended_ns = under_way_ ? waiter_.env().monotonic_ns() : ended_ns_;
  counts_.exposed_us += (ended_ns - idle_since_ns) / 1000;
  return {};
}

bool ParameterGather::waits_for_tied_alone() const {
  const bool waits_for_tied = tied_state_ != Tied::none && tied_state_ != Tied::whole;
  return waits_for_tied && (ranks_ == 1 || transport_->oldest() >= first_ + sent_);
}

Awaited ParameterGather::awaited() const {
  return waits_for_tied_alone() ? awaited_of(*tied_, passing) : awaited_of(*transport_, gathering);
}

Error ParameterGather::give_up() {
  return waits_for_tied_alone() ? give_up_exchange(*tied_, waiter_, passing)
                                : give_up_exchange(*transport_, waiter_, gathering);
}

}  // namespace holdfast::parallel
