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

// Combines the outcomes of all ranks. All get ok, or an error with the code and the sentence of the lowest failing
// rank, prefixed "rank 2 (host): " unless all ranks failed with the same sentence. Its reach tells each rank what
// follows:
//   run                 the run ends; some rank failed for a reason that every start would meet
//   everywhere, minute  all ranks failed, each because of its host, or some of them because of this minute
//   host, minute        this rank is unfit and others are fit: they go on if it leaves
//   peers               this rank is fit and others are not
Result<void> agree_on_outcome(Communicator& communicator, const Waiter& waiter, const Result<void>& mine,
                              const std::string& host);

}  // namespace holdfast::inline parallel
