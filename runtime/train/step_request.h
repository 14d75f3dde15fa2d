// StepRequest: what a rank brings to the vote of a step.
#pragma once

#include "runtime/core/result.h"
#include "runtime/run/requests.h"
#include "runtime/save/save_records.h"

namespace holdfast::save {
class StateSaver;
class Uploads;
}  // namespace holdfast::save

namespace holdfast::train {

struct StepRequest {
  bool stop = false;  // this rank was asked to save and stop; the vote carries it to all
  bool grow = false;  // rank 0 only: the run pauses for a resize after this step, to take in new ranks
  bool starts_ranks = false;    // rank 0 only: it starts new ranks between this step and the next
  RestartRequest restart = {};  // leader only: the run ends after this step, for another start
  Result<void> trouble;         // an error on this rank since the last step; the vote carries it to all
  StateSaver* saver = nullptr;  // its copy is complete before the update; the vote carries its votes
  Uploads* uploads = nullptr;   // the vote carries its votes as well
  // Saves that are due by this rank's count. The vote carries the count of rank 0, so that clocks that differ
  // never make ranks decide differently, and whether a save was requested on any rank.
  SaveDue due = {};
};

}  // namespace holdfast::train
