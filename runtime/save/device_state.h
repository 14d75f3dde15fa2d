// Fills state in device memory from the host, in parts, as many at once as the host has room for.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/core/result.h"
#include "runtime/device/host_access.h"
#include "runtime/optim/sharded_optimizer.h"

namespace holdfast::save {

// Returns the bytes of a piece of state, in the device's memory.
std::span<std::byte> bytes_of_state(const OwnedState& piece);

// Writes the pieces of state. fill(parts, targets) writes whole parts of the pieces to host memory, part by
// part in `targets`; it is called until all are written. An error of it ends the writing.
using FillParts = std::function<Result<void>(std::span<const OwnedState> parts,
                                             std::span<const std::span<std::byte>> targets)>;
Result<void> write_state(HostAccess& access, const std::vector<OwnedState>& pieces, const FillParts& fill);

// Fills the pieces of state from any source: `read` reads the wanted parts.
using ReadWanted = std::function<Result<void>(std::span<const Checkpoint::Wanted> wanted)>;
Result<void> read_state(HostAccess& access, const std::vector<OwnedState>& pieces, const ReadWanted& read);
// Fills the pieces of state from a checkpoint that any layout wrote, on `threads` threads.
inline Result<void> read_state(HostAccess& access, const std::vector<OwnedState>& pieces,
                               Checkpoint& checkpoint, int threads) {
  return read_state(access, pieces, [&](std::span<const Checkpoint::Wanted> wanted) {
    return checkpoint.read(wanted, threads);
  });
}

}  // namespace holdfast::save
