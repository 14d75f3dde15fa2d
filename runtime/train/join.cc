#include "runtime/train/join.h"

#include <algorithm>

#include "parallel/agreement.h"
#include "runtime/config/option_value.h"
#include "runtime/model/spec.h"
#include "runtime/train/kernel_choice.h"

namespace holdfast {
namespace {

constexpr std::int64_t verify_timeout_ms = 3'600'000;

Result<void> agree(const TrainInputs& inputs, const Waiter& waiter, const Result<void>& mine) {
  return agree_on_outcome(inputs.communicator, waiter, mine, inputs.env.host_name());
}

int threads_of_rank(const TrainInputs& inputs, const Config& config) {
  if (config.threads > 0) return static_cast<int>(config.threads);
  return std::max(1, inputs.env.processor_count() / std::max(1, inputs.ranks_on_host));
}

Result<StartPoint> claim_and_choose(Env& env, const Config& config, std::unique_ptr<FileLock>& lock) {
  HF_TRY(lock, claim_run_directory(env, {config.run.directory}));
  HF_TRY(StartPoint start, choose_start(env, config));
  start.writer = env.random_u64();
  return start;
}

}  // namespace

Result<Config> join_config(const TrainInputs& inputs, const Waiter& waiter) {
  HF_FAULT_POINT(inputs.faults, "start.before_join");
  HF_TRY_VOID(agree(inputs, waiter, outcome_of(inputs.config)));
  const Config& config = inputs.config->config;
  std::vector<Fact> facts = {{"program", inputs.build}};
  for (const Option& option : option_registry()) {
    facts.push_back({std::string(option.key), value_text(option, config)});
  }
  HF_TRY_VOID(agree_on_facts(inputs.communicator, waiter, facts));
  HF_FAULT_POINT(inputs.faults, "start.after_join");
  return config;
}

Result<StartPoint> join_start(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                              std::unique_ptr<FileLock>& lock) {
  Result<StartPoint> chosen = StartPoint{};
  if (inputs.communicator.rank() == 0) chosen = claim_and_choose(inputs.env, config, lock);
  // Rank 0 may wait for another writer, and then verifies every byte of the newest checkpoint.
  const Waiter patient = waiter.with_timeout(waiter.timeout_ms() + verify_timeout_ms);
  HF_TRY_VOID(agree(inputs, patient, outcome_of(chosen)));
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(inputs.communicator, waiter, to_text(*chosen)));
  return start_from_text(texts.front());
}

Result<std::shared_ptr<DataSet>> join_data(const TrainInputs& inputs, const Waiter& waiter,
                                           const Config& config) {
  Result<std::shared_ptr<DataSet>> data = DataSet::open(
      inputs.env, config.data.sources, config.training.sequence_length, data_options(config.data));
  HF_TRY_VOID(agree(inputs, waiter, outcome_of(data)));
  HF_TRY_VOID(agree_on_facts(inputs.communicator, waiter, {{"data", to_hex((*data)->fingerprint())}}));
  return data;
}

Result<void> resolve_with_data(Config& config, int ranks, const DataSet& data) {
  if (config.device == "auto") config.device = "cpu";
  if (config.model.vocabulary == 0 && config.model.preset.empty()) {
    HF_TRY(config.model.vocabulary, data.vocabulary_of_format());
  }
  return resolve_config(config, ranks, data.vocabulary_needed());
}

Result<void> check_device(const Config& config) {
  if (config.device != "cuda") return {};
  return fail(ExitCode::config,
              "device = \"cuda\", but this build of holdfast has no CUDA device; use \"cpu\" or \"auto\"");
}

Result<std::unique_ptr<Device>> join_device(const TrainInputs& inputs, const Waiter& waiter,
                                            const Config& config) {
  HF_TRY_VOID(check_device(config));
  const KernelRequest kernels = kernel_request(config.kernels, inputs.config->origin);
  HF_TRY_VOID(agree(inputs, waiter, settle_kernels(kernels)));
  std::unique_ptr<Device> device = make_cpu_device(
      {.threads = threads_of_rank(inputs, config), .isa = kernels.isa, .kernels = kernels.wishes});
  HF_TRY_VOID(
      agree_on_facts(inputs.communicator, waiter, {{"device", device->identity(precision_of(config))}}));
  return device;
}

}  // namespace holdfast
