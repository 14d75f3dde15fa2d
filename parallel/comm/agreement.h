// Agreements at start-up and at saves: all ranks get one verdict, with a sentence that names the rank that
// differs or failed.
#pragma once

#include <string>
#include <vector>

#include "parallel/comm/collectives.h"

namespace holdfast::inline parallel {

struct Fact {
  std::string name;   // "binary", "config", "data", "device"
  std::string value;  // compared as text
};

// Compares facts across all ranks; every rank passes the same names. When a value differs from rank 0's, all
// ranks get the same error (ExitCode::config), which names the fact, the ranks that differ and both values.
Result<void> agree_on_facts(Communicator& communicator, const Waiter& waiter, const std::vector<Fact>& facts);

// Combines the outcomes of all ranks. All get ok, or the error of the lowest failing rank, prefixed "rank 2
// (host): " unless all ranks failed with the same sentence.
Result<void> agree_on_outcome(Communicator& communicator, const Waiter& waiter, const Result<void>& mine,
                              const std::string& host);

}  // namespace holdfast::inline parallel
