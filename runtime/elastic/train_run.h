// Runs the training of a run on one rank, from config to exit code: join, start point, worker, loop, end. All
// ranks of a run call train_run() together and all get the same exit code, unless a peer is gone. With a
// Membership the run goes on without a rank that dies (source.h); then all ranks that are left get the same
// exit code.
#pragma once

#include <string>

#include "runtime/core/result.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::elastic {

struct RunEnd {
  ExitCode code = ExitCode::done;
  std::string message;  // how the run ended, in one sentence
};

// Runs this rank to the end of the run. It never returns early on one rank alone: errors of one rank are
// agreed on before all return. The exception is a lost peer without which the run cannot go on: then the
// communicator (with a membership, its newest) is abandoned, and the process should exit without further
// messages. A rank whose own device or system fails while the others could go on never returns: it ends
// itself by SIGKILL.
RunEnd train_run(const TrainInputs& inputs);

}  // namespace holdfast::elastic
