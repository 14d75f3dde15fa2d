#include "parallel/comm/clock_offset.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace holdfast::parallel {
namespace {

constexpr int questions = 16;
constexpr const char* clock_operation = "the comparison of clocks";

Result<void> pass(Communicator& communicator, const Waiter& waiter, std::int64_t& word, int peer,
                  bool sends) {
  const auto bytes = std::as_writable_bytes(std::span(&word, 1));
  HF_TRY(const Communicator::Request request, sends ? communicator.send(bytes, peer, tag_collective)
                                                    : communicator.receive(bytes, peer, tag_collective));
  return waiter.wait(communicator, request, clock_operation, peer);
}

Result<ClockOffset> ask(Communicator& communicator, const Waiter& waiter, int peer) {
  ClockOffset best{.offset_ns = 0, .error_ns = std::numeric_limits<std::int64_t>::max()};
  for (int i = 0; i < questions; ++i) {
    std::int64_t time_there_ns = 0;
    const std::int64_t asked_ns = waiter.env().monotonic_ns();
    HF_TRY_VOID(pass(communicator, waiter, time_there_ns, peer, true));
    HF_TRY_VOID(pass(communicator, waiter, time_there_ns, peer, false));
    const std::int64_t half_ns = (waiter.env().monotonic_ns() - asked_ns + 1) / 2;
    if (half_ns < best.error_ns) best = {asked_ns + half_ns - time_there_ns, half_ns};
  }
  return best;
}

Result<void> answer(Communicator& communicator, const Waiter& waiter) {
  for (int i = 0; i < questions; ++i) {
    std::int64_t word = 0;
    HF_TRY_VOID(pass(communicator, waiter, word, 0, false));
    word = waiter.env().monotonic_ns();
    HF_TRY_VOID(pass(communicator, waiter, word, 0, true));
  }
  return {};
}

}  // namespace

Result<ClockOffset> find_clock_offset(Communicator& communicator, const Waiter& waiter,
                                      const std::string& host) {
  HF_TRY(const std::vector<std::string> hosts, all_gather_text(communicator, waiter, host));
  std::vector<ClockOffset> offsets(hosts.size());  // [rank]; set for the first rank of each host
  for (std::size_t rank = 1; rank < hosts.size(); ++rank) {
    if (std::find(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(rank), hosts[rank]) !=
        hosts.begin() + static_cast<std::ptrdiff_t>(rank))
      continue;
    if (communicator.rank() == 0) {
      HF_TRY(offsets[rank], ask(communicator, waiter, static_cast<int>(rank)));
    } else if (communicator.rank() == static_cast<int>(rank)) {
      HF_TRY_VOID(answer(communicator, waiter));
    }
  }
  HF_TRY_VOID(broadcast(communicator, waiter, std::as_writable_bytes(std::span(offsets))));
  return offsets[static_cast<std::size_t>(std::ranges::find(hosts, host) - hosts.begin())];
}

}  // namespace holdfast::parallel
