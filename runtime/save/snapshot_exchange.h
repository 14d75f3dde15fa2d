// Fetches the parts of a RAM snapshot that a rank needs and does not find on its host from the hosts that
// have them: after a host was lost and its replicas are elsewhere, or where ranks start on other hosts than
// before.
#pragma once

#include <string>

#include "checkpoint/ram_tier.h"
#include "runtime/save/state_view.h"

namespace holdfast::inline save {

// Fetches the missing parts; all ranks call it together. `set`: the parts of one step that this rank's host
// has. Every rank adds to its set the parts of `wanted` that its host does not have. Each part is verified
// where it lies, and sent once to each rank that needs it. Errors: ExitCode::communication, or on some ranks
// ExitCode::checkpoint where a part is nowhere, or damaged where it is.
Result<void> fetch_missing_parts(StateView& view, SnapshotSet& set, std::vector<ShardSpec> wanted);

// Sends the manifest of the first rank that has one to all ranks, and returns it; empty where no rank has
// one.
Result<std::string> share_manifest(StateView& view, const SnapshotSet& set);

}  // namespace holdfast::inline save
