#include "parallel/comm/tied_exchange.h"

namespace holdfast {
namespace {

constexpr std::int64_t look_interval_ns = 10'000'000;  // a death is noticed that soon; MPI moves on, too

}  // namespace

TiedExchange::TiedExchange(std::unique_ptr<Exchange> exchange, Communicator& control, Env& env,
                           Traffic& traffic)
    : exchange_(std::move(exchange)), control_(&control), env_(&env), traffic_(&traffic) {
  HF_CHECK(exchange_->size() == control.size() && exchange_->rank() == control.rank());
}

template <typename T>
Result<T> TiedExchange::tied(Result<T> outcome) {
  if (!outcome.ok()) control_->abandon();
  return outcome;
}

Result<Exchange::Number> TiedExchange::open(std::span<const Incoming> incoming) {
  for (const Incoming& message : incoming) traffic_->add_received(message.target.size());
  return tied(exchange_->open(incoming));
}

Result<void> TiedExchange::send(Number number, std::span<const Outgoing> outgoing) {
  for (const Outgoing& message : outgoing) traffic_->add_sent(message.source.size());
  return tied(exchange_->send(number, outgoing));
}

Result<bool> TiedExchange::advance() {
  HF_TRY_VOID(look_for_peers());
  return tied(exchange_->advance());
}

Result<void> TiedExchange::look_for_peers() {
  const std::int64_t now_ns = env_->monotonic_ns();
  if (now_ns < next_look_ns_) return {};
  next_look_ns_ = now_ns + look_interval_ns;
  Result<void> outcome = control_->check_peers();
  if (!outcome.ok()) exchange_->abandon();
  return outcome;
}

// The communicator first: the peers give up while this rank's exchange ends, which can take seconds.
void TiedExchange::abandon() {
  control_->abandon();
  exchange_->abandon();
}

}  // namespace holdfast
