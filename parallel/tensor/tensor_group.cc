#include "parallel/tensor/tensor_group.h"

#include <array>
#include <utility>

#include "kernels/tree_sum.h"
#include "parallel/comm/device_wait.h"

namespace holdfast::parallel {
namespace {

constexpr const char* exchange_operation = "an exchange between the slices of a layer";

}  // namespace

void TensorGroup::connect(Transport& transport, const Waiter& waiter) {
  HF_CHECK(transport.size() == share_.ranks() && transport.rank() == share_.rank());
  HF_CHECK(share_.slices <= TreeSum::parts_max);
  transport_ = &transport;
  waiter_ = &waiter;
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

Result<void> TensorGroup::exchange_parts(Device& device, Device::Ticket ready,
                                         std::span<const Transport::Incoming> incoming,
                                         std::span<const Transport::Outgoing> outgoing) {
  HF_TRY_VOID(wait_for(device, ready));
  Span about{.kind = SpanKind::wait_slices};
  for (const Transport::Outgoing& message : outgoing) about.bytes += message.source.size();
  const HostSpan wait(spans_, about);
  HF_TRY(const Transport::Number number, transport_->open(incoming));
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

// Every peer gets part_of_peer(peer) of what this rank has, and its part arrives at target_of_peer(peer).
template <typename Source, typename Target>
Result<void> TensorGroup::exchange_with_all(Device& device, Device::Ticket ready,
                                            const Source& source_of_peer, const Target& target_of_peer) {
  std::array<Transport::Incoming, TreeSum::parts_max> incoming;
  std::array<Transport::Outgoing, TreeSum::parts_max> outgoing;
  std::size_t peers = 0;
  for (int peer = 0; peer < share_.ranks(); ++peer) {
    if (peer == share_.rank()) continue;
    incoming[peers] = {.target = target_of_peer(peer), .peer = peer};
    outgoing[peers++] = {.source = source_of_peer(peer), .peer = peer};
  }
  return exchange_parts(device, ready, std::span(incoming).first(peers), std::span(outgoing).first(peers));
}

Result<void> TensorGroup::all_gather(Device& device, std::span<std::byte> whole) {
  if (transport_ == nullptr) return {};
  const std::size_t part_bytes = part_of(whole.size());
  const auto part = [&](int rank) { return whole.subspan(index(rank) * part_bytes, part_bytes); };
  return exchange_with_all(
      device, device.ticket(), [&](int) { return part(share_.rank()); }, part);
}

Result<void> TensorGroup::scatter(Device& device, Device::Ticket ready, std::span<const std::byte> whole,
                                  std::span<std::byte> arrivals) {
  if (transport_ == nullptr) return {};
  const std::size_t part_bytes = part_of(whole.size());
  HF_CHECK(arrivals.size() >= whole.size());
  return exchange_with_all(
      device, ready, [&](int peer) { return whole.subspan(index(peer) * part_bytes, part_bytes); },
      [&](int peer) { return arrivals.subspan(index(peer) * part_bytes, part_bytes); });
}

std::size_t TensorGroup::part_of(std::size_t whole_bytes) const {
  HF_CHECK(whole_bytes % index(share_.ranks()) == 0, "{} bytes on {} ranks", whole_bytes, share_.ranks());
  return whole_bytes / index(share_.ranks());
}

Device::Ticket TensorGroup::launch_own_sum(Device& device, const SliceSums& sums) {
  if (share_.ranks() > 1 && share_.count > 1) {
    TreeSum sum{.part_count = share_.count, .y = sums.parts, .rows = sums.rows, .columns = sums.columns};
    for (int slice = 0; slice < share_.count; ++slice)
      sum.parts[index(slice)] = sums.parts + slice * sums.rows * sums.columns;
    device.launch(sum);
  }
  return share_.ranks() > 1 ? device.ticket() : 0;
}

Result<void> TensorGroup::finish_sum(Device& device, Device::Ticket own_sum, const SliceSums& sums,
                                     const SumTarget& target) {
  const int ranks = share_.ranks();
  TreeSum sum{.part_count = ranks == 1 ? share_.count : ranks,
              .bias = target.bias,
              .residual = target.residual,
              .y = target.y,
              .rows = own_rows(sums.rows),
              .columns = sums.columns,
              .dtype = target.dtype};
  const std::int64_t own_elements = sum.rows * sums.columns;
  for (int part = 0; part < sum.part_count; ++part) {
    const bool own = part == share_.rank();
    sum.parts[index(part)] = ranks == 1 ? sums.parts + part * own_elements
                             : own      ? sums.parts + part * own_elements  // the rows that are this rank's
                                        : sums.arrivals + part * own_elements;
  }
  if (ranks > 1) {
    const std::size_t elements = static_cast<std::size_t>(sums.rows * sums.columns);
    HF_TRY_VOID(scatter(device, own_sum, std::as_bytes(std::span(sums.parts, elements)),
                        std::as_writable_bytes(std::span(sums.arrivals, elements))));
  }
  device.launch(sum);
  return {};
}

}  // namespace holdfast::parallel
