// Fetches the parts of a RAM snapshot that a rank needs and does not find on its host from the hosts that
// have them: after a host was lost and its replicas are elsewhere, or where ranks start on other hosts than
// before.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/ram_tier.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

// Fetches the missing parts; all ranks call it together. `set`: the parts of one step that this rank's host
// has. Every rank adds to its set the parts of `wanted` that its host does not have. Each part is verified
// where it lies, and sent to each rank that needs it, which verifies what arrives by a checksum that comes
// after it. What arrives otherwise is requested again, from another rank that has it in the end.
// `changed_links`, the same on all ranks, gets a clause for each link that changed something. Errors:
// ExitCode::communication, or on some ranks ExitCode::checkpoint where a part is nowhere, is damaged where it
// is, or never arrives as it was sent.
Result<void> fetch_missing_parts(StateView& view, SnapshotSet& set, std::vector<ShardSpec> wanted,
                                 std::vector<std::string>& changed_links);

// Sends the manifest of the first rank that has one to all ranks, and returns it; empty where no rank has
// one.
Result<std::string> share_manifest(StateView& view, const SnapshotSet& set);

}  // namespace holdfast::save
