#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "parallel/group/mpi_loader.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/core/units.h"
#include "runtime/device/device.h"
#include "runtime/device/nvml.h"
#include "runtime/elastic/prepare.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/model/activations.h"
#include "runtime/model/spec.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/machine_facts.h"
#include "runtime/os/processes.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/rank/processor_binding.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/save/save_cadence.h"
#include "runtime/save/snapshot.h"

namespace holdfast::cli {
namespace {

constexpr const char* check_usage =
    "usage: holdfast check [RUN.toml] [--kernels] [--section.key=value ...]\n"
    "\n"
    "Reads the config, opens the data files and says everything that is wrong, without MPI and without "
    "training, then\n"
    "prints what this machine offers. Exit code 0, or that of the first kind of problem: 2 config, 4 data, 5 "
    "checkpoint.\n"
    "\n"
    "  --kernels  also a line for every op: what runs it here, why, and what else could\n";

void print_row(const std::string& name, bool there, const std::string& detail) {
  fmt::print("  {:<12} {:<4} {}\n", name, there ? "yes" : "no", detail);
}

void print_mpi() {
  const Result<MpiFacts> mpi = mpi_library_facts();
  if (!mpi.ok()) {
    print_row("MPI", false, fmt::format("a run has one rank only, no mpirun: {}", mpi.error().message));
    print_row("ULFM", false, "needs MPI");
    return;
  }
  print_row("MPI", true, mpi->library);
  print_row("ULFM", mpi->fault_tolerant,
            mpi->fault_tolerant ? "compiled in (tools/mpirun switches it on)"
                                : "not in this MPI: a dead rank ends the run; the next start resumes it");
}

// Prints how a run is started in the Slurm job that this process belongs to, and which way recovers in place.
void print_slurm(Env& env) {
  if (!in_slurm_allocation(env)) return;
  const Result<std::vector<LaunchHost>> hosts = allocated_hosts(env);
  if (!hosts.ok()) return print_row("Slurm", false, hosts.error().message);
  std::int64_t tasks = 0;
  for (const LaunchHost& host : *hosts) tasks += host.slots;
  print_row(
      "Slurm", true,
      fmt::format(
          "job {}, {} task{} on {} node{} ({}): holdfast launch -np {} starts a run there and recovers it "
          "in place, or on the nodes that are left; one that srun starts (srun --mpi=pmix holdfast train) "
          "ends when a rank dies, and its next start goes on",
          env.variable("SLURM_JOB_ID"), tasks, tasks == 1 ? "" : "s", hosts->size(),
          hosts->size() == 1 ? "" : "s", env.variable("SLURM_JOB_NODELIST"), tasks));
}

void print_gpus(Env& env) {
  const Result<CudaPresence> cuda = find_cuda(env);
  if (!cuda.ok()) return print_row("CUDA", false, cuda.error().message);
  const Result<std::unique_ptr<Nvml>> nvml = load_nvml();
  if (!nvml.ok()) print_row("GPU health", false, nvml.error().message);
  for (const CudaFacts& gpu : cuda->devices) {
    const Result<void> tried = cuda->module->try_device(gpu.ordinal, {.timeout_ms = 0});
    print_row("CUDA", tried.ok(), tried.ok() ? text_of(gpu) : tried.error().message);
    const ProcessorPlan place = plan_processors(near_gpu(env, gpu), env.processes().own_processors());
    if (!place.description.empty())
      print_row("NUMA", place.problem.empty(), place.problem.empty() ? place.description : place.problem);
    if (nvml.ok()) {
      const Result<GpuReadings> health = (*nvml)->read(gpu.pci_bus_id);
      print_row("GPU health", health.ok(), health.ok() ? text_of(*health) : health.error().message);
    }
    if (!tried.ok()) continue;
    const Result<std::string> own = cuda->module->try_own_instructions(gpu.ordinal);
    if (!own.ok() || !own->empty())
      print_row("instructions", own.ok(), own.ok() ? *own : own.error().message);
  }
}

// Device that the config requests, where the config is valid; otherwise the one that an empty config gets.
struct DeviceRequest {
  Config config = {};
  Origins origin = {};
  bool lists_kernels = false;
};

Result<void> print_device(Env& env, const DeviceRequest& request) {
  Config config = request.config;
  config.elastic.memory_timeout_ms = 0;  // the command prints the present state
  resolve_device(env, config);
  HF_TRY(const std::unique_ptr<Device> device, make_device(env, config, request.origin, {}));
  HF_TRY(const KernelRegistry* registry, registry_of_device(env, config));
  print_row("device", true, device->description());
  if (!request.lists_kernels) return {};
  fmt::print("kernels\n");
  HF_TRY(const KernelRequest kernels, kernel_request(env, config.kernels));
  for (const std::string& line : kernel_lines(device->kernels(), *registry, kernels.isa))
    fmt::print("  {}\n", line);
  return {};
}

void print_machine(Env& env, const DeviceRequest& request) {
  fmt::print("this machine\n");
  for (const MachineFact& fact : machine_facts(env)) print_row(fact.name, fact.there, fact.detail);
  print_gpus(env);
  print_mpi();
  print_slurm(env);
  const Result<void> printed = print_device(env, request);
  if (!printed.ok()) print_row("device", false, printed.error().message);
}

// Returns the activation memory that each training.recompute would keep for backward, on the stage that keeps
// most; the configured one is first.
std::string activation_memory(const Config& config, const ModelSpec& spec) {
  const BatchShapeBT microbatch{.batch = config.training.microbatch_size,
                                .sequence_length = config.training.sequence_length};
  const LaneSchedule lanes(static_cast<int>(config.parallel.lanes),
                           std::max(1, static_cast<int>(config.parallel.data)));
  std::string chosen, others;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    std::uint64_t largest_bytes = 0;
    for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
      const StageSchedule schedule = stage_schedule(config, lanes, /*data_rank=*/0, stage);
      const std::vector<ModelPart> parts = parts_of_stage(spec, config, stage);
      MemoryPlan plan;
      for (std::size_t chunk = 0; chunk < parts.size(); ++chunk) {
        const StageShape shape{
            .part = parts[chunk],
            .microbatches_in_flight = schedule.activation_buffers[chunk],
            .weight_gradients_pending = schedule.weight_gradient_buffers[chunk],
            .tensor = share_of(spec.tensor_lanes, 0, static_cast<int>(config.parallel.tensor))};
        const ActivationMemory memory(spec, microbatch, /*train=*/true, recompute, shape, plan);
      }
      largest_bytes = std::max(largest_bytes, plan.total_bytes());
    }
    const std::string size = format_bytes(largest_bytes);
    if (recompute == recompute_of(config)) {
      chosen = fmt::format("{} {}per rank with training.recompute = \"{}\"", size,
                           config.parallel.pipeline > 1 ? "at most " : "", name_of(recompute));
    } else {
      others += fmt::format(", {} with \"{}\"", size, name_of(recompute));
    }
  }
  return chosen + others;
}

// Returns the device of a run, for a resolved config.
std::string device_of_run(Env& env, const Config& config) {
  if (config.device == "cpu") return "cpu";
  const Result<CudaPresence> cuda = find_cuda(env);
  if (!cuda.ok()) return cuda.error().message;
  if (cuda->devices.size() == 1) return "cuda, " + text_of(cuda->devices.front());
  return fmt::format("cuda, {} GPUs, which the ranks of a host take in turn; the first is {}",
                     cuda->devices.size(), text_of(cuda->devices.front()));
}

// Returns whether RAM snapshots outlive the run's processes on this host, if all its ranks are here. Without
// that, only a copy in ordinary memory remains, for saves to disk.
std::string ram_tier(Env& env, std::uint64_t state_bytes) {
  constexpr const char* off = "no: the run goes on without them; ";
  if (const std::string removal = shared_memory_removal(env); !removal.empty()) return off + removal;
  const Result<std::uint64_t> free_bytes = env.free_bytes(shared_memory_directory);
  if (!free_bytes.ok()) return off + free_bytes.error().message;
  const std::uint64_t needed = SnapshotMemory::shared_slots * state_bytes;
  const std::string room =
      fmt::format("{} of {} with all ranks on one host, {} free here", format_bytes(needed),
                  shared_memory_directory, format_bytes(*free_bytes));
  if (needed <= *free_bytes) return room;
  return fmt::format("{}{}; make it larger (mount -o remount,size=..., or --shm-size of a container)", off,
                     room);
}

void print_run(Env& env, const Config& config) {
  const ModelSpec spec = make_model_spec(config);
  const TrainingConfig& training = config.training;
  const std::int64_t tokens = config.parallel.lanes * training.microbatches_per_lane *
                              training.microbatch_size * training.sequence_length;
  fmt::print("this run\n");
  fmt::print(
      "  model        {} style, {} layers, width {}, {} heads ({} key/value), vocabulary {}: {} parameters\n",
      config.model.style, spec.layers, spec.width, spec.heads, spec.kv_heads, spec.vocabulary,
      parameter_count(spec));
  const std::int64_t replica = config.parallel.pipeline * config.parallel.tensor;  // ranks of one copy
  fmt::print("  steps        {} of {} tokens, in {} lanes ({} to {} ranks)\n", training.steps, tokens,
             config.parallel.lanes, replica, config.parallel.lanes * replica);
  fmt::print("  device       {}\n", device_of_run(env, config));
  fmt::print("  activations  {}\n", activation_memory(config, spec));
  const std::uint64_t bytes = state_bytes(spec, config.optimizer);
  const CheckpointNumbers most = most_checkpoints(config);
  fmt::print("  checkpoint   {}, up to {} at once; holdfast plan has the bytes\n", format_bytes(bytes),
             most.all());
  if (config.checkpoint.ram_every_steps != 0) fmt::print("  RAM snapshot {}\n", ram_tier(env, bytes));
}

void print_data(const RunSetup& setup) {
  if (setup.data == nullptr && setup.text.empty()) return;
  fmt::print("data\n");
  for (const SourceTokens& tokens : setup.text) {
    if (tokens.made.has_value()) {
      fmt::print("  tokenized    {}: {}; in {}\n", tokens.source.path, text_of(*tokens.made),
                 tokens.directory);
    } else {
      fmt::print("  to tokenize  {} ({}) with {} of {} tokens: the start makes {}\n", tokens.source.path,
                 format_bytes(tokens.text_bytes), tokens.source.tokenizer, tokens.vocabulary,
                 tokens.directory);
    }
  }
  if (setup.data == nullptr) return;
  fmt::print("  training     {} tokens, {} samples\n", setup.data->token_count(), setup.data->sample_count());
  if (setup.held_out.has_value()) fmt::print("  held out     {} microbatches\n", setup.held_out->batches());
}

// Prints what the run will have used of each source by its last step. A warning follows for one that is repeated often.
void print_blend(const Config& config, const DataSet& data) {
  // Text that is repeated up to four times is nearly as good as new text (Muennighoff et al., Scaling data-constrained
  // language models, 2023).
  constexpr double epochs_max = 4.0;
  constexpr std::uint64_t positions_max = std::uint64_t{1} << 26;  // some seconds
  const TrainingConfig& training = config.training;
  const auto all = static_cast<std::uint64_t>(training.steps * config.parallel.lanes *
                                              training.microbatches_per_lane * training.microbatch_size);
  SourceCounts counts(data.order(config.run.seed));
  const std::span<const std::uint64_t> used = counts.used_before(all, {}, positions_max);
  const std::vector<std::uint64_t> samples = data.samples_of_sources();
  for (std::size_t i = 0; i < used.size(); ++i) {
    const double epochs = static_cast<double>(used[i]) / static_cast<double>(samples[i]);
    const std::string& path = config.data.sources[i].path;
    fmt::print(
        "  source       {}: {} samples, of which step {} will have used {}: {:.2f} epochs, {:.1f} % of all\n",
        path, samples[i], training.steps, used[i], epochs,
        100.0 * static_cast<double>(used[i]) / static_cast<double>(std::max<std::uint64_t>(all, 1)));
    if (epochs <= epochs_max) continue;
    print_message(
        "{} is used {:.1f} times by step {}: text that is repeated more than some {:.0f} times teaches a "
        "model little more; give the source less weight or more text, or make fewer steps",
        path, epochs, training.steps, epochs_max);
  }
}

// Prints the largest token of each source of tokens: of all of it up to 16 Mi tokens, else of 256 pieces of 16,384 evenly spaced in it.
// ExitCode::data where the vocabulary has no such token.
Result<void> print_largest_tokens(Env& env, const Config& config) {
  constexpr Pieces pieces = {
      .piece = std::uint64_t{1} << 14, .whole_max = std::uint64_t{1} << 24, .spread = 256};
  const std::int64_t vocabulary = config.model.vocabulary;
  for (const SourceConfig& source : config.data.sources) {
    if (source.format == "text" || source.format == "jsonl") continue;  // bytes, or told above
    HF_TRY(const std::unique_ptr<TokenSource> tokens,
           TokenSource::open(env, source, config.training.sequence_length));
    std::vector<std::int32_t> buffer(pieces.piece);
    std::int32_t largest = 0;
    const auto look = [&](std::uint64_t first, std::uint64_t count) -> Result<void> {
      const std::span<std::int32_t> piece = std::span(buffer).first(count);
      HF_TRY_VOID(tokens->read(first, piece, /*vocabulary=*/0));
      largest = std::max(largest, *std::ranges::max_element(piece));
      return {};
    };
    HF_TRY_VOID(for_pieces(tokens->token_count(), pieces, look));
    const bool is_whole = tokens->token_count() <= pieces.whole_max;
    fmt::print("  tokens       {}: {}, the largest {} of 0 to {}{}\n", source.path, tokens->token_count(),
               largest, vocabulary - 1,
               is_whole ? "" : fmt::format(" in {} pieces of {}", pieces.spread, pieces.piece));
    if (largest < vocabulary) continue;
    return fail(ExitCode::data,
                "{} has the token {}, but the vocabulary has {} entries; set model.vocabulary to more than "
                "{}, or use "
                "data made with this model's tokenizer",
                source.path, largest, vocabulary, largest);
  }
  return {};
}

// Prints how a start would differ from what the run directory has.
void print_start(const RunSetup& setup) {
  const StartPoint& start = setup.start;
  for (const std::string& note : start.notes) print_message("checkpoint skipped: {}", note);
  if (!start.checkpoint.empty())
    fmt::print("  resumes      from {} (step {})\n", start.checkpoint, start.step);
  if (!start.begins.empty())
    fmt::print("  generation   a new one begins there: {}\n", printable(start.begins));
  for (const KernelFault& each : setup.left_out) fmt::print("  left out     {}\n", printable(text_of(each)));
  for (const std::string& change : setup.changes.lines) fmt::print("  changes      {}\n", printable(change));
}

// Does what train would do up to the first step, with one copy of the model unless parallel.data says more.
Result<void> check_run(Env& env, const std::string& path, const std::vector<std::string>& arguments,
                       DeviceRequest& request) {
  HF_TRY(const std::vector<Override> overrides, parse_overrides(arguments));
  const Result<LoadedConfig> loaded = load_config(env, path, overrides);
  RunSetup setup;
  const Result<void> prepared = prepare_alone(env, loaded, {.mode = PrepareMode::check}, setup);
  if (loaded.ok() && setup.step != PrepareStep::device_check) {
    request.config = loaded->config;
    request.config.device = setup.config.device;
    request.origin = loaded->origin;
  }
  if (setup.step > PrepareStep::kernels) request.config.kernels = setup.config.kernels;
  print_data(setup);
  if (setup.step > PrepareStep::layout) print_run(env, setup.config);
  if (setup.step > PrepareStep::layout && setup.data != nullptr) print_blend(setup.config, *setup.data);
  if (!prepared.ok()) return prepared;
  print_start(setup);
  return setup.data == nullptr ? Result<void>() : print_largest_tokens(env, setup.config);
}

}  // namespace

int run_check_command(const std::vector<std::string>& words) {
  if (wants_help(words)) {
    fmt::print("{}", check_usage);
    return 0;
  }
  Result<void> run;
  DeviceRequest request;
  std::vector<std::string> arguments = words;
  request.lists_kernels = std::erase(arguments, "--kernels") > 0;
  const bool has_config = !arguments.empty() && !arguments.front().starts_with("--");
  if (has_config)
    run = check_run(posix_env(), arguments.front(), {arguments.begin() + 1, arguments.end()}, request);
  if (!has_config && !arguments.empty())
    run = fail(ExitCode::config, "check needs the config file before its overrides\n{}", check_usage);
  print_machine(posix_env(), request);
  std::fflush(stdout);
  return run.ok() ? 0 : complain(run.error());
}

}  // namespace holdfast::cli
