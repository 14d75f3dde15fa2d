// CallTrace: a folder with calls of ops that a run made. trace.json has what this program needs to make them again; arrays are in
// safetensors files, one for each call. Beside it is what other programs read: the dataset of FlashInfer-Bench (Definition and
// Workload, after its documentation), whose workloads name the same files.
//
//   trace.json                                    last, so that a folder with it is whole
//   blob/workloads/OP/DEFINITION/UUID.safetensors
//   definitions/OP/DEFINITION.json                an op with one shape, type and set of flags
//   workloads/OP/DEFINITION.jsonl                 a line for each call that was kept
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "tools/bench_native/step_calls.h"
#include "tools/kernel_kit/check_shapes.h"
#include "tools/kernel_kit/traced_call.h"

namespace holdfast::bench::kernel_kit {

// KeptCall is a call whose arrays are in the trace.
struct KeptCall {
  std::string uuid = {};
  std::uint64_t step = 0;
  std::string place = {};   // "layers.3.attention"
  std::string kernel = {};  // that computed it, such as "avx512", or "mine" with the digest of its file
  TracedCall call = {};
};

// CallsOfShape are the calls with one key (runtime/measure/call_key.h), of which the first ones of each step are kept.
struct CallsOfShape {
  OpId op = OpId::count;
  std::string text = {};                 // "64x768 bf16, accumulate"
  std::string definition = {};           // name that no other shape of the trace has
  std::vector<std::int64_t> calls = {};  // in each step of the trace
  std::vector<KeptCall> kept = {};

  std::int64_t calls_of_step() const;  // the mean over the steps, at least 1
};

// TraceFacts are about the run.
struct TraceFacts {
  std::string run = {}, device = {}, precision = {};
  int threads = 1;
  std::int64_t vocabulary = 1;
  std::vector<std::uint64_t> steps = {};
};

struct CallTrace {
  std::string folder = {};
  TraceFacts facts = {};
  std::vector<CallsOfShape> shapes = {};

  // Returns the names of the ops that it has, each once.
  std::vector<std::string> ops() const;
};

// TraceWriter makes the folder under another name, which it has until finish(); what is not finished is removed.
class TraceWriter {
 public:
  // ExitCode::config where the folder is there already.
  static Result<std::unique_ptr<TraceWriter>> make(Env& env, const std::string& folder);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Writes the arrays of a call, and keeps all of it but their content. Any thread, one at a time.
  Result<void> add(CallsOfShape& shape, KeptCall kept);
  // Reads a call back that was added. ExitCode::data where the file is not what was written.
  Result<void> load(const CallsOfShape& shape, KeptCall& kept) const;
  // Writes the rest, and gives the folder its name. `trace.folder` is not used.
  Result<void> finish(const CallTrace& trace);

  std::uint64_t bytes() const { return bytes_; }           // of the arrays so far
  const std::string& partial() const { return partial_; }  // name of the folder until finish()

 private:
  TraceWriter(Env& env, std::string folder, std::string partial)
      : env_(env), folder_(std::move(folder)), partial_(std::move(partial)) {}

  Env& env_;
  const std::string folder_, partial_;
  bool is_finished_ = false;
  std::uint64_t bytes_ = 0;
};

// Reads trace.json, and no arrays. Errors: config where the folder is no trace, or one of an op that has another struct here;
// data where it was damaged.
Result<CallTrace> open_trace(Env& env, const std::string& folder);

// TracedCalls are the calls of an op in a trace, for those who try a kernel on them.
struct TracedCalls {
  std::shared_ptr<const std::vector<KeptCall>> kept = {};  // with their arrays, to which the rest points
  std::vector<CheckShape> checked = {};                    // each of them
  std::vector<StepCall> measured = {};                     // one of each shape, with its number in a step
  std::vector<std::vector<std::span<const std::byte>>> given = {};  // what the arrays of each of these hold
  std::vector<std::size_t> first = {};  // of each of these, which of the kept calls it is
  std::vector<Json> workloads = {};     // workload_of() of each of these
};
// Reads the calls of an op; none where the trace has none. ExitCode::data where a file was damaged.
Result<TracedCalls> load_calls(Env& env, const CallTrace& trace, OpId op);

// The JSON of FlashInfer-Bench: the definition of a shape, and the line of a workload. Pure.
Json definition_of(const CallsOfShape& shape, const TraceFacts& facts);
Json workload_of(const CallsOfShape& shape, const KeptCall& kept);
// Returns the path of the arrays of a call in a trace.
std::string blob_path(const CallsOfShape& shape, const KeptCall& kept);

}  // namespace holdfast::bench::kernel_kit
