#include "runtime/timeline/transfers.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace holdfast::inline timeline {
namespace {

using Direction = std::tuple<SpanKind, int, int>;  // what, from, to
using Messages = std::map<Direction, std::vector<Span>>;

SpanKind sent_as(SpanKind received) {
  return received == SpanKind::receive_activation ? SpanKind::send_activation : SpanKind::send_gradient;
}

}  // namespace

std::vector<Transfer> transfers_of(const Timeline& timeline, std::uint64_t step) {
  Messages sent, received;
  for (const RankTrace& rank : timeline.ranks) {
    for (const Span& span : rank.spans) {
      if (span.step != step) continue;
      if (span.kind == SpanKind::send_activation || span.kind == SpanKind::send_gradient)
        sent[{span.kind, rank.header.rank, span.peer}].push_back(span);
      if (span.kind == SpanKind::receive_activation || span.kind == SpanKind::receive_gradient)
        received[{sent_as(span.kind), span.peer, rank.header.rank}].push_back(span);
    }
  }
  std::vector<Transfer> transfers;
  for (const auto& [direction, messages] : sent) {
    const std::vector<Span>& arrived = received[direction];
    for (std::size_t i = 0; i < std::min(messages.size(), arrived.size()); ++i) {
      transfers.push_back({.source = std::get<1>(direction),
                           .target = std::get<2>(direction),
                           .sent = messages[i],
                           .received = arrived[i]});
    }
  }
  return transfers;
}

}  // namespace holdfast::inline timeline
