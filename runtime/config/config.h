// The resolved configuration of a run: plain data with defaults. Every field has one entry in the option
// registry (options.cc), from which the loader, --help, the reference, the schema and the resume diff are
// generated.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/op.h"
#include "runtime/core/tensor.h"

namespace holdfast::config {

struct SourceConfig {
  std::string path;             // a file; relative to the directory the program was started in
  std::string format = "text";  // "text" (bytes, or with a tokenizer), "jsonl", "llmc", "megatron", "llmq"
  double weight = 0.0;          // share of the samples; 0 everywhere = in proportion to size
  std::string tokenizer = {};   // a file; text and jsonl: what makes tokens of them; empty = bytes
  std::string pattern = {};     // how a rank file of tiktoken cuts text into pieces
  std::string column = "text";  // jsonl: field that holds the text
  bool append_eos = false;      // the tokenizer's token for that ends every document
};

struct RunConfig {
  std::string directory;
  std::uint64_t seed = 1;
  std::string resume = "auto";     // "auto", "never", "must", or the path of a run directory or checkpoint
  std::int64_t stop_after_ms = 0;  // 0 = never
  std::string initialize_from;     // weights only, from a run directory or checkpoint; empty = random
};

struct ModelConfig {
  std::string preset;           // empty = every shape below is given
  std::string style = "llama";  // a family of model_family.h
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;   // 0 = heads
  std::int64_t head_size = 0;  // 0 = width / heads, which is also written so
  std::int64_t width = 0;
  std::int64_t feed_forward = 0;  // 0 = 4 x width (gpt2), 8/3 x width rounded up to a multiple of 64 (others)
  std::int64_t vocabulary = 0;    // 0 = follows from the preset or the format of the data
  std::string head = "auto";      // "tied", "untied", "auto" = tied for gpt2, untied for the others
  std::int64_t positions = 0;     // gpt2: rows of the learned position table; 0 = training.sequence_length
  double rope_theta = 10000.0;
  std::string rope_scaling = "none";  // "none", "linear", "llama3"; the rest is for these (model/spec.h)
  double rope_factor = 1.0;           // by which frequencies are divided
  double rope_low_frequency_factor = 1.0, rope_high_frequency_factor = 4.0;  // llama3 only
  std::int64_t rope_original_positions = 0;                                  // llama3 only
  std::int64_t attention_window = 0;  // last tokens that a token sees, itself among them; 0 = all
  std::int64_t attention_sinks = 0;   // first tokens of its document that it sees besides
  double norm_epsilon = 1e-5;
  std::vector<std::string> freeze = {};  // entries of freeze_list.h; empty = everything is trained
};

// LoraConfig asks for adapters of linear layers, which are then all that is trained (lora_targets.h).
struct LoraConfig {
  std::int64_t rank = 0;                       // 0 = no adapters
  double alpha = 0.0;                          // an adapter counts alpha / rank times; 0 = as the rank: once
  std::vector<std::string> targets = {"all"};  // as parse_lora_targets() takes them
  bool is_on() const { return rank > 0; }
  double scale() const { return alpha > 0.0 && is_on() ? alpha / static_cast<double>(rank) : 1.0; }
};

struct DataConfig {
  std::vector<SourceConfig> sources;
  bool document_mask = false;        // attention is limited to one document
  std::int64_t document_begin = -1;  // token that begins every document; -1 = none
  std::int64_t document_end = -1;    // token that ends every document; -1 = none
  double validation_fraction = 0.0;  // of the samples, held back from training
  std::int64_t validation_seed = 0;  // decides which samples are held back
  std::int64_t prefetch_microbatches = 4;
  std::string cache;    // directory of the tokens of text sources; empty = token-cache beside run.directory
  bool ledger = false;  // write the id of every sample used to RUN/ledger-<rank>.jsonl
};

struct TrainingConfig {
  std::int64_t steps = 0;
  std::int64_t sequence_length = 256;
  std::int64_t microbatch_size = 4;
  std::int64_t microbatches_per_lane = 1;
  std::string precision = "fp32";  // "fp32", "bf16"
  std::string recompute = "none";  // "none", "selective", "full"
  std::int64_t head_rows = 0;      // rows of a chunk of the LM head; 0 = resolve_config() decides by device
  bool cuda_graphs = false;
};

struct ParallelConfig {
  std::int64_t lanes = 0;                  // 0 = `data` if set, else 8
  std::int64_t lane_block = 1;             // lanes of a block, which divides `lanes`
  std::int64_t tensor_lanes = 0;           // 0 = `tensor` if set, else 1
  std::int64_t data = 0;                   // 0 = ranks / (tensor x pipeline)
  std::int64_t tensor = 0;                 // 0 = 1
  std::int64_t pipeline = 0;               // 0 = 1
  std::int64_t pipeline_chunks = 1;        // number of chunks in a stage
  std::string pipeline_schedule = "1f1b";  // "1f1b", "gpipe", "interleaved", "zero_bubble"
  std::int64_t timeout_ms = 300000;        // longest wait for a peer
  std::string exchange = "auto";           // transport of GPU memory: "auto", "nccl", "host"
  std::int64_t ranks_per_gpu = 0;          // 0 = the largest number at the first start
};

struct ElasticConfig {
  bool in_place = true;  // whether the ranks that are left go on after a loss; false: another start does
  std::int64_t min_data_parallel = 1;  // minimum number of replicas that a run may shrink to
  std::int64_t spares = 0;             // ranks that wait for a coordinate
  std::int64_t recovery_timeout_ms = 30'000;
  std::int64_t memory_timeout_ms = 60'000;  // longest wait for memory that an ended process still holds
  std::int64_t input_timeout_ms = 600'000;  // longest wait for inputs that the run has read before
  std::string grow = "auto";  // restore the wanted number of replicas with new processes: "auto", "off"
  std::int64_t settle_after_ms = 1'800'000;           // then what was used again is treated like the others
  std::int64_t grow_after_ms = 10'000;                // time since the last fault or attempt
  std::string notice_file = {}, notice_command = {};  // notice that a host is about to go away; empty: none
  std::int64_t notice_every_ms = 5'000;
};

struct WatchdogConfig {
  bool guard = true;
  double factor = 3.0;  // a phase's deadline / its median
  std::int64_t floor_ms = 5'000;
  std::int64_t ceiling_ms = 600'000;  // maximum deadline; also used while there is no median
};

struct NetworkConfig {
  std::string interface;  // network interface between the hosts of a run; empty = all
};

// StateKind is one of the arrays that an optimizer keeps of each trained tensor beside its weight, and saves.
struct StateKind {
  const char* name = "";  // as checkpoints have it
  core::DType dtype = core::DType::fp32;
};

struct OptimizerConfig {
  std::string name = "adamw";  // the rule of updates: "adamw", "lion"
  double learning_rate = 6e-4;
  std::string schedule = "cosine";  // "constant", "linear", "cosine", "wsd", "inverse_sqrt"
  std::int64_t warmup_steps = 0;
  double final_fraction = 0.1;  // learning rate at the end / peak
  double decay_fraction = 0.2;  // wsd: share of the steps that decays
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double gradient_clip = 1.0;    // largest global norm; 0 = off
  std::string moments = "fp32";  // "fp32", "bf16"
  bool shard_gradients = false;
  std::vector<std::string> weight_decay_groups = {};  // "PATTERN=DECAY" (decay_groups.h)
  double ema = 0.0;  // decay of the exponential moving average of the weights; 0 = there is none

  core::DType moment_type() const { return moments == "bf16" ? core::DType::bf16 : core::DType::fp32; }
  // Returns how many moments of a weight the rule keeps.
  int moment_count() const { return name == "lion" ? 1 : 2; }
  // Returns what is kept of a trained tensor, in the order of the optimizer's state.
  std::vector<StateKind> state_kinds() const {
    std::vector<StateKind> kinds = {{"moment1", moment_type()}};
    if (moment_count() > 1) kinds.push_back({"moment2", moment_type()});
    if (ema > 0.0) kinds.push_back({"ema", core::DType::fp32});
    return kinds;
  }
  // Returns the bytes of all of that for one element.
  std::uint64_t kept_bytes() const {
    std::uint64_t bytes = 0;
    for (const StateKind& kind : state_kinds()) bytes += core::bytes_of(kind.dtype);
    return bytes;
  }
};

// Decides what happens to a step whose numbers are suspicious (docs/verdict.md).
struct VerdictConfig {
  static constexpr std::int64_t interval_auto = -1;  // as often as costs 0.15 % of the time

  std::string preset = "guard";     // "off", "watch", "guard"
  std::int64_t window_steps = 128;  // committed steps whose numbers a step is judged by
  double loss_score = 0.0;          // spike of the loss, in robust deviations; 0 = the preset's
  double norm_score = 0.0;          // spike of the gradient norm
  std::int64_t drift_steps = 32;    // steps of a median of the loss; 0 = drift is not noticed
  double drift_rise = 0.5;          // rise of that median over the least of the window, in nats
  double explosion_factor = 100.0;  // a loss of so many times the usual one is not applied; 0 = it is
  // Confirmed spikes: "tell", "clip", "skip", "rollback", "save_and_stop", "stop".
  std::string on_spike = "tell";
  std::string on_nonfinite = "rollback";   // when no skip is left: "rollback", "save_and_stop", "stop"
  std::string on_drift = "tell";           // "tell", "rollback", "save_and_stop", "stop"
  std::int64_t skips_max = 3;              // steps skipped within the window
  std::int64_t rollback_steps = 50;        // a roll-back goes to the last but one multiple of this
  std::int64_t rollbacks_max = 3;          // within ten times as many steps
  double rate_after_rollback = 1.0;        // factor of the learning rate after each roll-back
  std::string on_wrong_rank = "rollback";  // lasting wrong numbers: "rollback", "continue"
  std::int64_t audit_every_steps = interval_auto;  // interval of lane audits; 0 = none
  std::int64_t findings_window_ms = 86'400'000;    // a second finding within it evicts; 0 = never

  // Returns whether the config asks for roll-backs, for which states are then kept ready.
  bool asks_for_rollbacks() const {
    return preset == "guard" && (on_spike == "rollback" || on_drift == "rollback");
  }
};

// Sick machines (docs/stragglers.md).
struct HealthConfig {
  std::string preset = "watch";  // "off", "watch", "guard"
  std::int64_t every_ms = 10'000;
  std::string host_root = {};           // before /proc and /sys; empty: none
  std::string dcgm_exporter = {};       // ADDRESS:PORT of the one of the host; empty: none is asked
  std::vector<std::string> rules = {};  // changes: "NAME=ACTION" or "NAME=ACTION:THRESHOLD"
};

struct CheckpointConfig {
  static constexpr std::int64_t interval_auto = -1;  // derived from the cost of a save

  std::int64_t every_steps = interval_auto;  // 0 = only at the end, on request, and by the clock
  std::int64_t every_ms = 0;                 // longest time between two saves; 0 = no limit
  std::int64_t keep = 3;
  std::int64_t keep_every_steps = 0;  // 0 = none besides the newest
  std::string upload_command;         // uploads a whole checkpoint; empty = none
  std::string upload_shard_command;   // uploads one file of a checkpoint; empty = none
  std::int64_t upload_timeout_ms = 600'000;
  std::string download_command;  // empty = none
  std::int64_t download_timeout_ms = 3'600'000;
  std::string compression = "automatic";         // "automatic", "none", "always"
  bool delta = true;                             // frozen tensors are stored once
  std::int64_t ram_every_steps = interval_auto;  // 0 = no snapshots that outlive the process
  std::string replicas = "auto";  // copies of RAM snapshots in a buddy's memory: "auto", "on", "off"
  std::int64_t mtbf_ms = 0;  // mean time between failures of the run; 0 = as HazardConfig and history have it
  std::int64_t lose_at_most_ms = 0;  // most training that may be lost; 0 = no limit
  std::string io = "auto";           // "auto", "io_uring", "threads": runtime/os/io_queue.h
};

// HazardConfig says how often devices fail, before the run has shown it (runtime/hazard/failure_rate.h).
struct HazardConfig {
  double mtbf_hours = 0.0;  // of one device; 0 = the prior of its kind
};

struct CostConfig {
  double per_rank_hour = 0.0;  // price of a rank for an hour; 0 = no money is shown
  std::string currency = "$";  // before an amount
};

struct EvaluationConfig {
  std::int64_t every_steps = 0;  // 0 = never
  std::vector<SourceConfig> sources;
  std::int64_t batches = 8;  // microbatches of the fixed held-out set
};

struct ShapeConditionConfig {
  std::string field, value;
};

// KernelRuleConfig chooses an implementation for some calls of an op (kernels/call_filter.h).
struct KernelRuleConfig {
  std::string op;
  std::string layers;                       // empty = all calls
  std::vector<ShapeConditionConfig> where;  // in the order of the file
  std::string use;
  std::int64_t every_steps = 0;  // of a shadow
};

// Choice of the implementation that runs each op; the names are those of kernels/registry.h.
struct KernelsConfig {
  KernelsConfig() { implementations.fill("auto"); }

  std::string isa = "auto";                           // limit for kernels: "portable", "avx2", "avx512", ...
  std::array<std::string, op_count> implementations;  // by OpId; "auto" = the best of the registry
  std::string plan;                                   // file (kernels/product_plan.h); empty = none
  std::vector<std::string> plugins;                   // libraries (kernels/plugin.h); of a stored config none
  std::string on_failure = "retry";       // a kernel of a plug-in crashes or hangs: "retry", "fall_back"
  std::vector<KernelRuleConfig> rules;    // choices that come before those of implementations
  std::vector<KernelRuleConfig> shadows;  // implementations that are compared, and decide no bit
};

struct TraceConfig {
  std::int64_t first_step = 3;
  std::int64_t steps = 0;  // 0 = off
};

struct LogConfig {
  std::int64_t every_steps = CheckpointConfig::interval_auto;  // console line interval; auto: by the clock
  std::int64_t rotate_bytes = std::int64_t{256} << 20;         // part size of events.jsonl; 0 = no limit
};

struct MetricsConfig {
  std::int64_t every_ms = 10'000;  // between two writes of metrics.prom; 0 = none
  bool tensorboard = false;
  std::string listen;  // "ADDRESS:PORT" where a scraper finds the metrics; empty = nowhere
};

struct NotifyConfig {
  std::string command;  // run for each event that people should know of; empty = none
  std::int64_t timeout_ms = 30'000;
  std::int64_t at_most = 30;      // commands in an hour, beside heartbeats
  std::int64_t heartbeat_ms = 0;  // 0 = none
};

struct Config {
  std::string device = "auto";  // "auto", "cpu", "cuda"
  std::int64_t threads = 0;     // per rank; 0 = processors / ranks on this host
  RunConfig run;
  ModelConfig model;
  LoraConfig lora;
  DataConfig data;
  TrainingConfig training;
  ParallelConfig parallel;
  ElasticConfig elastic;
  WatchdogConfig watchdog;
  NetworkConfig network;
  OptimizerConfig optimizer;
  VerdictConfig verdict;
  HealthConfig health;
  CheckpointConfig checkpoint;
  HazardConfig hazard;
  CostConfig cost;
  EvaluationConfig evaluation;
  KernelsConfig kernels;
  LogConfig log;
  MetricsConfig metrics;
  NotifyConfig notify;
  TraceConfig trace;
};

}  // namespace holdfast::config
