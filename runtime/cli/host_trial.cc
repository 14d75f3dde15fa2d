#include "runtime/cli/host_trial.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "parallel/local/local_communicator.h"
#include "runtime/cli/common/program.h"
#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/core/digest.h"
#include "runtime/core/random.h"
#include "runtime/core/units.h"
#include "runtime/data/data_set.h"
#include "runtime/device/nvml.h"
#include "runtime/elastic/join.h"
#include "runtime/health/health_judge.h"
#include "runtime/health/host_sources.h"
#include "runtime/model/spec.h"
#include "runtime/os/background_job.h"
#include "runtime/os/machine_facts.h"
#include "runtime/os/paths.h"
#include "runtime/rank/device_choice.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/save.h"
#include "runtime/train/step.h"
#include "runtime/train/worker.h"

namespace holdfast::cli {
namespace {

constexpr const char* default_run = R"(
[run]
directory = "."
[model]
preset = "llama-15m"
[data]
sources = [{path = "made up", format = "text"}]
[training]
steps = 1000000
sequence_length = 64
microbatch_size = 4
[parallel]
lanes = 1
)";

// A step has at most so many operations: a second on two processors, or on a GPU; larger shapes are cut.
constexpr double max_cpu_flops = 1e11, max_gpu_flops = 2e13;
constexpr int steps_of_round = 4;
constexpr std::uint64_t memory_tried_bytes = std::uint64_t{128} << 20;
constexpr std::uint64_t disk_tried_bytes = std::uint64_t{32} << 20, disk_piece_bytes = std::uint64_t{4} << 20;
constexpr int small_writes = 9;

// A temporary file is removed with its object.
class TemporaryFile {
 public:
  TemporaryFile(Env& env, const std::string& folder)
      : env_(&env), path_(fmt::format("{}/holdfast-preflight-{:016x}", folder, env.random_u64())) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { static_cast<void>(env_->remove(path_).ok()); }  // nothing depends on it
  const std::string& path() const { return path_; }

 private:
  Env* env_;
  std::string path_;
};

std::string made_up_bytes(std::uint64_t count, std::uint64_t key) {
  const RandomStream stream(key, 0);
  std::string bytes(count, '\0');
  for (std::uint64_t i = 0; i < count; ++i)
    bytes[i] = static_cast<char>(static_cast<int>(stream.uniform(i) * 256.0));
  return bytes;
}

double flops_of_step(const Config& config) {
  const TrainingConfig& training = config.training;
  return flops_per_token(make_model_spec(config), training.sequence_length) *
         static_cast<double>(training.microbatches_per_lane * training.microbatch_size *
                             training.sequence_length);
}

// Halves what a step has until it takes about a second; equal on all hosts.
void cut_to_size(Config& config) {
  const double most = config.device == "cpu" ? max_cpu_flops : max_gpu_flops;
  const auto halve = [&](std::int64_t& count, std::int64_t least) {
    while (flops_of_step(config) > most && count / 2 >= least) count /= 2;
  };
  TrainingConfig& training = config.training;
  halve(training.microbatches_per_lane, 1);
  halve(training.microbatch_size, 1);
  halve(config.model.layers, 1);
}

// TrialRun is the run that is tried: one rank and lane of the run's shapes, on made-up data.
struct TrialRun {
  Config config = {};
  std::unique_ptr<TemporaryFile> tokens = {};
  std::shared_ptr<DataSet> data = {};
  std::string run_directory = {};
  std::string test = {};  // digest of what decides the bits and the rate beside the device
};

// Checks of numbers are off: they would mend what is to be found.
Result<TrialRun> load_trial_run(Env& env, const TrialQuestion& question) {
  HF_TRY(const std::vector<Override> overrides, parse_overrides(question.overrides));
  HF_TRY(const LoadedConfig loaded,
         question.config.empty() ? load_config_text(env, default_run, "the default of preflight", overrides)
                                 : load_config(env, question.config, overrides));
  TrialRun run{.config = loaded.config};
  Config& config = run.config;
  run.run_directory = std::exchange(config.run.directory, "none");
  HF_TRY_VOID(check_device(env, config, loaded.origin));
  resolve_device(env, config);
  constexpr std::int64_t gpt2_vocabulary = 50'257;
  if (config.model.preset.empty() && config.model.vocabulary == 0)
    config.model.vocabulary = config.data.sources.front().format == "text" ? 256 : gpt2_vocabulary;
  const std::string folder = env.variable("TMPDIR").empty() ? "/tmp" : env.variable("TMPDIR");
  run.tokens = std::make_unique<TemporaryFile>(env, folder);
  const auto bytes = static_cast<std::uint64_t>(64 * (config.training.sequence_length + 1) *
                                                std::max<std::int64_t>(config.training.microbatch_size, 1));
  HF_TRY_VOID(env.replace_text(run.tokens->path(), made_up_bytes(bytes, 1)));
  config.data = {};
  config.data.sources = {{.path = run.tokens->path(), .format = "text"}};
  config.parallel.lanes = config.parallel.data = config.parallel.tensor = config.parallel.pipeline = 1;
  config.parallel.pipeline_chunks = 1;
  config.elastic.spares = 0;
  config.checkpoint.ram_every_steps = 0;
  config.evaluation.every_steps = 0;
  config.trace.steps = 0;
  config.verdict.preset = config.health.preset = "off";
  config.verdict.on_spike = config.verdict.on_drift = "tell";
  config.verdict.on_nonfinite = "stop";
  config.verdict.on_wrong_rank = "continue";
  config.verdict.audit_every_steps = 0;
  HF_TRY(run.data, DataSet::open(env, config.data.sources, config.training.sequence_length));
  HF_TRY_VOID(elastic::resolve_with_data(config, 1, *run.data));
  config.model.preset.clear();
  cut_to_size(config);
  Config key;
  key.device = config.device;
  key.model = config.model;
  key.training = config.training;
  key.optimizer = config.optimizer;
  key.kernels = config.kernels;
  key.run.seed = config.run.seed;
  key.parallel.tensor_lanes = config.parallel.tensor_lanes;
  run.test = to_hex(digest_of(dump_config(key) + program_digest(env))).substr(0, 16);
  return run;
}

// KnownSteps makes rounds of steps from one state, whose bits must be the same in each.
class KnownSteps {
 public:
  KnownSteps(Env& env, const TrialRun& run, FaultPoints& faults)
      : env_(env), run_(run), faults_(faults), communicators_(make_local_communicators(1)) {}

  Result<void> prepare(const DeviceShare& share) {
    HF_TRY(device_, make_device(env_, run_.config, {}, share));
    HF_TRY(worker_, Worker::create({.rank = {{.env = env_,
                                              .faults = faults_,
                                              .communicator = *communicators_.front(),
                                              .ranks_on_host = 1},
                                             *device_,
                                             run_.config,
                                             mesh_of(run_.config, 1)},
                                    .data = run_.data}));
    begin_ = worker_->state();
    return {};
  }

  // Returns the digest of all numbers of a round, and of the state at its end; adds the time of its steps.
  Result<Digest> round(std::int64_t& steps_ns) {
    worker_->state() = begin_;
    StateView& view = worker_->state_view();
    view.is_zero = false;  // the round before has written it
    HF_TRY_VOID(initialize_weights(view));
    HF_TRY_VOID(worker_->start_loader());
    DigestStream numbers;
    device_->synchronize();
    const std::int64_t begin_ns = env_.monotonic_ns();
    for (int step = 0; step < steps_of_round; ++step) {
      HF_TRY(const StepOutcome outcome, run_step(*worker_, {}));
      if (outcome.ends_steps) return fail(ExitCode::numerics, "{}", outcome.verdict->reason);
      HF_TRY_VOID(outcome.gathers);
      numbers.add(std::bit_cast<std::uint64_t>(outcome.loss));
      numbers.add(std::bit_cast<std::uint64_t>(outcome.grad_norm));
    }
    HF_TRY_VOID(worker_->parameter_gather().finish());
    device_->synchronize();
    steps_ns += env_.monotonic_ns() - begin_ns;
    HF_TRY_VOID(device_->status());
    for (const OwnedState& piece : view.optimizer.state()) {
      const std::span<std::byte> bytes = bytes_of_state(piece);
      for (std::size_t at = 0; at < bytes.size(); at += HostAccess::buffer_bytes)
        numbers.add(access().to_read(
            bytes.subspan(at, std::min<std::size_t>(HostAccess::buffer_bytes, bytes.size() - at))));
    }
    return numbers.finish();
  }

  // Writes patterns into memory that is not used, and counts the bytes that do not hold them.
  Result<std::uint64_t> wrong_bytes(std::uint64_t count) {
    HF_TRY(const OwnedMemory memory, device_->allocate(MemoryKind::device, count));
    const std::span<std::byte> all(memory.get(), count);
    std::uint64_t wrong = 0;
    for (const std::uint64_t mask : {std::uint64_t{0}, ~std::uint64_t{0}}) {
      const auto pattern = [&](std::uint64_t word) { return (word * 0x9e3779b97f4a7c15U) ^ mask; };
      each_piece(all, [&](std::uint64_t begin, std::span<std::byte> piece) {
        const std::span<std::byte> target = access().to_write(piece);
        auto* const words = reinterpret_cast<std::uint64_t*>(target.data());
        for (std::uint64_t i = 0; i < target.size() / sizeof(std::uint64_t); ++i)
          words[i] = pattern(begin / sizeof(std::uint64_t) + i);
        access().flush();
      });
      each_piece(all, [&](std::uint64_t begin, std::span<std::byte> piece) {
        const std::span<const std::byte> read = access().to_read(piece);
        const auto* const words = reinterpret_cast<const std::uint64_t*>(read.data());
        for (std::uint64_t i = 0; i < read.size() / sizeof(std::uint64_t); ++i) {
          std::uint64_t differs = words[i] ^ pattern(begin / sizeof(std::uint64_t) + i);
          for (; differs != 0; differs >>= 8) wrong += (differs & 0xff) != 0 ? 1 : 0;
        }
      });
    }
    HF_TRY_VOID(device_->status());
    return wrong;
  }

  std::string kind() const { return device_->identity(precision_of(run_.config)); }
  std::int64_t tokens_of_round() const {
    return steps_of_round * static_cast<std::int64_t>(worker_->workload().tokens_per_step());
  }

 private:
  HostAccess& access() { return worker_->rank().host_access; }
  template <typename Do>
  static void each_piece(std::span<std::byte> all, const Do& act) {
    for (std::uint64_t at = 0; at < all.size(); at += HostAccess::buffer_bytes)
      act(at, all.subspan(at, std::min<std::uint64_t>(HostAccess::buffer_bytes, all.size() - at)));
  }

  Env& env_;
  const TrialRun& run_;
  FaultPoints& faults_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Worker> worker_;
  RunState begin_;
};

// The first round is not timed: its pages and clocks are cold.
Result<void> run_trial(Env& env, const TrialRun& run, const DeviceShare& share, std::int64_t milliseconds,
                       FaultPoints& faults, DeviceTrial& trial) {
  KnownSteps steps(env, run, faults);
  HF_TRY_VOID(steps.prepare(share));
  trial.kind = steps.kind();
  std::map<std::string, std::int64_t> digests;
  std::int64_t cold_ns = 0, steps_ns = 0;
  const std::int64_t until_ns = env.monotonic_ns() + milliseconds * 1'000'000;
  for (; trial.rounds < 2 || env.monotonic_ns() < until_ns; ++trial.rounds) {
    HF_TRY(const Digest digest, steps.round(trial.rounds == 0 ? cold_ns : steps_ns));
    ++digests[to_hex(digest)];
  }
  const auto most = std::ranges::max_element(digests, {}, [](const auto& each) { return each.second; });
  trial.digest = most->first;
  trial.other_rounds = trial.rounds - most->second;
  trial.tokens_per_s = static_cast<double>((trial.rounds - 1) * steps.tokens_of_round()) /
                       (static_cast<double>(std::max<std::int64_t>(steps_ns, 1)) * 1e-9);
  const std::uint64_t free_bytes = available_memory_bytes(env).value_or(memory_tried_bytes);
  const std::uint64_t tried =
      std::min(memory_tried_bytes, free_bytes / 8) / sizeof(std::uint64_t) * sizeof(std::uint64_t);
  if (tried == 0) return {};
  HF_TRY(trial.wrong_bytes, steps.wrong_bytes(tried));
  trial.memory_bytes = tried;
  return {};
}

// Tries all devices at once, as a run uses them.
Result<std::vector<DeviceTrial>> try_devices(Env& env, const TrialRun& run, const TrialQuestion& question) {
  HF_TRY(const std::unique_ptr<FaultPoints> faults,
         FaultPoints::parse(env.variable("HOLDFAST_FAULTS"), static_cast<int>(question.place), env));
  std::size_t count = 1;
  if (run.config.device != "cpu") {
    HF_TRY(const CudaPresence cuda, find_cuda(env));
    count = cuda.devices.size();
    if (question.ranks > 0) count = std::min(count, static_cast<std::size_t>(question.ranks));
  }
  std::vector<DeviceTrial> trials(count);
  std::vector<std::unique_ptr<BackgroundJob<bool>>> jobs;
  for (std::size_t i = 0; i < count; ++i) {
    const DeviceShare share{.threads = std::max(1, env.processor_count() / static_cast<int>(count)),
                            .place = {.rank_on_host = static_cast<int>(i)}};
    trials[i].device = hardware_name(env, run.config, share.place);
    jobs.push_back(std::make_unique<BackgroundJob<bool>>());
    jobs.back()->start(env, "preflight", [&, share, i]() -> Result<bool> {
      HF_TRY_VOID(run_trial(env, run, share, question.milliseconds, *faults, trials[i]));
      return true;
    });
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Result<bool> done = jobs[i]->take();
    if (!done.ok()) trials[i].trouble = done.error().message;
  }
  return trials;
}

// Returns the run directory, or of its parents the one that is there.
Result<std::string> existing_directory(Env& env, std::string path) {
  if (!path.starts_with('/')) path = working_directory() + "/" + path;
  while (true) {
    HF_TRY(const FileStatus status, env.status(path));
    if (status.exists && status.directory) return real_path(path);
    const std::size_t slash = path.rfind('/');
    if (slash == 0 || slash == std::string::npos) return std::string("/");
    path.resize(slash);
  }
}

Result<void> measure_disk(Env& env, DiskTrial& disk) {
  const auto seconds_since = [&](std::int64_t begin_ns) {
    return static_cast<double>(std::max<std::int64_t>(env.monotonic_ns() - begin_ns, 1)) * 1e-9;
  };
  const double megabytes = static_cast<double>(disk_tried_bytes) * 1e-6;
  const TemporaryFile name(env, disk.directory), small_name(env, disk.directory);
  const std::string piece = made_up_bytes(disk_piece_bytes, 2);
  std::int64_t begin_ns = env.monotonic_ns();
  HF_TRY(const std::unique_ptr<File> file, env.open(name.path(), OpenMode::create));
  for (std::uint64_t at = 0; at < disk_tried_bytes; at += disk_piece_bytes)
    HF_TRY_VOID(file->write_at(at, std::as_bytes(std::span(piece))));
  HF_TRY_VOID(file->sync());
  disk.write_MB_per_s = megabytes / seconds_since(begin_ns);
  file->drop_cached();
  HF_TRY(const std::unique_ptr<File> again, env.open(name.path(), OpenMode::read));
  std::string read(disk_piece_bytes, '\0');
  begin_ns = env.monotonic_ns();
  for (std::uint64_t at = 0; at < disk_tried_bytes; at += disk_piece_bytes) {
    HF_TRY_VOID(again->read_at(at, std::as_writable_bytes(std::span(read))));
    if (read != piece)
      return fail(ExitCode::checkpoint, "what was written at {} came back changed", format_bytes(at));
  }
  disk.read_MB_per_s = megabytes / seconds_since(begin_ns);
  HF_TRY(const std::unique_ptr<File> small, env.open(small_name.path(), OpenMode::create));
  std::array<double, small_writes> sync_ms{};
  for (std::size_t i = 0; i < sync_ms.size(); ++i) {
    begin_ns = env.monotonic_ns();
    HF_TRY_VOID(small->write_at(i * 4096, std::as_bytes(std::span(piece)).first(4096)));
    HF_TRY_VOID(small->sync());
    sync_ms[i] = seconds_since(begin_ns) * 1e3;
  }
  std::ranges::sort(sync_ms);
  disk.sync_ms = sync_ms[sync_ms.size() / 2];
  return {};
}

DiskTrial try_disk(Env& env, const std::string& run_directory) {
  DiskTrial disk{.directory = run_directory};
  const auto outcome = [&]() -> Result<void> {
    HF_TRY(disk.directory, existing_directory(env, run_directory));
    return measure_disk(env, disk);
  }();
  if (!outcome.ok()) disk.trouble = outcome.error().message;
  return disk;
}

// Looks at the sensors once more, and keeps the hottest reading.
void look(HostSources& sources, HealthJudge& judge, HostTrials& trials) {
  for (const HealthReading& reading : sources.look()) {
    if (reading.name == "temperature_C" && reading.value.has_value())
      trials.hottest_C = std::max(trials.hottest_C.value_or(*reading.value), *reading.value);
    for (const HealthFinding& finding : judge.take(reading)) {
      if (finding.action >= HealthAction::drain) trials.findings.push_back(finding.sentence);
    }
  }
}

}  // namespace

Result<HostTrials> try_host(Env& env, const TrialQuestion& question) {
  HostTrials trials{
      .version = build_version(), .program = program_digest(env), .begun_us = env.wall_time_us()};
  if (!question.directory.empty()) HF_TRY_VOID(enter_directory(question.directory));
  HF_TRY(const TrialRun run, load_trial_run(env, question));
  trials.test = run.test;
  HealthJudge judge;
  HostSources sources(env, {.disks = {"."}}, nvml_reader());
  look(sources, judge, trials);
  trials.hottest_C.reset();
  HF_TRY(trials.devices, try_devices(env, run, question));
  look(sources, judge, trials);
  trials.disk = try_disk(env, run.run_directory);
  trials.ended_us = env.wall_time_us();
  return trials;
}

}  // namespace holdfast::cli
