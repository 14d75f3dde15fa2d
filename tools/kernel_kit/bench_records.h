// Records what `holdfast kernel bench` found on a trace in its dataset, as FlashInfer-Bench has it: a line of a Trace (a workload
// with an evaluation) for each call, and a Solution (the sources) for each definition.
#pragma once

#include <string>

#include "kernels/registry.h"
#include "runtime/core/json.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "tools/kernel_kit/call_trace.h"
#include "tools/kernel_kit/kernel_bench.h"

namespace holdfast::bench::kernel_kit {

struct RecordTerms {
  const KernelRegistry* registry = nullptr;  // with the kernels of the plug-in
  OpId op = OpId::count;
  std::string plugin = {};                  // path of the file
  std::string hardware = {}, program = {};  // the machine, and the version of this program
};

// Returns the records of an op, each with the path that it has in the dataset. `figures` are those of calls.measured. Runs each
// kernel of the plug-in once more on each of them, for its errors. Solutions are there where the files are beside the plug-in that
// `kernel new` has put there.
Json records_of(Env& env, const RecordTerms& terms, const TracedCalls& calls, const OpFigures& figures);

// Writes records: a Solution in the place of an earlier one, a Trace after those that are there.
Result<void> write_records(Env& env, const std::string& folder, const Json& records);

}  // namespace holdfast::bench::kernel_kit
