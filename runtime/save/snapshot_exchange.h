// What a rank needs of a RAM snapshot and does not find on its host comes from the hosts that have it: after
// a host was lost and its replicas are elsewhere, or where ranks start on other hosts than before.
#pragma once

#include <string>

#include "checkpoint/ram_tier.h"
#include "runtime/save/state_view.h"

namespace holdfast::inline save {

// All ranks together; `set`: what this rank's host has of one step. Every rank adds to its set what of
// `wanted` its host does not have; each part is verified where it lies, and sent once to each rank that needs
// it. ExitCode::communication, or on some ranks ExitCode::checkpoint where a part is nowhere, or damaged
// where it is.
Result<void> fetch_missing_parts(StateView& view, SnapshotSet& set, std::vector<ShardSpec> wanted);

// Of the first rank that has one, to all; empty where none has.
Result<std::string> share_manifest(StateView& view, const SnapshotSet& set);

}  // namespace holdfast::inline save
