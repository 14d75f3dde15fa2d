// The events of a run's log: every kind and every field, declared once. Each kind is a struct; put_event()
// (event_log.h) writes it as a line of the log, event_as() (event_reading.h) reads it, and docs/events.md is
// generated from it (event_reading.h):
//
//   log.write(EvaluationEvent{.time_us = now_us, .step = step, .loss = loss, .duration_ms = duration_ms});
//   if (const auto evaluation = event_as<EvaluationEvent>(json)) plot(evaluation->step, evaluation->loss);
//
// A new field is a member and a line of visit_fields(), in the order of the members: its name, unit (empty:
// none, or the name says it) and meaning. A member of type std::optional is not in every line: its meaning
// says when it is there. A number that is not finite is null in the log.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/core/kernel_fault.h"
#include "runtime/run/fault_cause.h"

namespace holdfast::run {

// The fields that every event has beside its own: its kind, and the wall clock in microseconds since 1970.
inline constexpr std::string_view event_kind_field = "event", event_time_field = "time_us";

// The version of all kinds and fields below, MAJOR.MINOR. A minor one adds some, so that a reader of an earlier one goes on; the lists of
// all versions are in tests/run/golden, and a test holds this one to them.
inline constexpr std::string_view event_schema_version = "1.0";

// A field that is in every line, and null where it has no value.
template <typename T>
struct OrNull {
  std::optional<T> value = {};
};

// The implementation that runs an op, and why. Of a rule, the op has its calls behind it: "add in layers 0-3".
struct EventKernel {
  std::string op = {}, name = {}, why = {};
};

// EventSource is a source of the data, in the order of data.sources.
struct EventSource {
  std::string path = {};
  std::uint64_t samples = 0;  // that training has, once through
  double weight = 0.0;        // 0: the sources have no weights

  static void visit_fields(auto& self, auto&& visit) {
    visit("path", self.path);
    visit("samples", self.samples);
    visit("weight", self.weight);
  }
};

// SourceUse is what the steps of a run have used of a source.
struct SourceUse {
  std::string path = {};
  std::uint64_t samples = 0, tokens = 0;
  double epochs = 0.0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("path", self.path);
    visit("samples", self.samples);
    visit("tokens", self.tokens);
    visit("epochs", self.epochs);
  }
};

inline constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

struct StartEvent {
  static constexpr std::string_view kind = "start";
  static constexpr std::string_view meaning = "A start of the run has its state and begins to train.";
  std::int64_t time_us = 0;
  std::string run = {};
  std::uint64_t parameters = 0;
  int ranks = 0;
  std::optional<std::map<std::string, int>> hosts = {};
  std::int64_t steps = 0;
  double flops_per_token = no_number;
  OrNull<std::uint64_t> resumed_from_step = {};
  std::optional<std::string> resumed_from = {};
  std::uint64_t generation = 0;
  double join_ms = no_number, worker_ms = no_number, state_ms = no_number, gemm_peak_ms = no_number;
  double gemm_peak_flops = no_number;
  std::string device = {};
  std::string exchange = {};
  std::optional<std::string> device_plan = {};
  std::optional<std::map<std::string, int>> processors = {};
  std::vector<EventKernel> kernels = {};
  std::optional<std::map<std::string, std::string>> armed = {}, unarmed = {};
  std::optional<double> cost_per_rank_hour = {};
  std::optional<std::string> cost_currency = {};
  std::optional<std::string> faults = {};
  std::optional<std::string> schema = {};
  std::optional<std::vector<EventSource>> sources = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("run", self.run, "", "Id of the run");
    visit("parameters", self.parameters, "", "Parameters of the model");
    visit("ranks", self.ranks, "", "All ranks of this start, with spares");
    visit("hosts", self.hosts, "ranks",
          "Ranks by name of host; where the ranks can go on without one of them");
    visit("steps", self.steps, "", "training.steps");
    visit("flops_per_token", self.flops_per_token, "FLOP",
          "Arithmetic of the model's products, forward and backward");
    visit("resumed_from_step", self.resumed_from_step, "", "Step that this start goes on from; null: none");
    visit("resumed_from", self.resumed_from, "", "ram or disk; where it resumes");
    visit("generation", self.generation, "", "Future of the run that this is (docs/checkpoints.md)");
    visit("join_ms", self.join_ms, "ms", "Time until all ranks had agreed on config, data and start");
    visit("worker_ms", self.worker_ms, "ms", "Time for memory and kernels");
    visit("state_ms", self.state_ms, "ms", "Time to read or make the state");
    visit("gemm_peak_ms", self.gemm_peak_ms, "ms", "Time to measure the rate of one large matrix product");
    visit("gemm_peak_flops", self.gemm_peak_flops, "FLOP/s", "That rate, of all ranks together");
    visit("device", self.device, "", "What computes, with its kernels");
    visit("exchange", self.exchange, "", "What moves device memory between ranks, and why");
    visit("device_plan", self.device_plan, "",
          "Algorithm of each matrix product of all ranks, one a line; on a GPU");
    visit("processors", self.processors, "ranks",
          "Ranks by the processors that they run on; on GPUs, where a host has several NUMA nodes");
    visit("kernels", self.kernels, "", "By op: name of the implementation that runs it, and why");
    visit("armed", self.armed, "",
          "By name: each protection of the run that is on, with its numbers (operations.md#what-is-armed)");
    visit("unarmed", self.unarmed, "", "By name: each one that is off, and why");
    visit("cost_per_rank_hour", self.cost_per_rank_hour, "", "cost.per_rank_hour; where it is set");
    visit("cost_currency", self.cost_currency, "", "cost.currency; with a price");
    visit("faults", self.faults, "", "HOLDFAST_FAULTS, by which a run is made to fail; where it is set");
    visit("schema", self.schema, "", "Version of these kinds and fields; not in lines of before 1.0");
    visit("sources", self.sources, "",
          "data.sources: path, samples that training has once through, and weight of each; not in lines of "
          "earlier programs");
  }
};

struct StepEvent {
  static constexpr std::string_view kind = "step";
  static constexpr std::string_view meaning = "A step was made.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  double loss = no_number, grad_norm = no_number, learning_rate = no_number;
  std::uint64_t tokens = 0;
  double step_duration_ms = no_number, tokens_per_sec = no_number;
  Digest data_digest = {};
  std::optional<double> mfu = {};
  std::optional<double> compute_ms = {}, waited_ms = {}, data_ms = {};
  std::optional<double> save_ms = {}, stall_ms = {}, again_ms = {};
  std::optional<bool> recomputed = {};
  std::optional<std::vector<std::uint64_t>> source_samples = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "",
          "Steps that the run has made with this one. A step that is computed again "
          "appears again, with the same numbers: the last one counts");
    visit("loss", self.loss, "", "Mean loss of the step's targets");
    visit("grad_norm", self.grad_norm, "", "Norm of all gradients, before clipping");
    visit("learning_rate", self.learning_rate, "", "Learning rate of the update");
    visit("tokens", self.tokens, "",
          "Tokens that the run has used with this step, without those that a roll-back has left out");
    visit("step_duration_ms", self.step_duration_ms, "ms", "Time of the step");
    visit("tokens_per_sec", self.tokens_per_sec, "tokens/s", "Tokens of the step by its time");
    visit("data_digest", self.data_digest, "", "Digest of the ids of all samples used so far, in order");
    visit("mfu", self.mfu, "",
          "Model FLOP utilization: arithmetic of the model by that of large products in the same time; where "
          "the latter is known");
    visit("compute_ms", self.compute_ms, "ms",
          "Time for which the device of rank 0 computed; where ranks measure it: of several on CPUs, unless "
          "health.preset is off, as the next two");
    visit("waited_ms", self.waited_ms, "ms",
          "Time for which rank 0 waited for other ranks while its device had nothing to do; where it is "
          "measured");
    visit("data_ms", self.data_ms, "ms",
          "Time for which rank 0 waited for its data; where it is measured and not 0");
    visit(
        "save_ms", self.save_ms, "ms",
        "Time for which training waited for saves between the step before and this one; where it was 0.1 ms "
        "or more");
    visit("stall_ms", self.stall_ms, "ms",
          "Time within the step for which the update waited for a save to copy the state; where it was 0.1 "
          "ms or more");
    visit("again_ms", self.again_ms, "ms",
          "Time within the step for audits, and for computing it again after a verdict; where there was one");
    visit("recomputed", self.recomputed, "",
          "true: an earlier line of the log has this step, too, which is computed again after a resume or a "
          "recovery; absent otherwise");
    visit("source_samples", self.source_samples, "",
          "Samples that the run has used of each source with this step, in the order of data.sources "
          "(docs/data.md#mixes); where they can be counted");
  }
};

struct EvaluationEvent {
  static constexpr std::string_view kind = "evaluation";
  static constexpr std::string_view meaning = "The held-out loss was computed.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  double loss = no_number;
  double duration_ms = no_number;

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Steps made");
    visit("loss", self.loss, "", "Mean loss of the held-out set");
    visit("duration_ms", self.duration_ms, "ms", "Time that training waited");
  }
};

struct KernelShadowEvent {
  static constexpr std::string_view kind = "kernel_shadow";
  static constexpr std::string_view meaning =
      "A kernel of kernels.shadow has computed the calls of an op in a layer once more, and was compared "
      "with the one that the run has, which alone decides its bits.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::string op = {};
  OrNull<int> layer = {};
  std::string kernel = {}, chosen = {};
  std::int64_t calls = 0;
  double ulp_max = no_number, ulp_mean = no_number;
  std::string worst = {};
  std::int64_t nonfinite = 0;
  double chosen_ms = no_number, shadow_ms = no_number;

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Step that the calls were made in");
    visit("op", self.op, "", "The op");
    visit("layer", self.layer, "", "The layer, from 0; null: outside of layers");
    visit("kernel", self.kernel, "", "The implementation that was compared");
    visit("chosen", self.chosen, "", "The one that the run has");
    visit("calls", self.calls, "", "Calls that were compared, of all ranks");
    visit("ulp_max", self.ulp_max, "", "Largest difference, in units in the last place of the run's number");
    visit("ulp_mean", self.ulp_mean, "", "Mean difference of all numbers");
    visit("worst", self.worst, "", "Array and index of the largest difference; empty: there is none");
    visit("nonfinite", self.nonfinite, "", "Numbers that are finite in one of the two alone");
    visit("chosen_ms", self.chosen_ms, "ms", "Time of all these calls by the run's implementation");
    visit("shadow_ms", self.shadow_ms, "ms", "Time of the same calls by the other one");
  }
};

struct KernelLeftOutEvent {
  static constexpr std::string_view kind = "kernel_left_out";
  static constexpr std::string_view meaning =
      "The run does without a kernel of a plug-in that has failed (kernels.on_failure): a numeric change. "
      "Once, where it "
      "begins.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::string op = {}, kernel = {}, library = {}, digest = {};
  std::string how = {};
  int rank = 0;
  std::string host = {};
  std::uint64_t failed_after_step = 0;
  std::string reason = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Step that the run goes on from without it");
    visit("op", self.op, "", "The op");
    visit("kernel", self.kernel, "", "The implementation");
    visit("library", self.library, "", "The plug-in, as the config names it");
    visit("digest", self.digest, "",
          "First digits of the digest of its bytes; another build is not left out");
    visit("how", self.how, "", "crash or hang");
    visit("rank", self.rank, "", "Rank that it ended");
    visit("host", self.host, "", "Host of that rank");
    visit("failed_after_step", self.failed_after_step, "", "Newest step that the rank had completed");
    visit("reason", self.reason, "", "Sentence");
  }
};

struct SnapshotEvent {
  static constexpr std::string_view kind = "snapshot";
  static constexpr std::string_view meaning =
      "A RAM snapshot is confirmed: every rank has sealed its part, and its buddy the replica of it. Not "
      "where no replicas are kept.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::uint64_t bytes_sent = 0;
  double duration_ms = no_number;

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Step of the state");
    visit("bytes_sent", self.bytes_sent, "bytes", "Sent to its buddy by rank 0");
    visit("duration_ms", self.duration_ms, "ms", "From its begin until all ranks knew that it is confirmed");
  }
};

struct CheckpointEvent {
  static constexpr std::string_view kind = "checkpoint";
  static constexpr std::string_view meaning = "A checkpoint is whole on the disk.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::string directory = {};
  std::uint64_t bytes = 0;
  double duration_ms = no_number, stall_ms = no_number, copy_ms = no_number, drain_ms = no_number;
  double publish_ms = no_number, processor_ms = no_number, durable_ms = no_number;

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Step of the state");
    visit("directory", self.directory, "", "Where it is");
    visit("bytes", self.bytes, "bytes", "Length of all shards");
    visit("duration_ms", self.duration_ms, "ms", "From its begin until all ranks knew that it is whole");
    visit("stall_ms", self.stall_ms, "ms", "Part of it for which training waited");
    visit("copy_ms", self.copy_ms, "ms", "Copy of the state beside the training, of rank 0 as the next two");
    visit("drain_ms", self.drain_ms, "ms", "Writing its shard and making it durable");
    visit("publish_ms", self.publish_ms, "ms", "Making it visible, and removing what is too old");
    visit("processor_ms", self.processor_ms, "ms", "Processor time of the thread that wrote the shard");
    visit("durable_ms", self.durable_ms, "ms", "From its begin until it was visible");
  }
};

struct UploadEvent {
  static constexpr std::string_view kind = "upload";
  static constexpr std::string_view meaning = "A checkpoint was uploaded.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  int attempts = 0;
  double duration_ms = no_number;

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Step of the checkpoint");
    visit("attempts", self.attempts, "", "How often the command was run");
    visit("duration_ms", self.duration_ms, "ms", "All attempts together");
  }
};

struct IntervalEvent {
  static constexpr std::string_view kind = "interval";
  static constexpr std::string_view meaning = "An interval that is `auto` was chosen anew.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::string tier = {};
  std::int64_t every_steps = 0;
  double cost_ms = no_number, step_ms = no_number;
  std::optional<double> durable_ms = {}, mtbf_ms = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Steps made");
    visit("tier", self.tier, "", "ram or disk");
    visit("every_steps", self.every_steps, "steps", "New interval");
    visit("cost_ms", self.cost_ms, "ms", "What one save costs the steps");
    visit("step_ms", self.step_ms, "ms", "Time of a step");
    visit("durable_ms", self.durable_ms, "ms", "How long a save takes until it counts; of tier disk");
    visit("mtbf_ms", self.mtbf_ms, "ms",
          "Mean time between failures that was reckoned with, where the interval follows from it");
  }
};

struct FailureCostEvent {
  static constexpr std::string_view kind = "failure_cost";
  static constexpr std::string_view meaning = "What a failure costs at most from now on.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::optional<double> process_ms = {}, host_ms = {}, job_ms = {};
  std::optional<double> lose_at_most_ms = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Steps made");
    visit("process_ms", self.process_ms, "ms", "Work that a lost process costs at most; absent: all of it");
    visit("host_ms", self.host_ms, "ms", "Work that a lost host costs at most; absent: all of it");
    visit("job_ms", self.job_ms, "ms", "Work that a lost job costs at most; absent: all of it");
    visit("lose_at_most_ms", self.lose_at_most_ms, "ms",
          "checkpoint.lose_at_most, where it is set: what is larger than it cannot be kept as small");
  }
};

struct FaultEvent {
  static constexpr std::string_view kind = "fault";
  static constexpr std::string_view meaning =
      "Something failed. The run goes on, or a later event says how it ended.";
  // Values of `what`.
  static constexpr const char *rank = "rank", *spare = "spare", *growth = "growth", *save = "save",
                              *replica = "replica", *upload = "upload";
  static constexpr int by_launcher = 2;  // value of `level`
  std::int64_t time_us = 0;
  std::optional<int> level = {};
  std::uint64_t step = 0;
  std::optional<std::string> what = {};
  std::string cause = std::string(name_of(FaultCause::unknown));
  std::optional<std::string> lost = {};
  std::optional<std::int64_t> noticed_us = {};
  std::string reason = {};
  std::optional<std::string> printed = {};
  std::optional<int> attempts = {};
  std::optional<double> duration_ms = {};
  std::optional<std::uint64_t> unsaved_steps = {};
  std::optional<double> unsaved_ms = {};
  std::optional<std::string> op = {}, kernel = {}, library = {};

  // Says in which kernel of a plug-in it was; of one without a name nothing.
  void put_kernel(const KernelName& name) {
    if (name.empty()) return;
    op = name.op;
    kernel = name.implementation;
    library = name.library;
  }
  // Returns whether training went on beside it, with all its ranks.
  bool is_aside() const { return what == save || what == replica || what == upload || what == spare; }
  // Returns when the first rank noticed, where that is known; else when it was logged.
  std::int64_t begin_us() const {
    return noticed_us.value_or(0) > 0 ? std::min(*noticed_us, time_us) : time_us;
  }

  static void visit_fields(auto& self, auto&& visit) {
    visit("level", self.level, "", "2: the launcher saw a start end; only in its events");
    visit("step", self.step, "", "Steps made when it was noticed");
    visit("what", self.what, "",
          "rank, spare, growth, save, replica or upload; of the launcher's events there is "
          "none");
    visit("cause", self.cause, "", fault_cause_meaning);
    visit("lost", self.lost, "", "Which ranks, on which hosts; of rank, spare and growth");
    visit("noticed_us", self.noticed_us, "us", "Wall clock when the first rank noticed; of rank and growth");
    visit("reason", self.reason, "", "Sentence; it quotes nothing that a command printed");
    visit("printed", self.printed, "",
          "End of what the command of the config printed, in one line; of upload, where it printed "
          "something. A bundle has it not");
    visit("attempts", self.attempts, "", "How often the command was run; of upload");
    visit("duration_ms", self.duration_ms, "ms", "All attempts together; of upload");
    visit("unsaved_steps", self.unsaved_steps, "", "Steps that are in no checkpoint; of save");
    visit("unsaved_ms", self.unsaved_ms, "ms",
          "Since the save of the newest checkpoint was begun, or since the start; of save");
    visit("op", self.op, "",
          "Op of the kernel of a plug-in that the rank ran when it crashed or hung; where it did");
    visit("kernel", self.kernel, "", "Implementation that it is");
    visit("library", self.library, "", "Plug-in that it is of, as the config names it");
  }
};

struct RecoveryEvent {
  static constexpr std::string_view kind = "recovery";
  static constexpr std::string_view meaning =
      "The run goes on after a fault, a growth, a drain or a roll-back: its first step was made.";
  // Values of `reason`.
  static constexpr const char *loss = "loss", *growth = "growth", *drain = "drain", *rollback = "rollback";
  static constexpr int in_place = 1, by_launcher = 2;  // values of `level`
  std::int64_t time_us = 0;
  std::optional<std::string> reason = {};
  int level = 0;
  int ranks_before = 0, ranks_after = 0;
  std::optional<std::map<std::string, int>> hosts = {};
  std::optional<int> seats_before = {}, seats_after = {}, spares = {};
  std::uint64_t lost_steps = 0;
  std::optional<std::uint64_t> resumed_from_step = {};
  std::optional<std::string> resumed_from = {};
  std::optional<int> faults = {};
  std::variant<double, std::int64_t> duration_ms = no_number;  // the launcher counts whole ones
  std::optional<double> shrink_ms = {}, plan_ms = {}, load_ms = {}, replay_ms = {};
  std::optional<std::int64_t> waited_for_hosts_ms = {};
  std::optional<std::map<std::string, std::string>> armed = {}, unarmed = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("reason", self.reason, "",
          "loss, growth, drain or rollback; a start of the launcher after a fault has none");
    visit("level", self.level, "", "1: in place; 2: by another start of the launcher");
    visit("ranks_before", self.ranks_before, "", "Ranks there were");
    visit("ranks_after", self.ranks_after, "", "Ranks there are");
    visit("hosts", self.hosts, "ranks", "Ranks by name of host; level 1");
    visit("seats_before", self.seats_before, "", "Active ranks there were; level 1");
    visit("seats_after", self.seats_after, "", "Active ranks there are; level 1");
    visit("spares", self.spares, "", "Ranks that wait to replace another; level 1");
    visit("lost_steps", self.lost_steps, "steps", "Steps that are computed again");
    visit("resumed_from_step", self.resumed_from_step, "", "Step that the run goes on from; level 1");
    visit("resumed_from", self.resumed_from, "", "ram, disk or start; level 1");
    visit("faults", self.faults, "", "Recoveries that were begun for it; level 1");
    visit("duration_ms", self.duration_ms, "ms",
          "From the notice to the end of the first step after it; level 2: to "
          "the first step of the new start");
    visit("shrink_ms", self.shrink_ms, "ms", "Coming together; level 1");
    visit("plan_ms", self.plan_ms, "ms", "Agreeing on ranks, directory and step; level 1");
    visit("load_ms", self.load_ms, "ms", "Memory, kernels and state; level 1");
    visit("replay_ms", self.replay_ms, "ms", "The steps until the first new one was made; level 1");
    visit("waited_for_hosts_ms", self.waited_for_hosts_ms, "ms",
          "Part of it for which too few hosts were there for a start; level 2, where there was such a time");
    visit("armed", self.armed, "", "By name: each protection that is on from here, as in a start; level 1");
    visit("unarmed", self.unarmed, "", "By name: each one that is off, and why; level 1");
  }
};

struct VerdictEvent {
  static constexpr std::string_view kind = "verdict";
  static constexpr std::string_view meaning =
      "The numbers of a step were not as usual, or not the same when they were computed again.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::string what = {};
  std::string action = {};
  std::string of = {};
  double value = no_number, score = no_number, median = no_number;
  int attempts = 1;
  int differing_ranks = 0;
  std::optional<int> rank = {};
  std::optional<std::string> host = {}, device = {};
  std::optional<std::uint64_t> earlier_findings = {};
  std::optional<int> lane = {}, microbatch = {};
  std::optional<std::string> samples = {};
  std::optional<std::string> op = {}, layer = {}, pass = {};
  std::optional<std::uint64_t> back_to_step = {};
  std::optional<std::string> tensor = {};
  double share = no_number;
  std::string reason = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Step that was checked");
    visit("kind", self.what, "", "nonfinite, exploded, spike, drift, dead or corruption");
    visit(
        "action", self.action, "",
        "none; redo: computed again, and kept; clip; skip: the update was not made; rollback: the run goes "
        "back to an older state; evict: a rank leaves; stop: the run ends; save_and_stop: the same, after a "
        "save");
    visit("of", self.of, "", "loss, grad_norm, state, update or links: what was checked");
    visit("value", self.value, "", "That number, of the attempt that counts");
    visit("score", self.score, "",
          "Of spike: robust deviations above the median of the window. Of exploded: times the median. Of "
          "drift: rise of the loss, in nats");
    visit("median", self.median, "", "Median of the window, or of its part, that it was compared with");
    visit("attempts", self.attempts, "", "How often the step was computed");
    visit("differing_ranks", self.differing_ranks, "",
          "Ranks whose bits were not the same in all attempts: 0 says data or numerics, more says hardware");
    visit("rank", self.rank, "", "Rank whose losses differed; where one is to blame");
    visit("host", self.host, "", "Host of that rank");
    visit("device", self.device, "", "Its device: cpu, or the name of the GPU as nvidia-smi -L shows it");
    visit("earlier_findings", self.earlier_findings, "",
          "Findings about that device within verdict.findings_window before this one; where there is a rank");
    visit("lane", self.lane, "",
          "Lane of the microbatch with the largest loss, or the first that is not finite");
    visit("microbatch", self.microbatch, "", "That microbatch, within its lane");
    visit("samples", self.samples, "",
          "Its samples: path, number, first token in the file and first tokens of each");
    visit("op", self.op, "", "First op of that microbatch whose result is not finite; of nonfinite");
    visit("layer", self.layer, "",
          "Part of the model that it is in: embedding, layers.N.attention, layers.N.feed_forward or head");
    visit("pass", self.pass, "", "Its pass: forward or backward. Head and loss are computed in the backward");
    visit("back_to_step", self.back_to_step, "",
          "Newest step whose state still counts; where the run goes back, now or at the next start");
    visit("tensor", self.tensor, "",
          "Tensor whose gradient has the largest share of the squared gradient norm; of spike");
    visit("share", self.share, "", "That share, 0 to 1");
    visit("reason", self.reason, "", "Sentence");
  }
};

struct StragglerEvent {
  static constexpr std::string_view kind = "straggler";
  static constexpr std::string_view meaning =
      "A rank computes more slowly than the others, so that all wait for it; or a link is slow, or all ranks "
      "are "
      "(docs/stragglers.md). It is told when it is found, of a rank whenever its steps have doubled since, "
      "and when "
      "it is over: the last event of a rank, a peer and a first step counts.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::optional<int> rank = {};
  std::string host = {};
  std::optional<int> peer = {};
  std::string of = {};
  std::string phase = {};
  double factor = no_number;
  std::uint64_t since_step = 0;
  double lost_seconds = no_number;
  std::optional<std::uint64_t> until_step = {};
  std::string answer = {};
  std::string reason = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Steps made that the numbers take in");
    visit("rank", self.rank, "",
          "The slow rank; of a link the rank at one end; not where all ranks are slow");
    visit("host", self.host, "", "Its host; empty where all ranks are slow");
    visit("peer", self.peer, "", "Rank at the other end of a slow link; of a link only");
    visit(
        "of", self.of, "",
        "rank: it computes slowly; input: it waits for its data; link: two ranks on different hosts wait for "
        "each other; all: all ranks alike compute more slowly");
    visit("phase", self.phase, "",
          "Where most of the time of a rank is lost: forward, backward, update, other (sums of gradients, "
          "norms), input or host");
    visit("factor", self.factor, "",
          "Its own time by that of the ranks that do the same, since the first step; of a link the time of a "
          "step, of all the own times, by what was usual");
    visit("since_step", self.since_step, "", "First slow step, as estimated");
    visit("lost_seconds", self.lost_seconds, "s", "For which it has held up the others since then");
    visit("until_step", self.until_step, "",
          "Step at which it was as fast as the others again; where it was");
    visit("answer", self.answer, "",
          "told: nothing else is done; asked to leave: it has cost what a start without its host costs, and "
          "the "
          "launcher is asked to leave the host; would ask to leave: the same, but health.preset is watch; "
          "nobody "
          "to ask: no launcher has the run");
    visit("reason", self.reason, "", "Sentence");
  }
};

struct HealthEvent {
  static constexpr std::string_view kind = "health";
  static constexpr std::string_view meaning =
      "A rule of docs/health.md found something on a host of the run: once for each episode.";
  std::int64_t time_us = 0;
  std::string host = {};
  std::string rule = {};
  std::string part = {};
  std::string reading = {};
  double value = no_number;
  std::optional<double> threshold = {};
  std::string action = {};
  std::string answer = {};
  std::string reason = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host, "", "The host, as it calls itself");
    visit("rule", self.rule, "", "Name of the rule");
    visit("part", self.part, "", "Which GPU, interface or port; empty: the host");
    visit("reading", self.reading, "", "Source and name of what the rule looks at");
    visit("value", self.value, "", "What the rule compares with its threshold; the number of an Xid");
    visit("threshold", self.threshold, "", "From which value on the rule finds something; not of an Xid");
    visit("action", self.action, "", "What the finding asks for: ignore, watch, drain, leave_out or reboot");
    visit("answer", self.answer, "",
          "told: it asks for no more; asked to leave: the launcher is asked to leave the host; would ask to "
          "leave: health.preset is watch; nobody to ask: no launcher has the run");
    visit("reason", self.reason, "", "Sentence");
  }
};

struct DrainEvent {
  static constexpr std::string_view kind = "drain";
  static constexpr std::string_view meaning = "A host is left after this step.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::string host = {};
  std::optional<std::string> reason = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Steps made");
    visit("host", self.host, "", "Host that the run leaves");
    visit("reason", self.reason, "", "Why: its health, or a slow rank; where the run itself asked");
  }
};

struct ExcludeEvent {
  static constexpr std::string_view kind = "exclude";
  static constexpr std::string_view meaning = "A host, or a place of one, is not used any more.";
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
  std::string host = {};
  std::optional<std::string> place = {};
  std::string reason = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step, "", "Steps made");
    visit("host", self.host, "", "Name of the host");
    visit("place", self.place, "", "GPU by its uuid, or local rank on the CPU; where it is about one place");
    visit("reason", self.reason, "", "Sentence");
  }
};

struct GapEvent {
  static constexpr std::string_view kind = "gap";
  static constexpr std::string_view meaning = "Lines are missing here.";
  std::int64_t time_us = 0;
  std::optional<std::uint64_t> lines = {};
  std::optional<std::uint64_t> first_step = {}, last_step = {};
  std::optional<std::string> reason = {};

  // Returns whether it is of steps whose lines died with their writer: the next one writes it, before its `start`.
  bool is_of_steps() const { return last_step.has_value(); }

  static void visit_fields(auto& self, auto&& visit) {
    visit("lines", self.lines, "", "Lines that could not be written and are lost");
    visit("first_step", self.first_step, "", "First step whose line is missing");
    visit("last_step", self.last_step, "", "Last step whose line is missing");
    visit("reason", self.reason, "", "Sentence; of missing steps");
  }
};

struct FinishEvent {
  static constexpr std::string_view kind = "finish";
  static constexpr std::string_view meaning = "A start ended by itself.";
  static constexpr const char* failed = "failed";  // a value of `state`, as in status.json
  std::int64_t time_us = 0;
  std::string state = {};
  std::uint64_t step = 0;
  int exit_code = 0;
  std::uint64_t gradient_bytes_sent = 0, gradient_bytes_sent_to_other_hosts = 0, gradient_buckets_sent = 0;
  std::uint64_t gradient_bytes_sent_during_backward = 0, gradient_buckets_sent_during_backward = 0;
  double gradient_exposed_ms = no_number;
  std::uint64_t parameter_bytes_sent_to_other_hosts = 0;
  std::uint64_t parameter_buckets_gathered = 0, parameter_buckets_awaited = 0;
  double parameter_gather_ms = no_number, parameter_exposed_ms = no_number;
  std::uint64_t control_bytes_sent = 0, control_bytes_received = 0;
  std::uint64_t data_bytes_sent = 0, data_bytes_received = 0;
  std::uint64_t pipeline_bytes_sent = 0, pipeline_bytes_received = 0;
  std::uint64_t tensor_bytes_sent = 0, tensor_bytes_received = 0;
  std::string reason = {};
  std::optional<std::vector<SourceUse>> sources = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("state", self.state, "", "finished, saved or failed");
    visit("step", self.step, "", "Steps made");
    visit("exit_code", self.exit_code, "", "Of the program");
    visit("gradient_bytes_sent", self.gradient_bytes_sent, "bytes",
          "Gradients, and sums of them, that rank 0 sent");
    visit("gradient_bytes_sent_to_other_hosts", self.gradient_bytes_sent_to_other_hosts, "bytes",
          "Of these, to ranks of other hosts");
    visit("gradient_buckets_sent", self.gradient_buckets_sent, "", "In so many buckets");
    visit("gradient_bytes_sent_during_backward", self.gradient_bytes_sent_during_backward, "bytes",
          "Of these, before its backward ended");
    visit("gradient_buckets_sent_during_backward", self.gradient_buckets_sent_during_backward, "",
          "Of these, before its backward ended");
    visit("gradient_exposed_ms", self.gradient_exposed_ms, "ms",
          "Time in reductions after its own backward had ended, all steps");
    visit("parameter_bytes_sent_to_other_hosts", self.parameter_bytes_sent_to_other_hosts, "bytes",
          "Updated parameters that rank 0 sent to ranks of other hosts");
    visit("parameter_buckets_gathered", self.parameter_buckets_gathered, "",
          "Buckets of parameters that came from their owners");
    visit("parameter_buckets_awaited", self.parameter_buckets_awaited, "",
          "Of these, those that the forward had to wait for");
    visit("parameter_gather_ms", self.parameter_gather_ms, "ms", "Time of the gathers, all steps");
    visit("parameter_exposed_ms", self.parameter_exposed_ms, "ms",
          "Part of it for which the host waited and the device had nothing to do");
    visit("control_bytes_sent", self.control_bytes_sent, "bytes",
          "Words of control between ranks, sent by rank 0");
    visit("control_bytes_received", self.control_bytes_received, "bytes", "The same, received");
    visit("data_bytes_sent", self.data_bytes_sent, "bytes", "Between data-parallel ranks");
    visit("data_bytes_received", self.data_bytes_received, "bytes", "Between data-parallel ranks");
    visit("pipeline_bytes_sent", self.pipeline_bytes_sent, "bytes", "Between stages of the pipeline");
    visit("pipeline_bytes_received", self.pipeline_bytes_received, "bytes", "Between stages of the pipeline");
    visit("tensor_bytes_sent", self.tensor_bytes_sent, "bytes", "Between tensor-parallel ranks");
    visit("tensor_bytes_received", self.tensor_bytes_received, "bytes", "Between tensor-parallel ranks");
    visit("reason", self.reason, "", "Sentence: how it ended");
    visit(
        "sources", self.sources, "",
        "What the steps have used of each source: path, samples, tokens and epochs; where it can be counted");
  }
};

// All kinds, in the order of docs/events.md.
using EventKinds =
    std::tuple<StartEvent, StepEvent, EvaluationEvent, KernelShadowEvent, KernelLeftOutEvent, SnapshotEvent,
               CheckpointEvent, UploadEvent, IntervalEvent, FailureCostEvent, FaultEvent, RecoveryEvent,
               VerdictEvent, StragglerEvent, HealthEvent, DrainEvent, ExcludeEvent, GapEvent, FinishEvent>;

// EventRecord is what fields that are lists may hold beside counts.
template <typename T>
concept EventRecord = std::same_as<T, EventSource> || std::same_as<T, SourceUse>;

template <typename E>
concept Event = requires(const E& event) {
  E::kind;
  event.time_us;
};

// Returns the name of a field in the log: field_name(&StepEvent::loss) is "loss".
template <Event E, typename T>
std::string_view field_name(T E::*member) {
  const E event{};
  std::string_view found;
  E::visit_fields(event, [&](std::string_view name, const auto& field, auto&&...) {
    if (static_cast<const void*>(&field) == static_cast<const void*>(&(event.*member))) found = name;
  });
  return found;
}

}  // namespace holdfast::run
