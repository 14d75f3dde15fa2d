#include "parallel/comm/guarded_transport.h"

namespace holdfast::parallel {
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

}  // namespace holdfast::parallel
