#include "parallel/comm/transport.h"

#include <fmt/core.h>

namespace holdfast::parallel {

Awaited awaited_of(const Transport& transport, const char* operation) {
  const Transport::Awaited awaited = transport.awaited();
  return {.operation = operation,
          .peer = awaited.peer < 0 ? -1 : transport.global_rank(awaited.peer),
          .number = static_cast<std::uint32_t>(awaited.number)};
}

Error give_up_exchange(Transport& transport, const Waiter& waiter, const char* operation) {
  const Transport::Awaited awaited = transport.awaited();
  transport.abandon();
  return fail(
      ExitCode::communication,
      "rank {} waited {} ms for {} in {} (exchange {}): that rank or its host hangs or is unreachable; "
      "look at its output; where the run does not go on by itself, start it again",
      transport.global_rank(transport.rank()), waiter.timeout_ms(),
      awaited.peer < 0 ? "another rank" : fmt::format("rank {}", transport.global_rank(awaited.peer)),
      operation, awaited.number);
}

Result<void> finish_exchanges(Transport& transport, const Waiter& waiter, Transport::Number end,
                              const char* operation) {
  PollBackoff backoff(waiter);
  while (transport.oldest() < end) {
    HF_TRY(const bool moved, transport.advance());
    if (moved) {
      backoff.reset();
    } else if (!backoff.pause([&] { return awaited_of(transport, operation); })) {
      return give_up_exchange(transport, waiter, operation);
    }
  }
  return {};
}

Result<void> pass_on(Transport& pair, const Waiter& waiter, std::span<std::byte> bytes, bool sends,
                     const char* operation) {
  HF_CHECK(pair.size() == 2);
  if (bytes.empty()) return {};
  const int peer = 1 - pair.rank();
  const Transport::Incoming incoming{.target = bytes, .peer = peer};
  const Transport::Outgoing outgoing{.source = bytes, .peer = peer};
  HF_TRY(const Transport::Number number, pair.open(std::span(&incoming, sends ? 0 : 1)));
  HF_TRY_VOID(pair.send(number, std::span(&outgoing, sends ? 1 : 0)));
  return finish_exchanges(pair, waiter, number + 1, operation);
}

namespace {

constexpr std::int64_t look_interval_ns =
    10'000'000;  // maximum delay to detect a death; the poll also lets MPI make progress

}  // namespace

GuardedTransport::GuardedTransport(std::unique_ptr<Transport> transport, Communicator& control, Env& env,
                                   Traffic& traffic)
    : transport_(std::move(transport)), control_(&control), env_(&env), traffic_(&traffic) {
  HF_CHECK(transport_->size() == control.size() && transport_->rank() == control.rank());
}

template <typename T>
Result<T> GuardedTransport::guarded(Result<T> outcome) {
  if (!outcome.ok()) control_->abandon();
  return outcome;
}

Result<Transport::Number> GuardedTransport::open(std::span<const Incoming> incoming) {
  for (const Incoming& message : incoming) traffic_->add_received(message.target.size());
  return guarded(transport_->open(incoming));
}

Result<void> GuardedTransport::send(Number number, std::span<const Outgoing> outgoing) {
  for (const Outgoing& message : outgoing) traffic_->add_sent(message.source.size());
  return guarded(transport_->send(number, outgoing));
}

Result<void> GuardedTransport::send_behind(Number number, std::span<const Outgoing> outgoing,
                                           DeviceQueue& queue) {
  for (const Outgoing& message : outgoing) traffic_->add_sent(message.source.size());
  return guarded(transport_->send_behind(number, outgoing, queue));
}

Result<bool> GuardedTransport::follow(Number number, DeviceQueue& queue) {
  return guarded(transport_->follow(number, queue));
}

Result<bool> GuardedTransport::advance() {
  HF_TRY_VOID(look_for_peers());
  return guarded(transport_->advance());
}

Result<void> GuardedTransport::look_for_peers() {
  const std::int64_t now_ns = env_->monotonic_ns();
  if (now_ns < next_look_ns_) return {};
  next_look_ns_ = now_ns + look_interval_ns;
  Result<void> outcome = control_->check_peers();
  if (!outcome.ok()) transport_->abandon();
  return outcome;
}

// Abandons the communicator first: peers give up while this rank's transport ends, which can take seconds.
void GuardedTransport::abandon() {
  control_->abandon();
  transport_->abandon();
}

void ReplaceableTransport::replace(Transport& other) {
  HF_CHECK(now_->oldest() == next_, "a transport is replaced while it has something open");
  HF_CHECK(other.size() == now_->size() && other.rank() == now_->rank());
  now_ = &other;
  next_ = other.oldest();
}

Result<Transport::Number> ReplaceableTransport::open(std::span<const Incoming> incoming) {
  HF_TRY(const Number number, now_->open(incoming));
  next_ = number + 1;
  return number;
}

}  // namespace holdfast::parallel
