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

}  // namespace holdfast::parallel
