// gather(): gives all ranks the record of every rank.
//
//   HF_TRY(const std::vector<Offer> offers, gather(communicator, waiter, mine));  // by rank
//
// It is for small facts that ranks exchange a few times in a run; records are in runtime/core/record.h.
#pragma once

#include <string>
#include <vector>

#include "parallel/comm/collectives.h"
#include "runtime/core/record.h"

namespace holdfast::parallel {

// Returns the records of all ranks, by rank. All ranks call it together. Errors: ExitCode::communication,
// also where a rank's record cannot be read; all ranks get that error alike, and the communicator stays
// usable.
template <typename T>
Result<std::vector<T>> gather(Communicator& communicator, const Waiter& waiter, const T& mine) {
  HF_TRY(const std::vector<std::string> texts, all_gather_text(communicator, waiter, record_to_text(mine)));
  std::vector<T> all;
  all.reserve(texts.size());
  for (const std::string& text : texts) {
    Result<T> record = record_from_text<T>(text);
    if (!record.ok()) {
      return fail(ExitCode::communication,
                  "the record that rank {} sent cannot be read: {}; ranks of a run must be of one version of "
                  "holdfast: install the same one on every host, then start again",
                  communicator.global_rank(static_cast<int>(all.size())), record.error().message);
    }
    all.push_back(std::move(record).value());
  }
  return all;
}

}  // namespace holdfast::parallel
