#include "parallel/comm/exchange.h"

#include <fmt/core.h>

namespace holdfast {

Awaited awaited_of(const Exchange& exchange, const char* operation) {
  const Exchange::Awaited awaited = exchange.awaited();
  return {.operation = operation,
          .peer = awaited.peer < 0 ? -1 : exchange.global_rank(awaited.peer),
          .number = static_cast<std::uint32_t>(awaited.number)};
}

Error give_up_exchange(Exchange& exchange, const Waiter& waiter, const char* operation) {
  const Exchange::Awaited awaited = exchange.awaited();
  exchange.abandon();
  return fail(ExitCode::communication,
              "rank {} waited {} ms for {} in {} (exchange {}): that rank or its host hangs or is out of "
              "reach; look at its output; where the run does not go on by itself, start it again",
              exchange.global_rank(exchange.rank()), waiter.timeout_ms(),
              awaited.peer < 0 ? "another rank" : fmt::format("rank {}", exchange.global_rank(awaited.peer)),
              operation, awaited.number);
}

Result<void> finish_exchanges(Exchange& exchange, const Waiter& waiter, Exchange::Number end,
                              const char* operation) {
  Rest pause(waiter);
  while (exchange.oldest() < end) {
    HF_TRY(const bool moved, exchange.advance());
    if (moved) {
      pause.moved();
    } else if (!pause.rest([&] { return awaited_of(exchange, operation); })) {
      return give_up_exchange(exchange, waiter, operation);
    }
  }
  return {};
}

Result<void> pass_on(Exchange& pair, const Waiter& waiter, std::span<std::byte> bytes, bool sends,
                     const char* operation) {
  HF_CHECK(pair.size() == 2);
  if (bytes.empty()) return {};
  const int peer = 1 - pair.rank();
  const Exchange::Incoming incoming{.target = bytes, .peer = peer};
  const Exchange::Outgoing outgoing{.source = bytes, .peer = peer};
  HF_TRY(const Exchange::Number number, pair.open(std::span(&incoming, sends ? 0 : 1)));
  HF_TRY_VOID(pair.send(number, std::span(&outgoing, sends ? 1 : 0)));
  return finish_exchanges(pair, waiter, number + 1, operation);
}

}  // namespace holdfast
