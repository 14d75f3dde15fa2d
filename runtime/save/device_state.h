// State in device memory, filled by the host: in parts, as many at once as the host can hold of them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "checkpoint/store.h"
#include "kernels/host_access.h"
#include "runtime/core/result.h"
#include "runtime/optim/sharded_optimizer.h"

namespace holdfast::inline save {

// The bytes of a piece of state, in the device's memory.
std::span<std::byte> bytes_of_state(const OwnedState& piece);

// fill(parts, targets) writes whole parts of the pieces to host memory, part by part in `targets`; it is
// called until all are written. Its error ends it.
using FillParts = std::function<Result<void>(std::span<const OwnedState> parts,
                                             std::span<const std::span<std::byte>> targets)>;
Result<void> write_state(HostAccess& access, const std::vector<OwnedState>& pieces, const FillParts& fill);

// From wherever it is: `read` fills what is wanted of it.
using ReadWanted = std::function<Result<void>(std::span<const Checkpoint::Wanted> wanted)>;
Result<void> read_state(HostAccess& access, const std::vector<OwnedState>& pieces, const ReadWanted& read);
// From a checkpoint that any layout wrote, on so many threads.
inline Result<void> read_state(HostAccess& access, const std::vector<OwnedState>& pieces,
                               Checkpoint& checkpoint, int threads) {
  return read_state(access, pieces, [&](std::span<const Checkpoint::Wanted> wanted) {
    return checkpoint.read(wanted, threads);
  });
}

}  // namespace holdfast::inline save
