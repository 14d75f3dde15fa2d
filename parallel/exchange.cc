#include "parallel/exchange.h"

namespace holdfast {

Result<void> finish_exchanges(Exchange& exchange, const Waiter& waiter, Exchange::Number end,
                              const char* operation) {
  Rest pause(waiter.env(), waiter.timeout_ms());
  while (exchange.oldest() < end) {
    HF_TRY(const bool moved, exchange.advance());
    if (moved) {
      pause.moved();
    } else if (!pause.rest()) {
      const Exchange::Awaited awaited = exchange.awaited();
      exchange.abandon();
      return fail(ExitCode::communication,
                  "rank {} waited {} ms for {} in {} (exchange {}): that rank or its host hangs or is out of "
                  "reach; look at its output, then start the run again",
                  exchange.rank(), waiter.timeout_ms(),
                  awaited.peer < 0 ? "another rank" : fmt::format("rank {}", awaited.peer), operation,
                  awaited.number);
    }
  }
  return {};
}

}  // namespace holdfast
