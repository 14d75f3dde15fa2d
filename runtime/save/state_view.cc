#include "runtime/save/state_view.h"

#include <algorithm>

#include "parallel/comm/device_wait.h"
#include "runtime/rank/device_loss.h"

namespace holdfast::save {

Result<void> StateView::publish_parameters(bool has_digests) const {
  if (has_digests) {
    optimizer.launch_copies(rank.device);
  } else {
    optimizer.launch_publish(rank.device);
  }
  wait_for_device(rank.device, rank.communicator);
  HF_TRY_VOID(parameter_gather.begin(ParameterGather::Which::all));
  return parameter_gather.finish();
}

Result<void> StateView::device_outcome() const {
  Result<void> outcome = rank.device.status();
  if (rank.device.lost()) {
    end_without_device({rank.env, rank.communicator, rank.config.run.directory, state.step}, outcome.error());
  }
  return outcome;
}

namespace {

// Cuts pieces that are longer than the host has room for at once.
std::vector<OwnedState> parts_of(const HostAccess& access, const std::vector<OwnedState>& pieces) {
  std::vector<OwnedState> parts;
  for (const OwnedState& piece : pieces) {
    const std::uint64_t block_bytes = block_elements * bytes_of(piece.spec.dtype);
    const std::uint64_t blocks_max = access.room_bytes() / block_bytes;
    for (std::uint64_t done = 0; done < piece.spec.block_count;) {
      OwnedState part = piece;
      part.spec.first_block += done;
      part.spec.block_count = std::min(blocks_max, piece.spec.block_count - done);
      part.data += done * block_bytes;
      done += part.spec.block_count;
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

}  // namespace

std::span<std::byte> bytes_of_state(const OwnedState& piece) {
  return {piece.data, piece.spec.byte_count()};
}

Result<void> write_state(HostAccess& access, const std::vector<OwnedState>& pieces, const FillParts& fill) {
  const std::vector<OwnedState> parts = parts_of(access, pieces);
  for (std::size_t begin = 0; begin < parts.size();) {
    std::vector<std::span<std::byte>> targets;
    std::size_t end = begin;
    for (; end < parts.size() && parts[end].spec.byte_count() <= access.room_bytes(); ++end)
      targets.push_back(access.to_write(bytes_of_state(parts[end])));
    HF_TRY_VOID(fill(std::span(parts).subspan(begin, end - begin), targets));
    access.flush();
    begin = end;
  }
  return {};
}

Result<void> read_state(HostAccess& access, const std::vector<OwnedState>& pieces, const ReadWanted& read) {
  return write_state(access, pieces,
                     [&](std::span<const OwnedState> parts, std::span<const std::span<std::byte>> targets) {
                       std::vector<Checkpoint::Wanted> wanted;
                       for (std::size_t i = 0; i < parts.size(); ++i)
                         wanted.push_back({parts[i].spec, targets[i]});
                       return read(wanted);
                     });
}

}  // namespace holdfast::save
