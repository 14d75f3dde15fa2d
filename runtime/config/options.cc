// The registry: one entry per key, in the order of the reference.
#include <algorithm>
#include <iterator>

#include "runtime/config/model_family.h"
#include "runtime/config/option_builders.h"
#include "runtime/config/presets.h"

namespace holdfast::config {
namespace {

using namespace builders;

constexpr ResumeEffect kSafe = ResumeEffect::safe;
constexpr ResumeEffect kNumeric = ResumeEffect::numeric;
constexpr ResumeEffect kForbidden = ResumeEffect::forbidden;

constexpr double kMany = 1e12;     // steps and intervals: no limit that a run meets
constexpr double kWide = 1 << 20;  // a side of a matrix
constexpr double kInt64Max = 9223372036854775807.0;
constexpr double kDay_ms = 86'400'000;

std::vector<Option> general_options() {
  return {
      choice("device", HF_FIELD(device), {"auto", "cpu", "cuda"}, kForbidden,
             "Where the model computes; auto takes the best that the machine and this build offer"),
      integer("threads", HF_FIELD(threads), "threads per rank", {0, 4096}, kSafe,
              "Threads that compute; 0 = processors / ranks on this host. Never changes a bit"),
  };
}

std::vector<Option> run_options() {
  return {
      required(text("run.directory", HF_FIELD(run.directory), kSafe,
                    "Where the run keeps its events, status, report and checkpoints; one writer at a time. "
                    "On a file "
                    "system that the hosts share, or on a disk of each"),
               "\"runs/first\""),
      integer<std::uint64_t>("run.seed", HF_FIELD(run.seed), "", {0, kInt64Max}, kForbidden,
                             "Decides the initial weights and the order of the data"),
      text("run.resume", HF_FIELD(run.resume), kSafe,
           "auto = go on where the run directory stands, never = it must be new, must = it must hold a "
           "checkpoint, "
           "or the path of a run directory or checkpoint to go on from"),
      duration("run.stop_after", HF_FIELD(run.stop_after_ms), {0, 3650 * kDay_ms}, kSafe,
               "Save and exit 75 when the program has run for this long, such as \"3h50m\"; 0 = never"),
      text("run.initialize_from", HF_FIELD(run.initialize_from), kSafe,
           "Take the first weights from this run directory or checkpoint; empty = random weights"),
  };
}

std::vector<Option> model_options() {
  std::vector<std::string_view> presets;
  for (const ModelPreset& preset : model_presets()) presets.push_back(preset.name);
  return {
      choice("model.preset", HF_FIELD(model.preset), presets, kForbidden,
             "A published shape, which fixes every other model key; empty = the shapes are given"),
      choice(
          "model.style", HF_FIELD(model.style), family_names(), kForbidden,
          "llama = rotary positions, RMSNorm, SwiGLU; qwen2 = llama with biases of queries, keys and values; "
          "qwen3 = llama with an RMSNorm of each query and key head; mistral = llama under another name; "
          "gpt2 = learned positions, LayerNorm, GELU, biases"),
      integer("model.layers", HF_FIELD(model.layers), "layers", {0, 4096}, kForbidden,
              "Transformer blocks; needed without a preset"),
      integer("model.heads", HF_FIELD(model.heads), "heads", {0, 4096}, kForbidden,
              "Query heads of an attention; divides the width, unless head_size says what a head has; needed "
              "without a "
              "preset"),
      integer("model.kv_heads", HF_FIELD(model.kv_heads), "heads", {0, 4096}, kForbidden,
              "Key and value heads (grouped-query attention); divides the heads; 0 = as many as heads"),
      integer("model.head_size", HF_FIELD(model.head_size), "channels", {0, 256}, kForbidden,
              "Channels of a head, where heads x head_size is not the width; not of gpt2; 0 = width / heads"),
      integer("model.width", HF_FIELD(model.width), "channels", {0, kWide}, kForbidden,
              "Channels of the residual stream; needed without a preset"),
      integer("model.feed_forward", HF_FIELD(model.feed_forward), "channels", {0, kWide}, kForbidden,
              "Hidden channels of the feed-forward layer; 0 = 4 x width (gpt2), 8/3 x width rounded up to a "
              "multiple "
              "of 64 (all others)"),
      integer(
          "model.vocabulary", HF_FIELD(model.vocabulary), "tokens", {0, 2147483647}, kForbidden,
          "Size of the vocabulary; 0 = follows from the preset or the data (text 256, llmc 50257 or 128256, "
          "llmq what its header says; megatron does not say)"),
      choice("model.head", HF_FIELD(model.head), {"auto", "tied", "untied"}, kForbidden,
             "Whether the output head shares the embedding's weights; auto = tied for gpt2, untied for all "
             "others"),
      integer("model.positions", HF_FIELD(model.positions), "tokens", {0, kWide}, kForbidden,
              "Rows of the learned position table of gpt2; 0 = training.sequence_length"),
      real("model.rope_theta", HF_FIELD(model.rope_theta), "", {1, 1e12}, kForbidden,
           "Base of the rotary frequencies (all styles but gpt2)"),
      choice("model.rope_scaling", HF_FIELD(model.rope_scaling), {"none", "linear", "llama3"}, kForbidden,
             "Rotary frequencies for longer contexts: linear = all divided by rope_factor; llama3 = those of "
             "Llama 3.1 and 3.2, which divide only waves longer than rope_original_positions / "
             "rope_low_frequency_factor, and those between it and / rope_high_frequency_factor in part"),
      real("model.rope_factor", HF_FIELD(model.rope_factor), "", {1, 1e6}, kForbidden,
           "What model.rope_scaling divides frequencies by"),
      real("model.rope_low_frequency_factor", HF_FIELD(model.rope_low_frequency_factor), "", {1e-3, 1e6},
           kForbidden,
           "rope_scaling = \"llama3\": longer waves than rope_original_positions / this are divided in full"),
      real("model.rope_high_frequency_factor", HF_FIELD(model.rope_high_frequency_factor), "", {1e-3, 1e6},
           kForbidden,
           "rope_scaling = \"llama3\": shorter waves than rope_original_positions / this stay as they are"),
      integer("model.rope_original_positions", HF_FIELD(model.rope_original_positions), "tokens", {0, kWide},
              kForbidden,
              "rope_scaling = \"llama3\": context that the frequencies were made for, 8192 in Llama 3"),
      integer(
          "model.attention_window", HF_FIELD(model.attention_window), "tokens", {0, kWide}, kForbidden,
          "Sliding window: a token sees the last so many tokens, itself among them (Mistral's and Qwen2's "
          "sliding_window); 0, and more than a sequence has, = all"),
      integer("model.attention_sinks", HF_FIELD(model.attention_sinks), "tokens", {0, kWide}, kForbidden,
              "With an attention_window: first tokens of its sequence, or of its document with "
              "data.document_mask, that every token sees besides (attention sinks of StreamingLLM)"),
      real("model.norm_epsilon", HF_FIELD(model.norm_epsilon), "", {1e-12, 1}, kForbidden,
           "Added to the variance inside every norm"),
      texts(
          "model.freeze", HF_FIELD(model.freeze), kForbidden,
          "Tensors that keep their values (fine-tuning): a list of \"embedding\" (a tied head with it), "
          "\"layers 0-5\" (the first and the last, counted from 0), \"head\" (final norm and output matrix) "
          "and \"all but biases and norms\" (BitFit). They have no gradients, no moments and no weight "
          "decay; "
          "backward ends at the lowest layer that is trained"),
  };
}

std::vector<Option> lora_options() {
  return {
      integer(
          "lora.rank", HF_FIELD(lora.rank), "", {0, 4096}, kForbidden,
          "Rank of the adapters of LoRA: y = x W^T + alpha / rank (x A^T) B^T, where A and B are all that is "
          "trained and everything else keeps its values; 0 = no adapters. Mostly with run.initialize_from, "
          "the "
          "model that they adapt"),
      real("lora.alpha", HF_FIELD(lora.alpha), "", {0, 1e6}, kForbidden,
           "What lora.rank divides to give the scale of the adapters (lora_alpha of PEFT); 0 = the rank, so "
           "that "
           "they count once"),
      texts(
          "lora.targets", HF_FIELD(lora.targets), kForbidden,
          "Linear layers that get an adapter: a list of \"q\", \"k\", \"v\" (gpt2: \"qkv\"), \"o\", \"gate\" "
          "(not gpt2), \"up\" and \"down\", or \"all\"; PEFT's names (\"q_proj\", \"c_attn\") are taken as "
          "well"),
  };
}

std::vector<Option> data_options() {
  return {
      required(
          sources(
              "data.sources", HF_FIELD(data.sources), kForbidden,
              "Training data: a list of {path, format, weight}, and with text {tokenizer, pattern, column, "
              "append_eos}. On resume the paths of files and tokenizers may change; all else may not"),
          "[{ path = \"text.txt\", format = \"text\" }]"),
      boolean("data.document_mask", HF_FIELD(data.document_mask), kForbidden,
              "Tokens attend inside their document only; positions do not restart with a document"),
      integer(
          "data.document_begin", HF_FIELD(data.document_begin), "token", {-1, 2147483647}, kForbidden,
          "Token that begins every document; -1 = what the format says (llmc 50256 or 128000), else none"),
      integer("data.document_end", HF_FIELD(data.document_end), "token", {-1, 2147483647}, kForbidden,
              "Token that ends every document; -1 = none"),
      real("data.validation_fraction", HF_FIELD(data.validation_fraction), "", {0, 0.5}, kForbidden,
           "Share of the samples of every source that is never trained on, for the held-out loss; 0 = none"),
      integer("data.validation_seed", HF_FIELD(data.validation_seed), "", {0, kInt64Max}, kForbidden,
              "Decides which samples data.validation_fraction holds back; run.seed does not"),
      integer("data.prefetch_microbatches", HF_FIELD(data.prefetch_microbatches), "microbatches", {1, 64},
              kSafe, "Read ahead of the training by a thread of its own"),
      text("data.cache", HF_FIELD(data.cache), kSafe,
           "Directory that keeps the tokens of sources with a tokenizer, for every run that uses it; left "
           "out, "
           "token-cache beside the run directory"),
      boolean("data.ledger", HF_FIELD(data.ledger), kSafe,
              "Write the id of every sample used to ledger-<rank>.jsonl in the run directory"),
  };
}

std::vector<Option> training_options() {
  return {
      required(
          integer(
              "training.steps", HF_FIELD(training.steps), "steps", {1, kMany}, kSafe,
              "Optimizer steps of the whole run; a later value also stretches the learning-rate schedule"),
          "1000"),
      integer("training.sequence_length", HF_FIELD(training.sequence_length), "tokens", {1, kWide},
              kForbidden, "Tokens of one sample"),
      integer("training.microbatch_size", HF_FIELD(training.microbatch_size), "samples", {1, 65536},
              kForbidden, "Samples that one forward and backward computes together"),
      integer("training.microbatches_per_lane", HF_FIELD(training.microbatches_per_lane), "microbatches",
              {1, 65536}, kForbidden,
              "Microbatches that a lane accumulates in a step; the global batch is lanes x this x "
              "microbatch_size"),
      choice("training.precision", HF_FIELD(training.precision), {"fp32", "bf16"}, kForbidden,
             "Type of weights and activations in forward and backward; master weights and sums are fp32"),
      choice("training.recompute", HF_FIELD(training.recompute), {"none", "selective", "full"}, kSafe,
             "What backward computes again instead of keeping it: selective = the outputs of norms and "
             "activation functions, full = everything but the input of each block. Less memory for more "
             "time; never changes a bit"),
      integer(
          "training.head_rows", HF_FIELD(training.head_rows), "rows", {0, kWide}, kNumeric,
          "Tokens whose logits are in memory at once: the LM head, the loss and their gradients are "
          "computed in chunks of so many rows. 0 = on a CPU about 4 Mi logits, at least 256 rows; on a GPU "
          "the largest power of two whose logits are at most 1 GiB; give fewer where memory is short. "
          "Decides in which order the head's weight gradient is summed"),
      boolean("training.cuda_graphs", HF_FIELD(training.cuda_graphs), kSafe,
              "On a GPU: the ops of a microbatch are launched as one CUDA graph, where no other rank waits "
              "for parts of its gradients (and none with parallel.tensor > 1). For models whose ops a GPU "
              "finishes faster than the host launches "
              "them; never changes a bit"),
  };
}

std::vector<Option> parallel_options() {
  return {
      integer(
          "parallel.lanes", HF_FIELD(parallel.lanes), "lanes", {0, 65536}, kNumeric,
          "Logical data-parallel shape, which decides the bits, the global batch and bounds the ranks; 0 = "
          "parallel.data, else 8; on resume the stored one, and another value cuts the run anew"),
      integer(
          "parallel.lane_block", HF_FIELD(parallel.lane_block), "lanes", {1, 65536}, kNumeric,
          "Gradients of so many neighbouring lanes are added in lane order, and their sums in order of the "
          "blocks, which decides the bits; divides parallel.lanes; 1 = all lanes one after the other. With "
          "as many as a host has data-parallel ranks, only sums of blocks travel between hosts, and each "
          "updated parameter once"),
      integer(
          "parallel.tensor_lanes", HF_FIELD(parallel.tensor_lanes), "slices", {0, 16}, kNumeric,
          "Logical tensor-parallel shape: into so many slices every split tensor is cut, which decides the "
          "bits and bounds parallel.tensor; a power of two; 0 = parallel.tensor, else 1; on resume the "
          "stored one, and "
          "another value cuts the run anew. A rank with several of "
          "them keeps a part of every sum for each"),
      integer("parallel.data", HF_FIELD(parallel.data), "ranks", {0, 65536}, kSafe,
              "Data-parallel degree; 0 = ranks / (tensor x pipeline). Decides parallel.lanes when a run "
              "starts without it"),
      integer(
          "parallel.tensor", HF_FIELD(parallel.tensor), "ranks", {0, 16}, kSafe,
          "Tensor-parallel degree: so many ranks of one host share every layer of a copy of the model, each "
          "with some of the slices; a power of two that divides parallel.tensor_lanes; 0 = 1"),
      integer(
          "parallel.pipeline", HF_FIELD(parallel.pipeline), "ranks", {0, 1024}, kSafe,
          "Pipeline-parallel degree: so many ranks hold neighbouring layers of one copy of the model; 0 = 1"),
      integer("parallel.pipeline_chunks", HF_FIELD(parallel.pipeline_chunks), "chunks", {1, 1024}, kSafe,
              "Pieces of the model on every stage, with parallel.pipeline_schedule = interleaved"),
      choice(
          "parallel.pipeline_schedule", HF_FIELD(parallel.pipeline_schedule),
          {"1f1b", "gpipe", "interleaved", "zero_bubble"}, kSafe,
          "Order of forwards and backwards in a pipeline: 1f1b = one of each in turn, which keeps at most as "
          "many microbatches as stages; gpipe = all forwards first; interleaved = 1f1b with several pieces "
          "of the model on every stage, which fills the pipeline sooner; zero_bubble = 1f1b whose weight "
          "gradients are computed apart and later, which fills most of the idle time and keeps gradients and "
          "logits of up to as many microbatches as stages. Never changes a bit"),
      duration("parallel.timeout", HF_FIELD(parallel.timeout_ms), {100, kDay_ms}, kSafe,
               "Longest wait for a peer before it counts as failed"),
      choice("parallel.exchange", HF_FIELD(parallel.exchange), {"auto", "nccl", "host"}, kSafe,
             "How GPU memory travels between ranks: nccl, host = by way of pinned host memory; auto = nccl "
             "where all ranks have it. Never changes a bit"),
      integer(
          "parallel.ranks_per_gpu", HF_FIELD(parallel.ranks_per_gpu), "ranks", {0, 1024}, kSafe,
          "Most ranks that share a GPU. 0 = as many as when the run began, which is stored with it: where a "
          "GPU is gone later, the ranks that would share another one leave, and the others go on"),
  };
}

std::vector<Option> elastic_options() {
  return {
      boolean(
          "elastic.in_place", HF_FIELD(elastic.in_place), kSafe,
          "A run that loses ranks: true = those that are left go on within the same start, where they hold "
          "the whole model; false = the start ends with 76, and another one (`holdfast launch` makes it) "
          "goes on, as in systems that restart everything. Spares help only where it is true"),
      integer("elastic.min_data_parallel", HF_FIELD(elastic.min_data_parallel), "ranks", {1, 65536}, kSafe,
              "Fewest copies of the model with which a run that loses ranks goes on; `holdfast plan` says "
              "what memory "
              "that takes"),
      integer("elastic.spares", HF_FIELD(elastic.spares), "ranks", {0, 65536}, kSafe,
              "Ranks, of those that are started, that compute nothing and wait to take the place of one that "
              "dies"),
      duration("elastic.recovery_timeout", HF_FIELD(elastic.recovery_timeout_ms), {100, kDay_ms}, kSafe,
               "Longest time that the ranks which are left may take to come together after a death; past it "
               "the run ends, to be started again"),
      duration(
          "elastic.memory_timeout", HF_FIELD(elastic.memory_timeout_ms), {0, kDay_ms}, kSafe,
          "How long the ranks wait for memory of a GPU or a host that other processes hold: one that was "
          "killed gives it back only after some seconds. Past it there are fewer snapshots in memory, then "
          "fewer ranks as far as elastic.min_data_parallel allows, and else the run ends with 76, to be "
          "started again"),
      duration(
          "elastic.input_timeout", HF_FIELD(elastic.input_timeout_ms), {0, kDay_ms}, kSafe,
          "How long a start waits for what the run has read before and no host can read now: its data, its "
          "run directory, its devices, and how long the end of a run waits for a last checkpoint that no "
          "rank can write now. Past it the run ends with 76, to be started again. What is missing at the "
          "first start of a run ends it at once"),
      choice(
          "elastic.grow", HF_FIELD(elastic.grow), {"auto", "off"}, kSafe,
          "A run that lost ranks: auto = gets new ones between two steps, until it has the copies that were "
          "wanted, on one host from MPI, on several by another start (holdfast launch); off = goes on with "
          "those it has"),
      duration("elastic.grow_after", HF_FIELD(elastic.grow_after_ms), {0, kDay_ms}, kSafe,
               "How long after a fault, or after no more ranks could be had, the run tries to grow"),
      duration("elastic.settle_after", HF_FIELD(elastic.settle_after_ms), {0, kDay_ms}, kSafe,
               "How long ranks that a host or a GPU got back must live to be treated like the others again; "
               "if they die sooner, the pause doubles (a host whose ranks die twice is out for an hour), and "
               "after six times it gets none"),
      text("elastic.notice_file", HF_FIELD(elastic.notice_file), kSafe,
           "File that says, on the host where it appears, that this host is about to be taken away: the run "
           "leaves it (docs/launch.md); empty = none"),
      text("elastic.notice_command", HF_FIELD(elastic.notice_command), kSafe,
           "Shell command that says by ending with 0 that the host it runs on is about to be taken away, "
           "within "
           "10 s; it may ask the metadata service of a cloud; empty = none"),
      duration(
          "elastic.notice_every", HF_FIELD(elastic.notice_every_ms), {100, kDay_ms}, kSafe,
          "How often one rank of each host looks at elastic.notice_file and runs elastic.notice_command"),
  };
}

std::vector<Option> network_options() {
  return {
      text("network.interface", HF_FIELD(network.interface), kSafe,
           "Interface (eth0), or address of one, where guards, replicas and copies of shards of the hosts of "
           "a "
           "run reach each other; all hosts have an interface of this name. Empty = they listen on every "
           "interface and are reached through that of the default route, then the others. MPI chooses for "
           "itself (OMPI_MCA_btl_tcp_if_include)"),
  };
}

std::vector<Option> watchdog_options() {
  return {
      boolean("watchdog.guard", HF_FIELD(watchdog.guard), kSafe,
              "A process on every host looks after its ranks: it ends one that hangs, so that the others can "
              "go on without it, and writes down what each was at"),
      real("watchdog.factor", HF_FIELD(watchdog.factor), "", {1.5, 1000}, kSafe,
           "A rank hangs when it shows no sign of life for so many times as long as what it is at usually "
           "takes"),
      duration("watchdog.floor", HF_FIELD(watchdog.floor_ms), {100, kDay_ms}, kSafe,
               "Minimum deadline of a phase: a rank that has been at it for less never hangs"),
      duration("watchdog.ceiling", HF_FIELD(watchdog.ceiling_ms), {100, kDay_ms}, kSafe,
               "Maximum deadline of a phase: a rank that takes longer at it hangs; also the deadline of a "
               "phase that was not done often enough to know how long it takes"),
  };
}

std::vector<Option> optimizer_options() {
  return {
      choice("optimizer.name", HF_FIELD(optimizer.name), {"adamw", "lion"}, kForbidden,
             "Rule of updates: adamw, or lion = by the sign of an average of the gradient, with one moment "
             "where adamw has two, so a trained parameter takes 4 bytes less in memory, snapshots and "
             "checkpoints, 2 with bf16 moments. Usual for lion are a learning rate of a third to a tenth of "
             "adamw's, as many times its weight_decay, and beta2 = 0.99, or 0.95 in a short run"),
      real("optimizer.learning_rate", HF_FIELD(optimizer.learning_rate), "", {0, 100}, kNumeric,
           "Peak learning rate"),
      choice("optimizer.schedule", HF_FIELD(optimizer.schedule),
             {"constant", "linear", "cosine", "wsd", "inverse_sqrt"}, kNumeric,
             "Course of the learning rate after the warm-up; wsd = stable, then a linear decay at the end; "
             "inverse_sqrt = peak x sqrt(warmup_steps / step), as after 10,000 of them where there are none; "
             "it does "
             "not depend on training.steps"),
      integer("optimizer.warmup_steps", HF_FIELD(optimizer.warmup_steps), "steps", {0, kMany}, kNumeric,
              "Steps over which the learning rate rises to its peak"),
      real("optimizer.final_fraction", HF_FIELD(optimizer.final_fraction), "", {0, 1}, kNumeric,
           "Learning rate at the last step / peak"),
      real("optimizer.decay_fraction", HF_FIELD(optimizer.decay_fraction), "", {0, 1}, kNumeric,
           "Share of the steps in which wsd decays"),
      real("optimizer.beta1", HF_FIELD(optimizer.beta1), "", {0, 0.999999}, kNumeric,
           "Decay of the running mean of the gradient; with lion, in the average whose sign is taken"),
      real("optimizer.beta2", HF_FIELD(optimizer.beta2), "", {0, 0.9999999}, kNumeric,
           "Decay of the running mean of the squared gradient; with lion, of the gradient"),
      real("optimizer.epsilon", HF_FIELD(optimizer.epsilon), "", {1e-30, 1}, kNumeric,
           "Added to the root of the squared-gradient mean; lion has none"),
      real("optimizer.weight_decay", HF_FIELD(optimizer.weight_decay), "", {0, 100}, kNumeric,
           "Decoupled weight decay of matrices; norms and biases have none, but by weight_decay_groups"),
      texts("optimizer.weight_decay_groups", HF_FIELD(optimizer.weight_decay_groups), kNumeric,
            "Weight decay of some tensors, each \"PATTERN=DECAY\": [\"*.bias=0\", \"embedding.*=0.01\"]. A "
            "pattern is a glob over the names that holdfast inspect shows: * is any text, ? one character. "
            "The first that matches a tensor counts; each matches one of the model's"),
      real("optimizer.gradient_clip", HF_FIELD(optimizer.gradient_clip), "", {0, 1e12}, kNumeric,
           "Largest global gradient norm, larger ones are scaled down to it; 0 = off"),
      choice("optimizer.moments", HF_FIELD(optimizer.moments), {"fp32", "bf16"}, kNumeric,
             "Type in which moments are kept: bf16 = rounded stochastically, by random bits that "
             "follow from run.seed, the step and the element, so the bits are the same in every layout. A "
             "trained parameter then takes 2 bytes less for each moment in memory, snapshots and "
             "checkpoints. A run that goes on with the other type converts them once"),
      real("optimizer.ema", HF_FIELD(optimizer.ema), "", {0, 0.9999999}, kNumeric,
           "Decay of an exponential moving average of the weights, which each update moves by 1 - ema of the "
           "way to them; 0 = there is none. It takes 4 bytes per trained parameter in memory, snapshots and "
           "checkpoints; evaluate, sample and export take it with --ema. Where it is new to a run it begins "
           "with the weights"),
      boolean("optimizer.shard_gradients", HF_FIELD(optimizer.shard_gradients), kSafe,
              "Between data-parallel ranks keep only the owned part of the gradients (ZeRO stage 2): what a "
              "lane computed leaves at once. For training.microbatches_per_lane = 1; never changes a bit"),
  };
}

std::vector<Option> verdict_options() {
  return {
      choice(
          "verdict.preset", HF_FIELD(verdict.preset), {"off", "watch", "guard"}, kNumeric,
          "What happens to a step with suspicious numbers: guard = it is computed again, and the bits tell "
          "hardware from data; watch = the event log says so; off = only numbers that are not finite are "
          "noticed, and with watch and off they end the run with 20"),
      integer("verdict.window_steps", HF_FIELD(verdict.window_steps), "steps", {8, 1024}, kNumeric,
              "A step is judged by the numbers of so many steps before it, which are part of the state"),
      real("verdict.loss_score", HF_FIELD(verdict.loss_score), "deviations", {0, 1e12}, kNumeric,
           "A loss that is so many robust deviations above the median of the window is a spike; 0 = 8"),
      real("verdict.norm_score", HF_FIELD(verdict.norm_score), "deviations", {0, 1e12}, kNumeric,
           "The same for the logarithm of the gradient norm; 0 = 10"),
      integer("verdict.drift_steps", HF_FIELD(verdict.drift_steps), "steps", {0, 512}, kNumeric,
              "The loss drifts when its median over so many steps has risen; 0 = drift is not noticed"),
      real("verdict.drift_rise", HF_FIELD(verdict.drift_rise), "nats", {0, 1e12}, kNumeric,
           "How far that median may be above the least one of the window"),
      real("verdict.explosion_factor", HF_FIELD(verdict.explosion_factor), "", {0, 1e12}, kNumeric,
           "A loss of more than so many times the median of the window (of at least 1 nat), or a norm of "
           "more than ten times so many, has exploded: with guard its update is never made; 0 = it is a "
           "spike like others"),
      choice(
          "verdict.on_spike", HF_FIELD(verdict.on_spike),
          {"tell", "clip", "skip", "rollback", "save_and_stop", "stop"}, kNumeric,
          "A spike whose bits were confirmed: tell = the update is made all the same, clip = with the "
          "gradients scaled down to the median norm of the window, skip = the update is not made, rollback "
          "= the run goes back, and on from there without the batches in between, stop = the run ends with "
          "20, save_and_stop = so, after a save of the state before that step"),
      choice(
          "verdict.on_nonfinite", HF_FIELD(verdict.on_nonfinite), {"rollback", "save_and_stop", "stop"},
          kNumeric,
          "Numbers that are not finite, or have exploded, when no skip is left (verdict.skips_max): rollback "
          "= the run goes back to before the first step that was skipped, and ends with 20 where that is "
          "not possible; the others as for verdict.on_spike"),
      choice("verdict.on_drift", HF_FIELD(verdict.on_drift), {"tell", "rollback", "save_and_stop", "stop"},
             kNumeric,
             "A drift: tell = the run goes on, rollback = it goes back to before the steps whose median has "
             "risen; the others as for verdict.on_spike"),
      integer("verdict.rollback_steps", HF_FIELD(verdict.rollback_steps), "steps", {1, kMany}, kNumeric,
              "A roll-back goes to the last but one multiple of this before the spike. RAM snapshots are "
              "made at these multiples if checkpoint.ram_every_steps = auto and spikes or drifts roll back"),
      integer("verdict.rollbacks_max", HF_FIELD(verdict.rollbacks_max), "", {0, 1024}, kNumeric,
              "So many roll-backs are made within ten times verdict.rollback_steps; after that a spike or a "
              "drift is told only, and numbers that are not finite end the run"),
      real("verdict.rate_after_rollback", HF_FIELD(verdict.rate_after_rollback), "", {1e-6, 1}, kNumeric,
           "Factor of the learning rate of all steps after a roll-back, again at each one; 1 = the rate "
           "stays"),
      choice("verdict.on_wrong_rank", HF_FIELD(verdict.on_wrong_rank), {"rollback", "continue"}, kSafe,
             "When a rank computes wrong numbers for good: rollback = the run goes back to a state that is "
             "older than its last audit that agreed; continue = what it computed since stays"),
      integer(
          "verdict.skips_max", HF_FIELD(verdict.skips_max), "steps", {0, 1024}, kNumeric,
          "So many steps of the window may be skipped; what becomes of another one that is not finite says "
          "verdict.on_nonfinite"),
      integer_or_auto("verdict.audit_every_steps", HF_FIELD(verdict.audit_every_steps), "steps", {0, kMany},
                      kSafe,
                      "With guard, one lane of each replica is computed by another replica, too, this often, "
                      "before the update, and the bits are compared, and so are the parameters of all ranks; "
                      "auto = as often as costs at most 0.15 % of the time; 0 = never"),
      duration(
          "verdict.findings_window", HF_FIELD(verdict.findings_window_ms), {0, 3650 * kDay_ms}, kSafe,
          "A rank that computed wrong numbers once is told, and leaves the run at the second finding about "
          "its device within this time, where others can go on without it; 0 = it stays"),
  };
}

std::vector<Option> health_options() {
  return {
      choice("health.preset", HF_FIELD(health.preset), {"off", "watch", "guard"}, kSafe,
             "Ranks that compute more slowly than the others, so that all wait for them (`holdfast "
             "stragglers`), and hosts that sensors, counters and logs call sick (docs/health.md): watch = "
             "they are found and told, and nothing else is done; guard = a sick host is left as by "
             "`holdfast drain`, too; off = nobody looks. Never changes a bit"),
      duration("health.every", HF_FIELD(health.every_ms), {100, kDay_ms}, kSafe,
               "How often the guard of each host reads its sensors, counters and logs; less often where that "
               "would take more than a thousandth of a processor"),
      text("health.host_root", HF_FIELD(health.host_root), kSafe,
           "Where /proc and /sys of the host are, for a run in a container that has others; empty = /"),
      text(
          "health.dcgm_exporter", HF_FIELD(health.dcgm_exporter), kSafe,
          "ADDRESS:PORT of the DCGM exporter of each host, such as \"127.0.0.1:9400\", for what NVML and the "
          "kernel's log do not say in a container; the address is numeric. Empty = none is asked"),
      texts("health.rules", HF_FIELD(health.rules), kSafe,
            "Changes to the rules of docs/health.md, each \"NAME=ACTION\" or \"NAME=ACTION:THRESHOLD\": "
            "[\"gpu-hot=drain:87\", \"network-carrier=ignore\"]"),
  };
}

std::vector<Option> interval_options() {
  return {
      integer_or_auto(
          "checkpoint.every_steps", HF_FIELD(checkpoint.every_steps), "steps", {0, kMany}, kSafe,
          "Save this often; auto = as often as loses least time to saves and to failures, from "
          "what a save is measured to cost (Young, Daly); 0 = only at the end, when asked to, and "
          "as checkpoint.every says"),
      duration("checkpoint.every", HF_FIELD(checkpoint.every_ms), {0, 3650 * kDay_ms}, kSafe,
               "Save at the latest this long after the last save, such as \"30m\", also where "
               "checkpoint.every_steps does not; with checkpoint.every_steps = 0 this alone decides; 0 = "
               "never by the clock"),
      duration("checkpoint.mtbf", HF_FIELD(checkpoint.mtbf_ms), {0, 3650 * kDay_ms}, kSafe,
               "Mean time between failures of the whole run, for checkpoint.every_steps = auto; not together "
               "with hazard.mtbf_hours, which is of one device; 0 = from hazard.mtbf_hours and the failures "
               "that the run has had"),
      duration(
          "checkpoint.lose_at_most", HF_FIELD(checkpoint.lose_at_most_ms), {0, 3650 * kDay_ms}, kSafe,
          "Most training that may be lost, such as \"5m\": where their interval is auto, checkpoints and "
          "RAM snapshots come so often that no more is newer than the last one, whatever they cost; 0 = "
          "no limit"),
      integer("checkpoint.keep", HF_FIELD(checkpoint.keep), "checkpoints", {1, 1e6}, kSafe,
              "Newest checkpoints that are kept; older ones are removed after a newer one is whole. A run of "
              "several "
              "replicas keeps up to two more that it may have to go back to (verdict.on_wrong_rank)"),
      integer("checkpoint.keep_every_steps", HF_FIELD(checkpoint.keep_every_steps), "steps", {0, kMany},
              kSafe,
              "Checkpoints of steps that this divides are kept for good, and with checkpoint.every_steps = "
              "auto made; 0 = none"),
      text("checkpoint.upload_command", HF_FIELD(checkpoint.upload_command), kSafe,
           "Shell command that takes a checkpoint elsewhere: run for each one after it is durable, beside "
           "training, with HOLDFAST_CHECKPOINT (its directory), HOLDFAST_NAME (what to call it there), "
           "HOLDFAST_STEP and HOLDFAST_RUN in the environment (in quotes, as in \"$HOLDFAST_CHECKPOINT\"), "
           "and tried "
           "again when it fails; while it runs, only the newest one waits; no record holds the command; "
           "empty = none"),
      text("checkpoint.upload_shard_command", HF_FIELD(checkpoint.upload_shard_command), kSafe,
           "Shell command that takes one file of a checkpoint, HOLDFAST_FILE, elsewhere, with the variables "
           "of "
           "checkpoint.upload_command and in place of it: every rank runs it for its own shard, all "
           "at once, and when all are sent one of them runs it for the manifest, without which nobody takes "
           "the "
           "others for a checkpoint"),
      duration("checkpoint.upload_timeout", HF_FIELD(checkpoint.upload_timeout_ms), {1000, kDay_ms}, kSafe,
               "An upload command that takes longer is killed, and has failed"),
      text("checkpoint.download_command", HF_FIELD(checkpoint.download_command), kSafe,
           "Shell command that brings the newest checkpoint back where a start finds none on the disk and "
           "none in RAM: it puts manifest.json and the files beside it into HOLDFAST_DOWNLOAD (an empty "
           "directory), or nothing where there is nothing; empty = none"),
      duration("checkpoint.download_timeout", HF_FIELD(checkpoint.download_timeout_ms), {1000, 7 * kDay_ms},
               kSafe, "A download that takes longer is killed, and has failed"),
      choice(
          "checkpoint.compression", HF_FIELD(checkpoint.compression), {"automatic", "none", "always"}, kSafe,
          "Whether the writer compresses what compresses; automatic = where that takes less time than the "
          "disk needs for the bytes it saves, but not beside training on the same processors. What is read "
          "back is the same"),
      boolean("checkpoint.delta", HF_FIELD(checkpoint.delta), kSafe,
              "Write frozen tensors (model.freeze) once: later checkpoints have their file by a link. Damage "
              "to such a file damages every checkpoint that has it; false = each checkpoint has a copy"),
      integer_or_auto(
          "checkpoint.ram_every_steps", HF_FIELD(checkpoint.ram_every_steps), "steps", {0, kMany}, kSafe,
          "Copy the state to shared memory this often, where a restart on the same hosts finds "
          "it; auto = after the first step, and as often as is measured to cost at most 0.5 % of "
          "the time, more often only where the run fails so often that it is worth it; 0 = never"),
      choice("checkpoint.replicas", HF_FIELD(checkpoint.replicas), {"auto", "on", "off"}, kSafe,
             "Whether another data-parallel rank keeps a copy of each snapshot in shared memory, of another "
             "host where there is one; auto = where data-parallel ranks are on several hosts. Where "
             "run.directory is local to each host, another host keeps a copy of each shard on its disk, too, "
             "unless it is off"),
      choice("checkpoint.io", HF_FIELD(checkpoint.io), {"auto", "io_uring", "threads"}, kSafe,
             "How checkpoints reach the disk: by io_uring, or by threads with plain reads and writes; auto = "
             "io_uring where the kernel allows it"),
      integer("evaluation.every_steps", HF_FIELD(evaluation.every_steps), "steps", {0, kMany}, kSafe,
              "Compute the held-out loss this often; 0 = never"),
      sources("evaluation.sources", HF_FIELD(evaluation.sources), kSafe,
              "Held-out data, as data.sources; empty = what data.validation_fraction holds back"),
      integer("evaluation.batches", HF_FIELD(evaluation.batches), "microbatches", {1, 1e6}, kSafe,
              "Size of the fixed held-out set"),
  };
}

#define HF_KERNEL_OPTION(op, contract, op_class)                                           \
  text(                                                                                    \
      "kernels." #op, [](Config & config) -> auto& {                                       \
        return config.kernels.implementations[static_cast<std::size_t>(OpId::op)];         \
      },                                                                                   \
      kNumeric,                                                                            \
      is_composed(OpId::op) ? "Implementation that runs " #op                              \
                              " in place of the ops that it is in turn, by a name that "   \
                              "`holdfast check` lists; auto = those run (docs/kernels.md)" \
                            : "Implementation that runs " #op                              \
                              ", by a name that `holdfast check` lists; auto = the "       \
                              "best for the processor"),

std::vector<Option> kernel_options() {
  return {
      choice("kernels.isa", HF_FIELD(kernels.isa),
             {"auto", "portable", "avx2", "avx512", "avx512_bf16", "amx"}, kNumeric,
             "The most of the processor that kernels and oneDNN may use; auto = all that it has"),
      text("kernels.plan", HF_FIELD(kernels.plan), kNumeric,
           "File with algorithms of cuBLASLt for matrix products, a line each, as `holdfast bench op matmul "
           "--device cuda --algorithms --plan FILE` writes it, or as device_plan of a start event has "
           "them: they are taken where the GPU has them, and compute with other last bits. Empty = those "
           "that the state was made with, else the choice of the library"),
      paths("kernels.plugins", HF_FIELD(kernels.plugins), kSafe,
            "Shared libraries with more implementations of ops (docs/kernels.md), as paths that begin at the "
            "folder "
            "of this file; on a command line, at the working directory. Those of a stored config are not "
            "loaded: give them again"),
      choice(
          "kernels.on_failure", HF_FIELD(kernels.on_failure), {"retry", "fall_back"}, kSafe,
          "What a run does after a kernel of a plug-in crashed or hung: retry = it goes on with that kernel; "
          "fall_back = it goes back to the confirmed snapshot and on without it (docs/kernels.md), which is "
          "a "
          "numeric change"),
      kernel_rules(
          "kernels.rules", HF_FIELD(kernels.rules), false, kNumeric,
          "Implementations for some calls of an op, by layers and shapes, before the keys below: a list of "
          "{op, layers, where, use} (docs/kernels.md)"),
      kernel_rules(
          "kernels.shadow", HF_FIELD(kernels.shadows), true, kSafe,
          "Implementations that compute some calls of an op once more, every so many steps, and are compared "
          "with those that the run has: a list of {op, layers, where, use, every} (docs/kernels.md). They "
          "decide no bit"),
      HF_OPS(HF_KERNEL_OPTION)};
}
#undef HF_KERNEL_OPTION

std::vector<Option> hazard_options() {
  return {
      real("hazard.mtbf_hours", HF_FIELD(hazard.mtbf_hours), "hours", {0, 1e9}, kSafe,
           "Mean time between failures of one device (a GPU; on a CPU, a rank), whatever fails with it: what "
           "`holdfast plan` expects, and what checkpoint.every_steps = auto begins with until the run's own "
           "failures say otherwise; 0 = the published rate of the kind of device (docs/plan.md)"),
  };
}

std::vector<Option> cost_options() {
  return {
      real("cost.per_rank_hour", HF_FIELD(cost.per_rank_hour), "", {0, 1e9}, kSafe,
           "Price of one rank for an hour, in cost.currency, so that `holdfast plan` says what a run and its "
           "failures cost; 0 = no money is shown"),
      text("cost.currency", HF_FIELD(cost.currency), kSafe,
           "What stands before an amount of money: a sign such as \"$\", or a name with a space behind it, "
           "such "
           "as \"EUR \""),
  };
}

std::vector<Option> log_options() {
  return {
      integer_or_auto("log.every_steps", HF_FIELD(log.every_steps), "steps", {1, kMany}, kSafe,
                      "Print a line on the console this often; auto = of every tenth step, or of fewer where "
                      "that would be more than one line in a second; events.jsonl always has every step"),
      integer("log.rotate_bytes", HF_FIELD(log.rotate_bytes), "bytes", {0, kMany}, kSafe,
              "When events.jsonl has grown to this size it becomes events-0001.jsonl and so on, and another "
              "begins; 0 = never"),
  };
}

std::vector<Option> metrics_options() {
  return {
      duration("metrics.every", HF_FIELD(metrics.every_ms), {0, kDay_ms}, kSafe,
               "How often RUN/metrics.prom is replaced: the numbers of all events as OpenMetrics text, for "
               "the textfile "
               "collector of node_exporter (docs/metrics.md); 0 = never"),
      boolean("metrics.tensorboard", HF_FIELD(metrics.tensorboard), kSafe,
              "Whether the curves are also written as event files of TensorBoard, in RUN/tensorboard"),
      text("metrics.listen", HF_FIELD(metrics.listen), kSafe,
           "ADDRESS:PORT where a scraper finds the metrics by HTTP (docs/metrics.md), such as "
           "\"127.0.0.1:9400\"; \":9400\" = on network.interface, and on all where that is empty; port 0 = "
           "any, which the console tells. Other than on a loopback address a scraper needs the token of "
           "`holdfast metrics RUN --token`. Empty = nowhere"),
  };
}

std::vector<Option> notify_options() {
  return {
      text("notify.command", HF_FIELD(notify.command), kSafe,
           "Shell command that tells people of the run: run for each start, fault, recovery, verdict, slow "
           "rank, sick host, host that is left or not used, and the end, with HOLDFAST_EVENT, "
           "HOLDFAST_SENTENCE, HOLDFAST_RUN, HOLDFAST_DIRECTORY and HOLDFAST_STEP in the environment "
           "(docs/notify.md); no record holds the command; empty = none"),
      duration("notify.timeout", HF_FIELD(notify.timeout_ms), {100, kDay_ms}, kSafe,
               "A notify.command that takes longer is killed, with all that it has started"),
      integer("notify.at_most", HF_FIELD(notify.at_most), "an hour", {1, 3600}, kSafe,
              "Most runs of notify.command in an hour, heartbeats and the end of the run aside; what is left "
              "out is counted, and told with the next one (HOLDFAST_LEFT_OUT)"),
      duration(
          "notify.heartbeat", HF_FIELD(notify.heartbeat_ms), {0, kDay_ms}, kSafe,
          "How often notify.command is also run with HOLDFAST_EVENT=heartbeat while the run makes steps, "
          "for a service that alarms when it stays away; 0 = never"),
  };
}

std::vector<Option> trace_options() {
  return {
      integer("trace.first_step", HF_FIELD(trace.first_step), "step", {1, kMany}, kSafe,
              "First of the steps whose times are recorded; the first two of a process are slow"),
      integer("trace.steps", HF_FIELD(trace.steps), "steps", {0, 1000}, kSafe,
              "So many steps are recorded, for `holdfast timeline`: what every rank computes, waits for and "
              "sends, and when; 0 = none. Never changes a bit"),
  };
}

std::vector<Option> build_registry() {
  std::vector<Option> registry;
  for (auto section :
       {general_options,   run_options,      model_options,   lora_options,     data_options,
        training_options,  parallel_options, elastic_options, watchdog_options, network_options,
        optimizer_options, verdict_options,  health_options,  interval_options, hazard_options,
        cost_options,      kernel_options,   log_options,     metrics_options,  notify_options,
        trace_options}) {
    std::ranges::move(section(), std::back_inserter(registry));
  }
  return registry;
}

}  // namespace

std::span<const Option> option_registry() {
  static const std::vector<Option> registry = build_registry();
  return registry;
}

}  // namespace holdfast::config
