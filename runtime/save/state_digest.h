// Computes the digest of a saved state for `holdfast digest`. It does not depend on the layout: it covers the
// tensors' bytes in element order, never stored checksums or the cuts between ranks. Equal lines = equal
// bits.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/store.h"
#include "runtime/core/digest.h"
#include "runtime/core/result.h"

namespace holdfast::save {

struct StateDigest {
  std::uint64_t step = 0;
  Digest weights = {};    // every tensor of kind "weight"
  Digest optimizer = {};  // every tensor of the kinds "moment1", "moment2" and, if there are any, "ema"
  Digest data = {};       // the data digest and the cursor
  Digest loss = {};       // the losses of all steps
};

// Computes the digest of a checkpoint. It reads every tensor once, in pieces of bounded size, and verifies
// every byte. Fails with ExitCode::checkpoint when the checkpoint is damaged or not complete.
Result<StateDigest> digest_checkpoint(Checkpoint& checkpoint);

// Returns five lines: "step 50", "weights <hex>", "optimizer <hex>", "data <hex>", "loss <hex>".
std::string to_text(const StateDigest& digest);

}  // namespace holdfast::save
