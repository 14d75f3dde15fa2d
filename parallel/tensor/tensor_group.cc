#include "parallel/tensor/tensor_group.h"

#include <utility>

#include "parallel/comm/device_wait.h"

namespace holdfast::parallel {
namespace {

constexpr const char* exchange_operation = "an exchange between the slices of a layer";

// Returns the sum of as many rows from `first` on.
TreeSum rows_of(TreeSum sum, std::int64_t first) {
  const std::int64_t elements = first * sum.columns;
  const std::size_t bytes = static_cast<std::size_t>(elements) * bytes_of(sum.dtype);
  for (int part = 0; part < sum.part_count; ++part) sum.parts[index(part)] += elements;
  sum.y = static_cast<std::byte*>(sum.y) + bytes;
  if (sum.residual != nullptr) sum.residual = static_cast<const std::byte*>(sum.residual) + bytes;
  return sum;
}

}  // namespace

TensorGroup::~TensorGroup() {
  if (is_by_device()) device_->watch_with(nullptr);
}

void TensorGroup::connect(Transport& transport, Device& device, const Waiter& waiter) {
  HF_CHECK(transport.size() == share_.ranks() && transport.rank() == share_.rank());
  HF_CHECK(share_.slices <= TreeSum::parts_max);
  transport_ = &transport;
  waiter_ = &waiter;
  if (!transport.is_on_device() || !device.orders_by_events()) return;
  device_ = &device;
  backoff_.emplace(waiter);
  end_ = transport.oldest();
  device.watch_with(this);
}

Result<bool> TensorGroup::advance() {
  HF_TRY(const bool moved, transport_->advance());
  if (!background_) return moved;
  const Result<bool> others = background_();
  if (!others.ok()) {
    transport_->abandon();
    return others.error();
  }
  return moved || *others;
}

Result<void> TensorGroup::wait_for(Device& device, Device::Ticket ticket) {
  while (!device.wait(ticket, device_poll_us)) HF_TRY_VOID(outcome_of(advance()));
  return {};
}

Result<void> TensorGroup::exchange(Device& device, Device::Ticket ready, const Messages& messages) {
  HF_TRY_VOID(wait_for(device, ready));
  const std::span outgoing = std::span(messages.outgoing).first(messages.peers);
  Span about{.kind = SpanKind::wait_slices};
  for (const Transport::Outgoing& message : outgoing) about.bytes += message.source.size();
  const HostSpan wait(spans_, about);
  HF_TRY(const Transport::Number number,
         transport_->open(std::span(messages.incoming).first(messages.peers)));
  HF_TRY_VOID(transport_->send(number, outgoing));
  const Device::Ticket given = device.ticket();
  PollBackoff backoff(*waiter_);
  while (transport_->oldest() <= number) {
    HF_TRY(const bool moved, advance());
    if (moved || !device.reached(given) || holds_up_messages(device)) {
      backoff.reset();
    } else if (!backoff.pause([this] { return awaited_of(*transport_, exchange_operation); })) {
      return give_up_exchange(*transport_, *waiter_, exchange_operation);
    }
  }
  return {};
}

// Keeps the first error, which the later ones follow from.
template <typename T>
Result<T> TensorGroup::noted(Result<T> outcome) {
  if (!outcome.ok() && failure_.ok()) failure_ = outcome.error();
  return outcome;
}

Result<Transport::Number> TensorGroup::enqueue(const Messages& messages) {
  HF_TRY_VOID(watch());
  while (is_far_ahead()) HF_TRY_VOID(wait_until_finished(transport_->oldest() + 1, SpanKind::wait_slices));
  if (transport_->oldest() == end_) backoff_->reset();
  HF_TRY(const Transport::Number number,
         noted(transport_->open(std::span(messages.incoming).first(messages.peers))));
  end_ = number + 1;
  followed_at(number) = not_followed;
  HF_TRY_VOID(
      noted(transport_->send_behind(number, std::span(messages.outgoing).first(messages.peers), *device_)));
  return number;
}

// Waits for nothing but the launch by the transport, which takes a thread of NCCL some microseconds.
Result<void> TensorGroup::follow(Transport::Number number) {
  PollBackoff backoff(*waiter_);
  followed_at(number) = device_->ticket();
  while (true) {
    HF_TRY(const bool follows, noted(transport_->follow(number, *device_)));
    if (follows) return {};
    HF_TRY(const bool moved, noted(advance()));
    if (moved) {
      backoff.reset();
    } else if (!backoff.pause([this] { return awaited_of(*transport_, exchange_operation); })) {
      return failure_ = give_up_exchange(*transport_, *waiter_, exchange_operation);
    }
  }
}

bool TensorGroup::is_far_ahead() {
  const Transport::Number oldest = transport_->oldest();
  if (oldest == end_) return false;
  const Device::Ticket followed = followed_at(oldest);
  return end_ - oldest == open_max || (followed != not_followed && device_->ticket() - followed > ahead_max);
}

// Returns whether the device has computed all that is before the end of the oldest exchange, so that it is for other
// ranks to go on.
bool TensorGroup::is_held_up() const {
  const Transport::Number oldest = transport_->oldest();
  const Device::Ticket followed = followed_at_[oldest % open_max];
  return oldest < end_ && followed != not_followed && device_->reached(followed);
}

// Time in which nobody looked is not one in which nothing moved.
Result<void> TensorGroup::watch() {
  constexpr std::int64_t look_interval_ns = 20'000, looked_away_ns = 1'000'000'000;
  if (!failure_.ok() || !is_by_device()) return failure_;
  const std::int64_t now_ns = waiter_->env().monotonic_ns(), since_look_ns = now_ns - last_look_ns_;
  if (since_look_ns < look_interval_ns) return {};
  last_look_ns_ = now_ns;
  const Result<bool> moved = transport_->oldest() < end_ ? transport_->advance() : true;
  const Transport::Number oldest = transport_->oldest();
  const bool may_have_moved = since_look_ns > looked_away_ns || oldest > std::exchange(watched_, oldest);
  if (!moved.ok()) {
    failure_ = moved.error();
  } else if (*moved || may_have_moved || !is_held_up()) {
    backoff_->reset();
  } else if (!backoff_->pause([this] { return awaited_of(*transport_, exchange_operation); })) {
    failure_ = give_up_exchange(*transport_, *waiter_, exchange_operation);
  }
  return failure_;
}

Result<void> TensorGroup::wait_until_finished(Transport::Number end, SpanKind kind) {
  const HostSpan wait(spans_, {.kind = kind});
  while (transport_->oldest() < end) {
    HF_TRY_VOID(watch());
    HF_TRY_VOID(outcome_of(noted(advance())));
    device_->wait(device_->ticket(), device_poll_us);
  }
  backoff_->reset();
  return failure_;
}

Result<void> TensorGroup::finish() {
  if (!failure_.ok() || !is_by_device() || transport_->oldest() == end_) return failure_;
  return wait_until_finished(end_, SpanKind::wait_device);
}

// Every peer gets source_of_peer(peer) of what this rank has, and its part arrives at target_of_peer(peer).
template <typename Source, typename Target>
TensorGroup::Messages TensorGroup::messages_with_all(const Source& source_of_peer,
                                                     const Target& target_of_peer) const {
  Messages messages;
  for (int peer = 0; peer < share_.ranks(); ++peer) {
    if (peer == share_.rank()) continue;
    messages.incoming[messages.peers] = {.target = target_of_peer(peer), .peer = peer};
    messages.outgoing[messages.peers++] = {.source = source_of_peer(peer), .peer = peer};
  }
  return messages;
}

Result<void> TensorGroup::all_gather(Device& device, std::span<std::byte> whole) {
  if (transport_ == nullptr) return {};
  const std::size_t part_bytes = part_of(whole.size());
  const auto part = [&](int rank) { return whole.subspan(index(rank) * part_bytes, part_bytes); };
  const Messages messages = messages_with_all([&](int) { return part(share_.rank()); }, part);
  if (!is_by_device()) return exchange(device, device.ticket(), messages);
  HF_TRY(const Transport::Number number, enqueue(messages));
  return follow(number);
}

TensorGroup::Messages TensorGroup::messages_of(const Scatter& scatter, int piece) const {
  const std::size_t part_bytes = part_of(scatter.whole.size()), bytes = part_bytes / index(scatter.pieces);
  HF_CHECK(scatter.arrivals.size() >= scatter.whole.size() && part_bytes % index(scatter.pieces) == 0);
  const auto of_peer = [&](auto all, int peer) {
    return all.subspan(index(peer) * part_bytes + index(piece) * bytes, bytes);
  };
  return messages_with_all([&](int peer) { return of_peer(scatter.whole, peer); },
                           [&](int peer) { return of_peer(scatter.arrivals, peer); });
}

Result<TensorGroup::Scatter> TensorGroup::begin_scatter(Device& device, std::span<const std::byte> whole,
                                                        std::span<std::byte> arrivals, int pieces) {
  Scatter scatter{.whole = whole, .arrivals = arrivals, .pieces = pieces};
  if (!is_by_device()) scatter.ready = device.ticket();
  for (int piece = 0; is_by_device() && piece < pieces; ++piece) {
    HF_TRY(scatter.numbers[index(piece)], enqueue(messages_of(scatter, piece)));
  }
  return scatter;
}

Result<void> TensorGroup::finish_scatter(Device& device, const Scatter& scatter, int piece) {
  if (transport_ == nullptr) return {};
  if (is_by_device()) return follow(scatter.numbers[index(piece)]);
  return exchange(device, scatter.ready, messages_of(scatter, piece));
}

int TensorGroup::pieces_of(const SliceSums& sums) const {
  const std::int64_t rows = own_rows(sums.rows);
  const std::size_t half_bytes = static_cast<std::size_t>(rows / 2 * sums.columns) * sizeof(float);
  return is_by_device() && rows % 2 == 0 && half_bytes >= half_bytes_min ? 2 : 1;
}

std::size_t TensorGroup::part_of(std::size_t whole_bytes) const {
  HF_CHECK(whole_bytes % index(share_.ranks()) == 0, "{} bytes on {} ranks", whole_bytes, share_.ranks());
  return whole_bytes / index(share_.ranks());
}

Result<TensorGroup::Scatter> TensorGroup::begin_sum(Device& device, const SliceSums& sums) {
  if (share_.ranks() == 1) return Scatter{};
  if (share_.count > 1) {
    TreeSum sum{.part_count = share_.count, .y = sums.parts, .rows = sums.rows, .columns = sums.columns};
    for (int slice = 0; slice < share_.count; ++slice)
      sum.parts[index(slice)] = sums.parts + slice * sums.rows * sums.columns;
    device.launch(sum);
  }
  const std::size_t elements = static_cast<std::size_t>(sums.rows * sums.columns);
  return begin_scatter(device, std::as_bytes(std::span(sums.parts, elements)),
                       std::as_writable_bytes(std::span(sums.arrivals, elements)), pieces_of(sums));
}

TreeSum TensorGroup::sum_of(const SliceSums& sums, DType dtype) const {
  return {.part_count = share_.ranks() == 1 ? share_.count : share_.ranks(),
          .rows = own_rows(sums.rows),
          .columns = sums.columns,
          .dtype = dtype};
}

Result<TreeSum> TensorGroup::finish_piece(Device& device, const Scatter& own_sum, const SliceSums& sums,
                                          const SumTarget& target, int piece) {
  const int ranks = share_.ranks();
  TreeSum sum = sum_of(sums, target.dtype);
  sum.bias = target.bias;
  sum.residual = target.residual;
  sum.y = target.y;
  const std::int64_t own_elements = sum.rows * sums.columns;
  for (int part = 0; part < sum.part_count; ++part) {
    const bool own = part == share_.rank();
    sum.parts[index(part)] = ranks == 1 ? sums.parts + part * own_elements
                             : own      ? sums.parts + part * own_elements  // the rows that are this rank's
                                        : sums.arrivals + part * own_elements;
  }
  sum.rows /= own_sum.pieces;
  if (ranks > 1) HF_TRY_VOID(finish_scatter(device, own_sum, piece));
  return rows_of(sum, piece * sum.rows);
}

Result<void> TensorGroup::finish_sum(Device& device, const Scatter& own_sum, const SliceSums& sums,
                                     const SumTarget& target) {
  for (int piece = 0; piece < own_sum.pieces; ++piece) {
    HF_TRY(const TreeSum sum, finish_piece(device, own_sum, sums, target, piece));
    device.launch(sum);
  }
  return {};
}

}  // namespace holdfast::parallel
