#include <array>

#include "parallel/lane_reduction.h"

namespace holdfast {

Result<void> gather_parameters(const BucketPlan& buckets, Exchange& exchange, const Waiter& waiter,
                               std::byte* parameters, std::size_t dtype_bytes) {
  constexpr const char* operation = "the gathering of parameters";
  const int rank = exchange.rank(), ranks = exchange.size();
  HF_CHECK(ranks == buckets.ranks());
  const auto bytes_of_range = [&](int bucket, int owner) {
    const ElementRange range = buckets.parameter_range(bucket, owner);
    return std::span(parameters + range.begin * dtype_bytes, range.size() * dtype_bytes);
  };
  std::array<Exchange::Incoming, Exchange::ranks_max> incoming;  // on the stack: this is the training loop
  std::array<Exchange::Outgoing, Exchange::ranks_max> outgoing;
  Exchange::Number end = exchange.oldest();
  for (int bucket = static_cast<int>(buckets.buckets().size());
       bucket-- > 0;) {  // backward order reversed: forward
    if (buckets.buckets()[static_cast<std::size_t>(bucket)].shadow_of >= 0) continue;
    const std::span<const std::byte> mine = bytes_of_range(bucket, rank);
    std::size_t sources = 0, targets = 0;
    for (int step = 1; step < ranks; ++step) {  // every rank starts at another peer
      const int source = (rank - step + ranks) % ranks, target = (rank + step) % ranks;
      const std::span<std::byte> theirs = bytes_of_range(bucket, source);
      if (!theirs.empty()) incoming[sources++] = {.target = theirs, .peer = source};
      if (!mine.empty()) outgoing[targets++] = {.source = mine, .peer = target};
    }
    if (!exchange.can_open()) {
      HF_TRY_VOID(finish_exchanges(exchange, waiter, exchange.oldest() + 1, operation));
    }
    HF_TRY(const Exchange::Number number, exchange.open(std::span(incoming.data(), sources)));
    HF_TRY_VOID(exchange.send(number, std::span(outgoing.data(), targets)));
    end = number + 1;
  }
  return finish_exchanges(exchange, waiter, end, operation);
}

}  // namespace holdfast
