#include "runtime/elastic/join.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "kernels/plugin_loader.h"
#include "kernels/product_plan.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "parallel/group/buddies.h"
#include "runtime/config/document.h"
#include "runtime/config/option_value.h"
#include "runtime/core/digest.h"
#include "runtime/model/spec.h"
#include "runtime/os/console.h"
#include "runtime/os/processes.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/processor_binding.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/disk_tier.h"

namespace holdfast::elastic {
namespace {

Result<void> agree(const TrainInputs& inputs, const Waiter& waiter, const Result<void>& mine) {
  return agree_on_outcome(inputs.communicator, waiter, mine, inputs.env.host_name());
}

// Agrees on what each rank has examined for itself: the same input on all of them, but for its device.
Result<void> agree_on_own(const TrainInputs& inputs, const Waiter& waiter, const Result<void>& mine,
                          Examined examined = Examined::same) {
  return agree_on_fitness(inputs.communicator, waiter, mine, inputs.env.host_name(), examined);
}

// EarlierStarts holds what the host of a rank shows of earlier starts of the run.
struct EarlierStarts {
  bool knows_directory = false;  // the config of this rank names one
  bool sees_run = false, is_local = false;
  std::string host = {};  // Env::host_id()

  static void visit_fields(auto& self, auto&& visit) {
    visit("knows_directory", self.knows_directory);
    visit("sees_run", self.sees_run);
    visit("is_local", self.is_local);
    visit("host", self.host);
  }
};

Result<EarlierStarts> earlier_starts(const TrainInputs& inputs) {
  EarlierStarts seen{.host = inputs.env.host_id()};
  if (!inputs.config.ok()) return seen;
  const RunPaths paths{inputs.config->config.run.directory};
  seen.knows_directory = true;
  const auto exists = [&](const std::string& path) {
    return try_storage(inputs, "the run directory", [&]() -> Result<bool> {
      HF_TRY(const FileStatus status, inputs.env.status(path));
      return status.exists;
    });
  };
  HF_TRY(seen.sees_run, exists(paths.config()));
  HF_TRY(seen.is_local, exists(paths.place_name()));
  return seen;
}

void say_note(const std::string& note) {
  if (!note.empty()) print_message("{}", note);
}

}  // namespace

Result<bool> join_earlier_starts(const TrainInputs& inputs, const Waiter& waiter) {
  const Result<EarlierStarts> mine = earlier_starts(inputs);
  HF_TRY_VOID(agree_on_own(inputs, waiter, outcome_of(mine)));
  HF_TRY(const std::vector<EarlierStarts> all, gather(inputs.communicator, waiter, *mine));
  const bool has_begun = std::ranges::any_of(all, &EarlierStarts::sees_run);
  // A directory that ranks of several hosts see, and that is not local to each, is shared by all. One that is seen on a
  // single host alone may be local to it.
  std::set<std::string> hosts;
  for (const EarlierStarts& one : all) {
    if (one.sees_run && !one.is_local) hosts.insert(one.host);
  }
  const bool is_shared = hosts.size() > 1;
  Result<void> sees;
  if (is_shared && mine->knows_directory && !mine->sees_run) {
    sees = with_reach(Reach::host, fail(ExitCode::checkpoint,
                                        "run.directory {} is not on this host what it is on others: it has "
                                        "no config.toml of this run; mount "
                                        "it here, as on the other hosts",
                                        inputs.config->config.run.directory));
  }
  HF_TRY_VOID(agree_on_own(inputs, waiter, sees));
  return has_begun;
}

Result<Config> join_config(const TrainInputs& inputs, const Waiter& waiter, Difference difference) {
  HF_FAULT_POINT(inputs.faults, "start.before_join");
  if (difference == Difference::most_go_on) {
    HF_TRY_VOID(agree_on_own(inputs, waiter, outcome_of(inputs.config)));
  } else {
    HF_TRY_VOID(agree(inputs, waiter, outcome_of(inputs.config)));
  }
  const Config& config = inputs.config->config;
  std::vector<Fact> facts = {{"program", inputs.build}};
  for (const Option& option : option_registry()) {
    const std::string value = value_text(option, config);
    const std::string reported =  // in the facts of all ranks, and in the error that ranks differ
        is_command(option.key) ? "a command of digest " + to_hex(digest_of(value)) : value;
    facts.push_back({std::string(option.key), reported});
  }
  HF_TRY_VOID(agree_on_facts(inputs.communicator, waiter, facts, difference));
  HF_FAULT_POINT(inputs.faults, "start.after_join");
  return config;
}

Result<void> join_checkpoint_io(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                bool says) {
  const bool first = inputs.communicator.rank() == 0;
  const Result<std::string> io = check_checkpoint_io(inputs.env, config.checkpoint);
  HF_TRY_VOID(agree_on_own(inputs, waiter, outcome_of(io), Examined::own));
  if (first && says) say_note(*io);
  return {};
}

Result<std::shared_ptr<DataSet>> join_data(const TrainInputs& inputs, const Waiter& waiter,
                                           const Config& config, Difference difference) {
  Result<std::shared_ptr<DataSet>> data = try_storage(inputs, "training data", [&] {
    return DataSet::open(inputs.env, config.data.sources, config.training.sequence_length,
                         data_options(config));
  });
  HF_TRY_VOID(agree_on_own(inputs, waiter, outcome_of(data)));
  HF_TRY_VOID(
      agree_on_facts(inputs.communicator, waiter, {{"data", to_hex((*data)->fingerprint())}}, difference));
  return data;
}

Result<std::optional<HeldOutSet>> join_held_out(const TrainInputs& inputs, const Waiter& waiter,
                                                const Config& config, const DataSet& training,
                                                Difference difference) {
  if (config.evaluation.every_steps == 0) return std::optional<HeldOutSet>();
  Result<HeldOutSet> held_out =
      try_storage(inputs, "held-out data", [&] { return HeldOutSet::open(inputs.env, config, training); });
  HF_TRY_VOID(agree_on_own(inputs, waiter, outcome_of(held_out)));
  HF_TRY_VOID(agree_on_facts(inputs.communicator, waiter,
                             {{"held-out data", to_hex(held_out->fingerprint())}}, difference));
  return std::optional(std::move(held_out).value());
}

namespace {

// Refuses verdicts that may leave out more samples at once than there are: the run would meet the bad ones again.
Result<void> check_left_out(const Config& config, const DataSet& data) {
  const VerdictConfig& verdict = config.verdict;
  const bool rolls_back = verdict.asks_for_rollbacks();
  if (!rolls_back && verdict.on_spike != "skip") return {};
  const bool by_drift = verdict.on_drift == "rollback";
  const auto steps = static_cast<std::uint64_t>(
      rolls_back ? 2 * verdict.rollback_steps + (by_drift ? verdict.drift_steps : 0) : verdict.skips_max);
  const BatchShape batch{.microbatch_size = config.training.microbatch_size,
                         .microbatches_per_lane = config.training.microbatches_per_lane,
                         .lanes = config.parallel.lanes};
  const std::uint64_t samples = steps * batch.samples_per_step();
  if (samples <= data.sample_count()) return {};
  return fail(
      ExitCode::config,
      "{} may leave out the {} samples of {} steps, and the data have {}: the samples that are left out "
      "would come again. Lower it, or set verdict.{} = \"tell\"",
      rolls_back ? fmt::format("verdict.rollback_steps = {}", verdict.rollback_steps)
                 : fmt::format("verdict.skips_max = {}", verdict.skips_max),
      samples, steps, data.sample_count(), by_drift ? "on_drift" : "on_spike");
}

}  // namespace

Result<void> resolve_shape_with_data(Config& config, const DataSet& data) {
  if (config.model.vocabulary == 0 && config.model.preset.empty()) {
    HF_TRY(config.model.vocabulary, data.vocabulary_of_format());
  }
  HF_TRY_VOID(resolve_config(config, data.vocabulary_needed()));
  return data.check_document_tokens(config.model.vocabulary);
}

Result<void> resolve_with_data(Config& config, int ranks, const DataSet& data) {
  HF_TRY_VOID(resolve_shape_with_data(config, data));
  HF_TRY_VOID(check_left_out(config, data));
  return check_layout(config, ranks, config.elastic.spares);
}

Result<JoinedBuddies> join_buddies(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                   const Mesh& mesh) {
  HF_TRY(const std::vector<std::string> hosts,
         all_gather_text(inputs.communicator, waiter, inputs.env.host_id()));
  JoinedBuddies buddies{.of_rank = replica_buddies(config, mesh, hosts)};
  buddies.all_cross_hosts = all_cross_hosts(buddies.of_rank, hosts);
  return buddies;
}

Result<void> join_device_check(const TrainInputs& inputs, const Waiter& waiter, const Config& config) {
  Result<void> mine;
  if (inputs.faults.makes_wrong_products() && config.device == "cuda") {
    mine = fail(
        ExitCode::config,
        "HOLDFAST_FAULTS makes a wrong product, which the CPU device alone can, but device = \"cuda\"; take "
        "another action, or device = \"cpu\"");
  }
  if (mine.ok()) mine = check_device(inputs.env, config, inputs.config->origin, inputs.place);
  if (mine.ok() && inputs.faults.breaks_device() && config.device == "cpu") {
    mine = fail(ExitCode::config,
                "HOLDFAST_FAULTS breaks a GPU, but device = \"cpu\"; take an action without gpu_, or a GPU");
  }
  return agree_on_own(inputs, waiter, mine, Examined::own);
}

Result<std::vector<std::string>> join_gpus(const TrainInputs& inputs, const Waiter& waiter, Config& config) {
  if (config.device != "cuda") return std::vector<std::string>();
  HF_TRY(std::vector<std::string> gpus,
         all_gather_text(inputs.communicator, waiter, hardware_name(inputs.env, config, inputs.place)));
  if (config.parallel.ranks_per_gpu == 0) config.parallel.ranks_per_gpu = largest_sharing(gpus);
  HF_TRY_VOID(agree_on_own(inputs, waiter,
                           check_sharing(gpus, inputs.communicator.rank(), config.parallel.ranks_per_gpu),
                           Examined::own));
  return gpus;
}

namespace {

// RankProcessors is what a rank tells the others.
struct RankProcessors {
  std::string host = {};  // Env::host_id()
  std::string list = {};  // processors that it may run on
  std::string description = {};
  std::string problem = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("list", self.list);
    visit("description", self.description);
    visit("problem", self.problem);
  }
};

}  // namespace

Result<JoinedProcessors> join_processors(const TrainInputs& inputs, const Waiter& waiter,
                                         const Config& config) {
  JoinedProcessors joined;
  if (config.device != "cuda") return joined;
  const std::vector<int> own = inputs.env.processes().own_processors();
  RankProcessors mine{.host = inputs.env.host_id(), .list = processor_list(own)};
  const Result<CudaPresence> cuda = find_cuda(inputs.env);
  const Result<CudaFacts> gpu = cuda.ok() ? gpu_of_rank(*cuda, inputs.place) : cuda.error();
  if (gpu.ok()) {
    ProcessorPlan plan = plan_processors(near_gpu(inputs.env, *gpu), own);
    mine.description = std::move(plan.description);
    mine.problem = std::move(plan.problem);
  }
  HF_TRY(const std::vector<RankProcessors> all, gather(inputs.communicator, waiter, mine));
  for (const RankProcessors& rank : all) {
    const bool shares = own.empty() || !common_processors(own, processors_of_list(rank.list)).empty();
    if (rank.host == mine.host && shares) ++joined.sharers;
    if (!rank.description.empty()) ++joined.ranks[rank.description];
    if (!rank.problem.empty() && std::ranges::find(joined.problems, rank.problem) == joined.problems.end())
      joined.problems.push_back(rank.problem);
  }
  return joined;
}

Result<std::unique_ptr<Device>> join_device(const TrainInputs& inputs, const Waiter& waiter,
                                            const Config& config, Difference difference, Device* existing) {
  HF_TRY_VOID(join_device_check(inputs, waiter, config));
  Result<std::unique_ptr<Device>> device = std::unique_ptr<Device>();
  if (existing == nullptr) {
    device = make_device(inputs.env, config, inputs.config->origin,
                         {.threads = threads_of_rank(inputs.env, config, inputs.ranks_on_host),
                          .place = inputs.place,
                          .ranks_on_host = inputs.ranks_on_host,
                          .runs_at_launch = inputs.runs_at_launch});
  }
  HF_TRY_VOID(agree_on_own(inputs, waiter, outcome_of(device), Examined::own));
  Device& joined = existing == nullptr ? **device : *existing;
  std::vector<Fact> facts = {{"device", joined.identity(precision_of(config))}};
  if (config.device == "cuda") facts.push_back({"CUDA library", cuda_module_digest(inputs.env)});
  if (!config.kernels.plugins.empty()) {
    HF_TRY(const KernelRegistry* registry, registry_with_plugins(inputs.env, config.kernels.plugins));
    facts.push_back({"plug-ins", fmt::format("{}", fmt::join(plugins_of(*registry), "; "))});
  }
  HF_TRY_VOID(agree_on_facts(inputs.communicator, waiter, facts, difference));
  if (inputs.faults.breaks_device() || inputs.faults.makes_wrong_products())
    inputs.faults.connect_device([&joined](DeviceFault fault) { joined.launch_fault(fault); });
  return device;
}

Result<JoinedPlans> join_plans(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                               const Device& device) {
  if (config.device == "cpu") return JoinedPlans();
  HF_TRY(const std::vector<std::string> plans,
         all_gather_text(inputs.communicator, waiter, device.plan_description()));
  JoinedPlans joined{.plan = plan_of_ranks(plans), .warning = {}};
  const PlanDifference found = difference_of_ranks(plans);
  if (found.clause.empty()) return joined;
  joined.warning = fmt::format(
      "ranks {} and {} have GPUs of two kinds, which compute {}: the last bits of this run depend on which "
      "rank computes what. Give a run GPUs of one kind where it shall have the same bits in every layout",
      found.other_rank, found.rank, found.clause);
  return joined;
}

Result<std::string> join_plan_difference(const TrainInputs& inputs, const Waiter& waiter,
                                         const Device& device, const std::string& made_with) {
  if (made_with.empty()) return std::string();
  HF_TRY(std::vector<std::string> differences,
         all_gather_text(inputs.communicator, waiter,
                         difference_of_plans(made_with, device.plan_description())));
  const auto found = std::ranges::find_if_not(differences, &std::string::empty);
  return found == differences.end() ? std::string() : std::move(*found);
}

}  // namespace holdfast::elastic
