#include "runtime/run/event_schema.h"

#include <fmt/format.h>

#include <array>

namespace holdfast::inline run {
namespace {

constexpr std::array start_fields = {
    EventField{"run", "text", "", "Id of the run"},
    EventField{"parameters", "integer", "", "Parameters of the model"},
    EventField{"ranks", "integer", "", "All ranks of this start, with spares"},
    EventField{"hosts", "object", "ranks",
               "Ranks by name of host; where the ranks can go on without one of them", false},
    EventField{"steps", "integer", "", "training.steps"},
    EventField{"flops_per_token", "number", "FLOP",
               "Arithmetic of the model's products, forward and backward"},
    EventField{"resumed_from_step", "integer", "", "Step that this start goes on from; null: none"},
    EventField{"resumed_from", "text", "", "ram or disk; where it resumes", false},
    EventField{"generation", "integer", "", "Future of the run that this is (docs/checkpoints.md)"},
    EventField{"join_ms", "number", "ms", "Time until all ranks had agreed on config, data and start"},
    EventField{"worker_ms", "number", "ms", "Time for memory and kernels"},
    EventField{"state_ms", "number", "ms", "Time to read or make the state"},
    EventField{"gemm_peak_ms", "number", "ms", "Time to measure the rate of one large matrix product"},
    EventField{"gemm_peak_flops", "number", "FLOP/s", "That rate, of all ranks together"},
    EventField{"gemm_peak_from", "text", "", "measured, or record: an earlier start of this run measured it"},
    EventField{"device", "text", "", "What computes, with its kernels"},
    EventField{"exchange", "text", "", "What moves device memory between ranks, and why"},
    EventField{"device_plan", "text", "", "What was measured on the device to choose by; on a GPU", false},
    EventField{"kernels", "object", "", "By op: name of the implementation that runs it, and why"},
};
constexpr std::array step_fields = {
    EventField{"step", "integer", "",
               "Steps that the run has made with this one. A step that is computed again "
               "appears again, with the same numbers: the last one counts"},
    EventField{"loss", "number", "", "Mean loss of the step's targets"},
    EventField{"grad_norm", "number", "", "Norm of all gradients, before clipping"},
    EventField{"learning_rate", "number", "", "Learning rate of the update"},
    EventField{"tokens", "integer", "", "Tokens that the run has seen with this step"},
    EventField{"step_duration_ms", "number", "ms", "Time of the step"},
    EventField{"tokens_per_sec", "number", "tokens/s", "Tokens of the step by its time"},
    EventField{"data_digest", "text", "", "Digest of the ids of all samples used so far, in order"},
    EventField{
        "mfu", "number", "",
        "Model FLOP utilization: arithmetic of the model by that of large products in the same time; where "
        "the latter is known",
        false},
    EventField{
        "recomputed", "boolean", "",
        "true: an earlier line of the log has this step, too, which is computed again after a resume or a "
        "recovery; absent otherwise",
        false},
    EventField{"restored_us", "integer", "us",
               "Wall clock when another rank wrote this line for one that died; "
               "only then",
               false},
};
constexpr std::array evaluation_fields = {
    EventField{"step", "integer", "", "Steps made"},
    EventField{"loss", "number", "", "Mean loss of the held-out set"},
    EventField{"duration_ms", "number", "ms", "Time that training waited"},
};
constexpr std::array checkpoint_fields = {
    EventField{"step", "integer", "", "Step of the state"},
    EventField{"directory", "text", "", "Where it is"},
    EventField{"bytes", "integer", "bytes", "Length of all shards"},
    EventField{"duration_ms", "number", "ms", "From its begin until all ranks knew that it is whole"},
    EventField{"stall_ms", "number", "ms", "Part of it for which training waited"},
    EventField{"copy_ms", "number", "ms", "Copy of the state beside the training, of rank 0 as the next two"},
    EventField{"drain_ms", "number", "ms", "Writing its shard and making it durable"},
    EventField{"publish_ms", "number", "ms", "Making it visible, and removing what is too old"},
    EventField{"processor_ms", "number", "ms", "Processor time of the thread that wrote the shard"},
    EventField{"durable_ms", "number", "ms", "From its begin until it was visible"},
};
constexpr std::array snapshot_fields = {
    EventField{"step", "integer", "", "Step of the state"},
    EventField{"bytes_sent", "integer", "bytes", "Sent to its buddy by rank 0"},
    EventField{"duration_ms", "number", "ms", "From its begin until all ranks knew that it is confirmed"},
};
constexpr std::array upload_fields = {
    EventField{"step", "integer", "", "Step of the checkpoint"},
    EventField{"attempts", "integer", "", "How often the command was run"},
    EventField{"duration_ms", "number", "ms", "All attempts together"},
};
constexpr std::array interval_fields = {
    EventField{"step", "integer", "", "Steps made"},
    EventField{"tier", "text", "", "ram or disk"},
    EventField{"every_steps", "integer", "steps", "New interval"},
    EventField{"cost_ms", "number", "ms", "What one save costs the steps"},
    EventField{"step_ms", "number", "ms", "Time of a step"},
    EventField{"durable_ms", "number", "ms", "How long a save takes until it counts; of tier disk", false},
    EventField{"mtbf_ms", "number", "ms", "Mean time between failures that was reckoned with; of tier disk",
               false},
};
constexpr std::array failure_cost_fields = {
    EventField{"step", "integer", "", "Steps made"},
    EventField{"process_ms", "number", "ms", "Work that a lost process costs at most; absent: all of it",
               false},
    EventField{"host_ms", "number", "ms", "Work that a lost host costs at most; absent: all of it", false},
    EventField{"job_ms", "number", "ms", "Work that a lost job costs at most; absent: all of it", false},
};
constexpr std::array fault_fields = {
    EventField{"step", "integer", "", "Steps made when it was noticed"},
    EventField{"what", "text", "",
               "rank, spare, growth, save, replica or upload; of the launcher's events there is "
               "none",
               false},
    EventField{"level", "integer", "", "2: the launcher saw a start end; only in its events", false},
    EventField{"lost", "text", "", "Which ranks, on which hosts; of rank, spare and growth", false},
    EventField{"noticed_us", "integer", "us", "Wall clock when the first rank noticed; of rank and growth",
               false},
    EventField{"reason", "text", "", "Sentence"},
    EventField{"attempts", "integer", "", "How often the command was run; of upload", false},
    EventField{"duration_ms", "number", "ms", "All attempts together; of upload", false},
};
constexpr std::array recovery_fields = {
    EventField{"reason", "text", "", "loss, growth or drain; a start of the launcher after a fault has none",
               false},
    EventField{"level", "integer", "", "1: in place; 2: by another start of the launcher"},
    EventField{"ranks_before", "integer", "", "Ranks there were"},
    EventField{"ranks_after", "integer", "", "Ranks there are"},
    EventField{"hosts", "object", "ranks", "Ranks by name of host; level 1", false},
    EventField{"seats_before", "integer", "", "Active ranks there were; level 1", false},
    EventField{"seats_after", "integer", "", "Active ranks there are; level 1", false},
    EventField{"spares", "integer", "", "Ranks that wait to replace another; level 1", false},
    EventField{"lost_steps", "integer", "steps", "Steps that are computed again"},
    EventField{"resumed_from_step", "integer", "", "Step that the run goes on from; level 1", false},
    EventField{"resumed_from", "text", "", "ram, disk or start; level 1", false},
    EventField{"faults", "integer", "", "Recoveries that were begun for it; level 1", false},
    EventField{"duration_ms", "number", "ms",
               "From the notice to the end of the first step after it; level 2: to "
               "the first step of the new start"},
    EventField{"shrink_ms", "number", "ms", "Coming together; level 1", false},
    EventField{"plan_ms", "number", "ms", "Agreeing on ranks, directory and step; level 1", false},
    EventField{"load_ms", "number", "ms", "Memory, kernels and state; level 1", false},
    EventField{"replay_ms", "number", "ms", "The steps until the first new one was made; level 1", false},
};
constexpr std::array drain_fields = {
    EventField{"step", "integer", "", "Steps made"},
    EventField{"host", "text", "", "Host that the run leaves"},
};
constexpr std::array gap_fields = {
    EventField{"lines", "integer", "", "Lines that could not be written and are lost", false},
    EventField{"first_step", "integer", "", "First step whose line is missing", false},
    EventField{"last_step", "integer", "", "Last step whose line is missing", false},
    EventField{"reason", "text", "", "Sentence; of missing steps", false},
};
constexpr std::array finish_fields = {
    EventField{"state", "text", "", "finished, saved or failed"},
    EventField{"step", "integer", "", "Steps made"},
    EventField{"exit_code", "integer", "", "Of the program"},
    EventField{"gradient_bytes_sent", "integer", "bytes", "Gradients that rank 0 sent to their owners"},
    EventField{"gradient_buckets_sent", "integer", "", "In so many buckets"},
    EventField{"gradient_bytes_sent_during_backward", "integer", "bytes",
               "Of these, before its backward ended"},
    EventField{"gradient_buckets_sent_during_backward", "integer", "", "Of these, before its backward ended"},
    EventField{"gradient_exposed_ms", "number", "ms",
               "Time in reductions after its own backward had ended, all steps"},
    EventField{"parameter_buckets_gathered", "integer", "",
               "Buckets of parameters that came from their owners"},
    EventField{"parameter_buckets_awaited", "integer", "",
               "Of these, those that the forward had to wait for"},
    EventField{"parameter_gather_ms", "number", "ms", "Time of the gathers, all steps"},
    EventField{"parameter_exposed_ms", "number", "ms",
               "Part of it for which the host waited and the device had nothing to do"},
    EventField{"control_bytes_sent", "integer", "bytes", "Words of control between ranks, sent by rank 0"},
    EventField{"control_bytes_received", "integer", "bytes", "The same, received"},
    EventField{"data_bytes_sent", "integer", "bytes", "Between data-parallel ranks"},
    EventField{"data_bytes_received", "integer", "bytes", "Between data-parallel ranks"},
    EventField{"pipeline_bytes_sent", "integer", "bytes", "Between stages of the pipeline"},
    EventField{"pipeline_bytes_received", "integer", "bytes", "Between stages of the pipeline"},
    EventField{"tensor_bytes_sent", "integer", "bytes", "Between tensor-parallel ranks"},
    EventField{"tensor_bytes_received", "integer", "bytes", "Between tensor-parallel ranks"},
    EventField{"reason", "text", "", "Sentence: how it ended"},
};

constexpr std::array kinds = {
    EventKind{"start", "A start of the run has its state and begins to train.", start_fields},
    EventKind{"step", "A step was made.", step_fields},
    EventKind{"evaluation", "The held-out loss was computed.", evaluation_fields},
    EventKind{
        "snapshot",
        "A RAM snapshot is confirmed: every rank has sealed its part, and its buddy the replica of it. Not "
        "where no replicas are kept.",
        snapshot_fields},
    EventKind{"checkpoint", "A checkpoint is whole on the disk.", checkpoint_fields},
    EventKind{"upload", "A checkpoint was uploaded.", upload_fields},
    EventKind{"interval", "An interval that is `auto` was chosen anew.", interval_fields},
    EventKind{"failure_cost", "What a failure costs at most from now on.", failure_cost_fields},
    EventKind{"fault", "Something failed. The run goes on, or a later event says how it ended.",
              fault_fields},
    EventKind{"recovery", "The run goes on after a fault, a growth or a drain: its first step was made.",
              recovery_fields},
    EventKind{"drain", "A host is left after this step.", drain_fields},
    EventKind{"gap", "Lines are missing here.", gap_fields},
    EventKind{"finish", "A start ended by itself.", finish_fields},
};

}  // namespace

std::span<const EventKind> event_schema() {
  return kinds;
}

std::string event_reference() {
  std::string text =
      "# Events\n"
      "\n"
      "Generated by `holdfast config events` from `runtime/run/event_schema.cc`.\n"
      "\n"
      "`events.jsonl` in the run directory has one JSON object a line: the source of truth from which "
      "console, report and\n"
      "history are made. Rank 0 writes it, and the launcher what it did between two starts. A reader takes "
      "whole lines, the\n"
      "last of a step that appears twice, and ignores kinds and fields that it does not know. With "
      "`log.rotate_bytes` the older\n"
      "parts are `events-0001.jsonl` and so on. Every event has `event`, its kind, and `time_us`, the wall "
      "clock in microseconds\n"
      "since 1970. A number that is not finite is `null`.\n"
      "\n"
      "    import pandas\n"
      "    log = pandas.read_json(\"runs/mine/events.jsonl\", lines=True)\n"
      "    steps = log[log.event == \"step\"].drop_duplicates(\"step\", keep=\"last\")\n";
  for (const EventKind& kind : event_schema()) {
    text += fmt::format("\n## `{}`\n\n{}\n\n| field | type | unit | |\n|---|---|---|---|\n", kind.name,
                        kind.meaning);
    for (const EventField& field : kind.fields) {
      text += fmt::format("| `{}`{} | {} | {} | {} |\n", field.name, field.always ? "" : " (not always)",
                          field.type, field.unit, field.meaning);
    }
  }
  return text;
}

}  // namespace holdfast::inline run
