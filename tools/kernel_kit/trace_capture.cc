#include "tools/kernel_kit/trace_capture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kernels/plugin.h"
#include "parallel/local/local_communicator.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/measure/call_key.h"
#include "runtime/replay/replay.h"

namespace holdfast::bench::kernel_kit {
namespace {

bool matches(std::string_view pattern, std::string_view word) {
  if (pattern.empty()) return word.empty();
  if (pattern.front() == '*')
    return matches(pattern.substr(1), word) || (!word.empty() && matches(pattern, word.substr(1)));
  return !word.empty() && (pattern.front() == '?' || pattern.front() == word.front()) &&
         matches(pattern.substr(1), word.substr(1));
}

std::optional<std::uint64_t> step_of(std::string_view word) {
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), step);
  if (error != std::errc() || end != word.data() + word.size() || step == 0) return std::nullopt;
  return step;
}

// Returns a name of letters, digits and _ for the text of a call: "rmsnorm_backward_64x768_bf16_accumulate".
std::string definition_name(OpId op, std::string_view text) {
  std::string name = std::string(name_of(op)) + "_";
  for (const char each : text) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(each)) != 0;
    if (is_plain || !name.ends_with('_')) name += is_plain ? each : '_';
  }
  while (name.ends_with('_')) name.pop_back();
  constexpr std::size_t most = 150;
  return name.substr(0, most);
}

// Returns the name of a kernel; of a plug-in's also what tells its file from others, as the identity of a device has it.
std::string name_with_file(const Implementation& kernel) {
  if (kernel.plugin == nullptr) return kernel.name;
  return fmt::format("{} {}", kernel.name, short_digest(*kernel.plugin->file));
}

// CallRecorder keeps the first calls of each shape in each step. The thread of the queue calls it, but for those that begin and end
// a step, while nothing runs.
class CallRecorder final : public device::CallWatch {
 public:
  CallRecorder(const CaptureTerms& terms, TraceWriter& writer) : terms_(terms), writer_(writer) {}

  // `index`: of the step among those of the trace.
  void begin_step(std::size_t index, std::uint64_t step, std::int64_t vocabulary) {
    index_ = index;
    step_ = step;
    vocabulary_ = vocabulary;
    kept_in_step_.clear();
  }
  // Returns the first error since the last call.
  Result<void> take_outcome() { return std::exchange(outcome_, {}); }

  void before(OpId id, const CallPlace& place, const void* arguments, const Implementation& kernel) override {
    if (!terms_.ops.test(static_cast<std::size_t>(id)) || !outcome_.ok()) return;
    const measure::CallKey key = measure::call_key(id, arguments);
    const auto [found, is_new] = places_.try_emplace(key, shapes_.size());
    if (is_new) add_shape(id, arguments);
    CallsOfShape& shape = shapes_[found->second];
    shape.calls.resize(terms_.steps.size());
    ++shape.calls[index_];
    std::int64_t& kept = kept_in_step_[found->second];
    if (kept >= terms_.calls) return;
    ++kept;
    shape_ = found->second;
    pending_ = KeptCall{.uuid = fmt::format("{}-step-{}-{}", shape.definition, step_, kept),
                        .step = step_,
                        .place = place.part == OpScope::Part::none
                                     ? "no layer"
                                     : part_name({.part = place.part, .layer = place.layer}),
                        .kernel = name_with_file(kernel),
                        .call = begin_call(id, arguments, vocabulary_)};
    kernels_[pending_->uuid] = &kernel;
  }
  void after(OpId id, const void* arguments) override {
    if (!pending_.has_value()) return;
    end_call(pending_->call, id, arguments, vocabulary_);
    outcome_ = writer_.add(shapes_[shape_], std::move(*pending_));
    pending_.reset();
  }

  std::vector<CallsOfShape>& shapes() { return shapes_; }
  const Implementation& kernel_of(const KeptCall& kept) const { return *kernels_.at(kept.uuid); }

 private:
  void add_shape(OpId id, const void* arguments) {
    CallsOfShape& shape = shapes_.emplace_back();
    shape.op = id;
    shape.text = measure::call_text(id, arguments);
    const std::string name = definition_name(id, shape.text);
    shape.definition = name;
    for (int number = 2; !definitions_.insert(shape.definition).second; ++number)
      shape.definition = fmt::format("{}_{}", name, number);
  }

  const CaptureTerms& terms_;
  TraceWriter& writer_;
  std::size_t index_ = 0, shape_ = 0;  // of the step, and of the shape of `pending_`
  std::uint64_t step_ = 0;
  std::int64_t vocabulary_ = 1;
  std::map<measure::CallKey, std::size_t> places_;  // in shapes_
  std::map<std::size_t, std::int64_t> kept_in_step_;
  std::set<std::string> definitions_;
  std::vector<CallsOfShape> shapes_;
  std::optional<KeptCall> pending_;
  std::map<std::string, const Implementation*> kernels_;  // by uuid; they live as long as the process
  Result<void> outcome_;
};

class Capture {
 public:
  Capture(Env& env, const CaptureTerms& terms, const std::function<void(const std::string&)>& say)
      : env_(env), terms_(terms), say_(say) {}

  Result<Captured> run() {
    HF_TRY(writer_, TraceWriter::make(env_, terms_.folder));
    recorder_ = std::make_unique<CallRecorder>(terms_, *writer_);
    HF_TRY(const std::unique_ptr<FaultPoints> faults, FaultPoints::parse("", 0, env_));
    // The newest first, because it is the one that may not be there yet.
    for (std::size_t index = terms_.steps.size(); index-- > 0;) HF_TRY_VOID(trace_step(index, *faults));
    std::ranges::reverse(captured_.differing);
    HF_TRY_VOID(make_calls_again());
    captured_.trace.folder = terms_.folder;
    captured_.trace.facts.run = terms_.run;
    captured_.trace.facts.steps = terms_.steps;
    captured_.trace.shapes = std::move(recorder_->shapes());
    captured_.bytes = writer_->bytes();
    HF_TRY_VOID(writer_->finish(captured_.trace));
    return std::move(captured_);
  }

 private:
  Result<void> trace_step(std::size_t index, FaultPoints& faults);
  Result<void> begin_step(std::size_t index, StepSession& session);
  Result<void> announce(StepSession& session);
  Result<void> make_calls_again();

  Env& env_;
  const CaptureTerms& terms_;
  const std::function<void(const std::string&)>& say_;
  std::unique_ptr<TraceWriter> writer_;
  std::unique_ptr<CallRecorder> recorder_;
  Captured captured_;
};

Result<void> Capture::trace_step(std::size_t index, FaultPoints& faults) {
  const std::vector<std::unique_ptr<Communicator>> ends = make_local_communicators(1);
  const std::uint64_t step = terms_.steps[index];
  HF_TRY(
      const ReplayedStep replayed,
      replay_step(
          {.env = env_, .faults = faults, .communicator = *ends.front(), .build = terms_.build, .say = say_},
          {.run_directory = terms_.run,
           .step = step,
           .overrides = terms_.overrides,
           .before_step = [&](StepSession& session) { return begin_step(index, session); },
           .after_step =
               [&](StepSession& session) {
                 dynamic_cast<device::WatchedCalls&>(session.device()).watch_calls(nullptr);
                 return recorder_->take_outcome();
               }}));
  if (!replayed.is_same())
    captured_.differing.push_back(fmt::format("step {} ({})", step, fmt::join(replayed.differing, ", ")));
  return {};
}

Result<void> Capture::begin_step(std::size_t index, StepSession& session) {
  HF_TRY(device::WatchedCalls* const watched, watched_calls(session.device(), terms_.run));
  TraceFacts& facts = captured_.trace.facts;
  facts.device = session.device().description();
  facts.precision = session.config().training.precision;
  facts.threads = session.device().threads();
  facts.vocabulary = session.worker().workload().spec.vocabulary;
  if (index + 1 == terms_.steps.size()) HF_TRY_VOID(announce(session));
  recorder_->begin_step(index, terms_.steps[index], facts.vocabulary);
  watched->watch_calls(recorder_.get());
  return {};
}

// Counts the calls of a planned step, which are those of a step that trains but for digests that its first update leaves.
Result<void> Capture::announce(StepSession& session) {
  std::int64_t ops = 0, shapes = 0, kept = 0, all = 0;
  std::uint64_t bytes = 0;
  for (std::size_t index = 0; index < op_count; ++index) {
    if (!terms_.ops.test(index)) continue;
    HF_TRY(const std::vector<StepCall> calls,
           calls_of_step(env_, session.config(), session.data(), static_cast<OpId>(index)));
    ops += calls.empty() ? 0 : 1;
    shapes += std::ssize(calls);
    for (const StepCall& each : calls) {
      const std::int64_t kept_of_shape = std::min(each.calls, terms_.calls);
      all += each.calls;
      kept += kept_of_shape;
      bytes += static_cast<std::uint64_t>(kept_of_shape) * bytes_of_arrays(each.sample.shape.id(),
                                                                           each.sample.shape.arguments(),
                                                                           captured_.trace.facts.vocabulary);
    }
  }
  if (ops == 0)
    return fail(ExitCode::config,
                "no step of {} calls an op of --ops {}; holdfast plan --ops lists those that it calls",
                terms_.run, terms_.patterns);
  const auto steps = static_cast<std::int64_t>(terms_.steps.size());
  bytes *= terms_.steps.size();
  say_(
      fmt::format("keeps {} of {} calls of {} op{} in {} shape{}, the first {} of each shape in each of {} "
                  "step{}: about {} in {}",
                  kept * steps, all * steps, ops, ops == 1 ? "" : "s", shapes, shapes == 1 ? "" : "s",
                  terms_.calls, steps, steps == 1 ? "" : "s", format_bytes(bytes), terms_.folder));
  HF_TRY(const std::uint64_t room, env_.free_bytes(writer_->partial()));
  if (room < bytes)
    return fail(ExitCode::does_not_fit,
                "{} has {} free, and the arrays of these calls have {}; give fewer ops, steps or "
                "--calls, or --out on another disk",
                terms_.folder, format_bytes(room), format_bytes(bytes));
  return {};
}

Result<void> Capture::make_calls_again() {
  const TraceFacts& facts = captured_.trace.facts;
  for (const CallsOfShape& shape : recorder_->shapes()) {
    for (const KeptCall& each : shape.kept) {
      KeptCall kept = each;
      HF_TRY_VOID(writer_->load(shape, kept));
      const Result<std::string> difference =
          difference_when_repeated(kept.call, facts.vocabulary, recorder_->kernel_of(kept), facts.threads);
      const std::string problem = difference.ok() ? *difference : difference.error().message;
      if (!problem.empty())
        return fail(ExitCode::numerics,
                    "the call of {} in {} of step {} ({}), made again by {} from what was kept, differs: {}; "
                    "a kernel "
                    "that depends on more than its call, or wrong hardware. Nothing was kept",
                    name_of(shape.op), kept.place, kept.step, shape.text, kept.kernel, problem);
    }
  }
  return {};
}

}  // namespace

Result<device::WatchedCalls*> watched_calls(Device& device, std::string_view run) {
  if (auto* const watched = dynamic_cast<device::WatchedCalls*>(&device)) return watched;
  return fail(
      ExitCode::config,
      "{} computes on {}, and calls are captured from a processor alone; give a run that trained on one", run,
      device.description());
}

Result<OpSet> ops_of_patterns(std::string_view patterns) {
  OpSet ops;
  for (const std::string& pattern : split_list(patterns)) {
    bool has_some = false;
    for (std::size_t index = 0; index < op_count; ++index) {
      if (!matches(pattern, op_names[index])) continue;
      ops.set(index);
      has_some = true;
    }
    if (has_some) continue;
    const std::vector<std::string_view> names(std::begin(op_names), std::end(op_names));
    const std::string near = closest(pattern, names);
    return fail(ExitCode::config, "--ops: no op matches {}{}; holdfast kernel list has all of them", pattern,
                near.empty() ? "" : fmt::format(", did you mean {}?", near));
  }
  if (ops.none()) return fail(ExitCode::config, "--ops is empty; give patterns such as 'rmsnorm_*,matmul'");
  return ops;
}

Result<std::vector<std::uint64_t>> steps_of_list(std::string_view list) {
  constexpr std::uint64_t most = 100;
  std::set<std::uint64_t> steps;
  for (const std::string& word : split_list(list)) {
    const std::size_t dash = word.find('-');
    const std::optional<std::uint64_t> first = step_of(std::string_view(word).substr(0, dash));
    const std::optional<std::uint64_t> last =
        dash == std::string::npos ? first : step_of(std::string_view(word).substr(dash + 1));
    if (!first.has_value() || !last.has_value() || *last < *first)
      return fail(ExitCode::config, "--steps has \"{}\"; expected steps, counted from 1, such as 12 or 10-12",
                  word);
    if (*last - *first >= most || steps.size() + (*last - *first) >= most)
      return fail(ExitCode::config, "--steps has more than {} steps; a trace is of a few", most);
    for (std::uint64_t step = *first; step <= *last; ++step) steps.insert(step);
  }
  if (steps.empty())
    return fail(ExitCode::config, "--steps is empty; expected steps, counted from 1, such as 12 or 10-12");
  return std::vector(steps.begin(), steps.end());
}

Result<Captured> capture_calls(Env& env, const CaptureTerms& terms,
                               const std::function<void(const std::string&)>& say) {
  return Capture(env, terms, say).run();
}

}  // namespace holdfast::bench::kernel_kit
