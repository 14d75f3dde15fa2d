#include "runtime/elastic/prepare.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kernels/plugin_loader.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "parallel/local/local_communicator.h"
#include "runtime/core/units.h"
#include "runtime/elastic/download.h"
#include "runtime/elastic/host_watch.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/kernel_rules.h"
#include "runtime/elastic/recovery_plan.h"
#include "runtime/elastic/source.h"
#include "runtime/health/host_sources.h"
#include "runtime/integrity/product_check.h"
#include "runtime/metrics/metrics_server.h"
#include "runtime/model/spec.h"
#include "runtime/os/console.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/rank/return_wait.h"
#include "runtime/rank/run_secret.h"
#include "runtime/rank/watch.h"
#include "runtime/run/kernel_faults.h"
#include "runtime/run/run_layout.h"

namespace holdfast::elastic {
namespace {

// A proof waits so long for memory of a GPU that processes hold which have just been killed.
constexpr std::int64_t proof_memory_timeout_ms = 5'000;

// Checks that the nearest existing ancestor of the run directory is a directory; a start makes the rest.
Result<void> check_run_directory(Env& env, const std::string& directory) {
  for (std::string path = directory; !path.empty();
       path.resize(path.find_last_of('/') + 1), path.pop_back()) {
    HF_TRY(const FileStatus status, env.status(path));
    if (status.exists && status.directory) return {};
    if (status.exists) {
      return fail(ExitCode::config, "run.directory = {} cannot be made: {} is a file. Give another directory",
                  directory, path);
    }
    if (path.find('/') == std::string::npos) return {};
  }
  return {};
}

// Returns the ranks of one copy of the model, or of as many as parallel.data says, with the spares.
int ranks_of_config(const Config& config) {
  const auto degree = [](std::int64_t given) { return std::max<std::int64_t>(1, given); };
  return static_cast<int>(degree(config.parallel.data) * degree(config.parallel.pipeline) *
                              degree(config.parallel.tensor) +
                          config.elastic.spares);
}

// KnownFaults is what a rank tells the others.
struct KnownFaults {
  KernelFaults faults = {};

  static void visit_fields(auto& self, auto&& visit) { visit("faults", self.faults); }
};

class PrepareSteps {
 public:
  PrepareSteps(const TrainInputs& inputs, const PrepareTerms& terms, RunSetup& setup)
      : inputs_(inputs), terms_(terms), setup_(setup) {}

  Result<void> run() {
    struct Entry {
      PrepareStep step;
      Result<void> (PrepareSteps::*take)();
    };
    static constexpr Entry list[] = {
        {PrepareStep::earlier_starts, &PrepareSteps::look_for_earlier_starts},
        {PrepareStep::config, &PrepareSteps::agree_on_config},
        {PrepareStep::hosts, &PrepareSteps::connect_hosts},
        {PrepareStep::data, &PrepareSteps::open_data},
        {PrepareStep::device_check, &PrepareSteps::try_device},
        {PrepareStep::checkpoint_io, &PrepareSteps::try_checkpoint_io},
        {PrepareStep::start_point, &PrepareSteps::find_start},
        {PrepareStep::stored_shape, &PrepareSteps::adopt_shape},
        {PrepareStep::kernels, &PrepareSteps::leave_out_kernels},
        {PrepareStep::device, &PrepareSteps::choose_device},
        {PrepareStep::layout, &PrepareSteps::resolve_layout},
        {PrepareStep::changes, &PrepareSteps::compare},
        {PrepareStep::held_out, &PrepareSteps::open_held_out},
    };
    for (const Entry& entry : list) {
      setup_.step = entry.step;
      HF_TRY_VOID((this->*entry.take)());
    }
    setup_.step = PrepareStep::done;
    return {};
  }

 private:
  bool starts() const { return terms_.mode == PrepareMode::start; }
  bool proves() const { return terms_.mode == PrepareMode::ready; }
  bool checks() const { return terms_.mode == PrepareMode::check || proves(); }
  bool is_first() const { return inputs_.communicator.rank() == 0; }
  Waiter waiter() const { return waiter_for(inputs_, setup_.config, terms_.recovers); }
  Result<void> agree(const Result<void>& mine) const {
    return agree_on_outcome(inputs_.communicator, waiter(), mine, inputs_.env.host_name());
  }

  bool text_is_made() const {
    return std::ranges::all_of(setup_.text, [](const SourceTokens& one) { return one.made.has_value(); });
  }

  // A first start, which a person watches, ends where ranks differ; a later one goes on with those that are alike.
  Difference difference() const { return setup_.has_begun ? Difference::most_go_on : Difference::ends_run; }

  Result<void> look_for_earlier_starts() {
    if (terms_.mode == PrepareMode::rejoin) return {};
    HF_TRY(setup_.has_begun, join_earlier_starts(inputs_, waiter()));
    return {};
  }

  // Waits as long as this rank's own config says until all have agreed on one.
  Result<void> agree_on_config() {
    if (inputs_.config.ok()) {
      setup_.config.parallel.timeout_ms = inputs_.config->config.parallel.timeout_ms;
      setup_.config.elastic.recovery_timeout_ms = inputs_.config->config.elastic.recovery_timeout_ms;
    }
    HF_TRY(setup_.config, join_config(inputs_, waiter(), difference()));
    HF_TRY_VOID(health::check_health_keys(setup_.config.health.rules, setup_.config.health.dcgm_exporter));
    if (const std::string& listen = setup_.config.metrics.listen; !listen.empty())
      HF_TRY_VOID(outcome_of(metrics::listen_address_of(listen)));
    if (proves())
      setup_.config.elastic.memory_timeout_ms =
          std::min(setup_.config.elastic.memory_timeout_ms, proof_memory_timeout_ms);
    return {};
  }

  Result<void> connect_hosts() {
    if (checks()) return {};
    HF_TRY(setup_.secret, agree_on_secret(inputs_.communicator, waiter(), inputs_.env, setup_.secret));
    HF_TRY_VOID(join_hosts(inputs_, waiter(), setup_.config, *setup_.secret));
    if (inputs_.watch != nullptr) inputs_.watch->run_directory(setup_.config.run.directory);
    return {};
  }

  Result<void> open_data() {
    if (checks()) {
      HF_TRY(setup_.text, find_source_tokens(inputs_.env, setup_.config));
      if (!text_is_made()) return {};
    } else {
      HF_TRY_VOID(join_tokens(inputs_, waiter(), setup_.config));
    }
    HF_TRY(setup_.data, join_data(inputs_, waiter(), setup_.config, difference()));
    return {};
  }

  // A check is about this moment: it does not wait for memory that other processes hold.
  Result<void> try_device() {
    Config config = setup_.config;
    if (terms_.mode == PrepareMode::check) config.elastic.memory_timeout_ms = 0;
    return join_device_check(inputs_, waiter(), config);
  }

  Result<void> try_checkpoint_io() {
    return join_checkpoint_io(inputs_, waiter(), setup_.config, /*says=*/!checks());
  }

  Result<void> find_start() {
    switch (terms_.mode) {
      case PrepareMode::start:
        return claim_start();
      case PrepareMode::rejoin: {
        HF_TRY(
            setup_.start,
            SourceFinder({.inputs = inputs_, .waiter = waiter(), .config = setup_.config, .in_place = true})
                .at_recovery(terms_.shm_run_id, /*lost_some=*/false));
        return {};
      }
      case PrepareMode::check: {
        HF_TRY_VOID(check_run_directory(inputs_.env, setup_.config.run.directory));
        HF_TRY(const OwnStates own, states_of_directory(inputs_.env, setup_.config.run.directory));
        HF_TRY(setup_.start, choose_start(inputs_.env, setup_.config, own));
        return {};
      }
      case PrepareMode::ready:  // it is looked for once, by the rank that claims the directory
        return {};
    }
    return {};
  }

  Result<void> claim_start() {
    setup_.claim.reset();  // from a start in which a rank died
    enter(inputs_.watch, Phase::load, 0, waiter().timeout_ms() + verify_timeout_ms);
    const Result<FileStatus> before = inputs_.env.status(setup_.config.run.directory);
    if (before.ok() && !before->exists) setup_.makes_directory = true;
    SourceFinder source({.inputs = inputs_, .waiter = waiter(), .config = setup_.config});
    HF_TRY(setup_.start, source.at_start(setup_.claim));
    if (const std::optional<StorageDomains>& domains = source.terms().domains; domains.has_value())
      setup_.domain = domains->of(inputs_.communicator.rank());
    if (setup_.domain.has_value()) inputs_.stop.directory_is_local();
    enter(inputs_.watch, Phase::start_up, 0);
    HF_TRY_VOID(source.add_snapshot(setup_.start));
    const bool may_replace = setup_.start.unusable.empty() || source.terms().domains.has_value();
    if (may_replace && wants_download(setup_.config, setup_.start)) {
      enter(inputs_.watch, Phase::load, 0, setup_.config.watchdog.ceiling_ms);
      HF_TRY(setup_.start, join_download(source, *setup_.data, setup_.start));
      enter(inputs_.watch, Phase::start_up, 0);
    }
    if (source_of(setup_.start) == StateSource::nothing) return why_unusable(setup_.start);
    return {};
  }

  // "auto" keeps the device of the stored run.
  Result<void> adopt_shape() { return agree(adopt_stored_shape(inputs_.env, setup_.start, setup_.config)); }

  // Each host may have a run directory of its own.
  Result<void> leave_out_kernels() {
    setup_.left_out.clear();
    if (setup_.config.kernels.plugins.empty() || proves()) return {};
    KernelFaults mine = terms_.kernel_faults;
    if (inputs_.place.rank_on_host == 0) {
      const StorageWait storage(inputs_.watch, "kernels that have failed");
      add_faults(mine, read_kernel_faults(inputs_.env, {setup_.config.run.directory}));
    }
    HF_TRY(const std::vector<KnownFaults> all, gather(inputs_.communicator, waiter(), KnownFaults{mine}));
    for (const KnownFaults& each : all) add_faults(setup_.kernel_faults, each.faults);
    return agree(outcome_of(leave_out_failed_kernels(inputs_.env, setup_)));
  }

  Result<void> choose_device() {
    const std::string choice = resolve_device(inputs_.env, setup_.config, inputs_.place);
    if (starts() && is_first() && !choice.empty()) print_line("{}", choice);
    if (terms_.mode == PrepareMode::check) return {};
    if (!proves()) {
      HF_TRY(setup_.gpus, join_gpus(inputs_, waiter(), setup_.config));
    }
    setup_.device.reset();  // from a start in which a rank died
    HF_TRY(setup_.device, join_device(inputs_, waiter(), setup_.config, difference(), terms_.device));
    return proves() ? try_product(*setup_.device, precision_of(setup_.config)) : Result<void>();
  }

  // The config is resolved for the ranks of the start; only the ranks that are left get coordinates.
  Result<void> resolve_layout() {
    const int ranks = terms_.ranks > 0 ? terms_.ranks : ranks_of_config(setup_.config);
    if (setup_.data == nullptr) {
      HF_TRY_VOID(resolve_config(setup_.config, setup_.text.front().vocabulary));
      HF_TRY_VOID(check_decay_groups(setup_.config));
      return check_layout(setup_.config, ranks, setup_.config.elastic.spares);
    }
    HF_TRY_VOID(agree(resolve_with_data(setup_.config, ranks, *setup_.data)));
    HF_TRY_VOID(check_decay_groups(setup_.config));
    setup_.request = assignment_request(setup_.config, ranks);
    const bool is_new = starts() || terms_.mode == PrepareMode::check;
    if (is_new)
      HF_TRY_VOID(agree(check_rules_have_calls(inputs_.env, setup_.config, inputs_.config->origin,
                                               {.data = setup_.request.data_max,
                                                .pipeline = setup_.request.pipeline,
                                                .tensor = setup_.request.tensor})));
    if (is_new && is_first()) {
      for (const std::string& warning : setup_.data->warnings_of_documents()) print_message("{}", warning);
    }
    return checks() ? setup_.data->try_sources(setup_.config.model.vocabulary) : Result<void>();
  }

  // A run that goes on has the config that it had; agree_on_config() has compared the joiners' with it.
  Result<void> compare() {
    if (terms_.mode == PrepareMode::rejoin) return {};
    HF_TRY(setup_.changes, compare_with_stored(inputs_.env, setup_.start, setup_.config));
    return {};
  }

  Result<void> open_held_out() {
    if (setup_.data == nullptr) return {};
    HF_TRY(setup_.held_out, join_held_out(inputs_, waiter(), setup_.config, *setup_.data, difference()));
    return {};
  }

  const TrainInputs& inputs_;
  const PrepareTerms& terms_;
  RunSetup& setup_;
};

// StopSource of a process that never trains.
class NothingToStop final : public StopSource {
 public:
  bool stop_requested() override { return false; }
};

}  // namespace

const char* name_of(PrepareStep step) {
  static constexpr std::array names = {"run directory",  "config",      "hosts",         "data",    "device",
                                       "checkpoint I/O", "start point", "stored shape",  "kernels", "device",
                                       "layout",         "changes",     "held-out data", "done"};
  static_assert(names.size() == static_cast<std::size_t>(PrepareStep::done) + 1);
  return names[static_cast<std::size_t>(step)];
}

Result<bool> leave_out_failed_kernels(Env& env, RunSetup& setup) {
  KernelsConfig& kernels = setup.config.kernels;
  if (setup.config.device == "cuda" || kernels.on_failure != "fall_back" || setup.kernel_faults.empty())
    return false;
  HF_TRY(const KernelRegistry* registry, registry_with_plugins(env, kernels.plugins));
  const KernelTarget target = {.isa = cpu_isa_of(kernels.isa).value_or(best_cpu_isa())};
  const KernelFaults left_out = rank::leave_out_kernels(kernels, *registry, target, setup.kernel_faults);
  add_faults(setup.left_out, left_out);
  return !left_out.empty();
}

Result<void> prepare(const TrainInputs& inputs, const PrepareTerms& terms, RunSetup& setup) {
  std::optional<ReturnWait> wait;
  while (true) {
    const Result<void> outcome = PrepareSteps(inputs, terms, setup).run();
    // An error with 76 has been waited for already, as for memory that other processes hold.
    const bool may_come_back =
        !outcome.ok() && setup.has_begun && ReturnWait::may_return(inputs.communicator, outcome.error());
    if (!may_come_back || terms.mode != PrepareMode::start) return outcome;
    const std::int64_t limit_ms = setup.config.elastic.input_timeout_ms;
    if (!wait.has_value()) {
      wait.emplace(ReturnWait::Terms{
          .env = inputs.env, .communicator = inputs.communicator, .timeout_ms = limit_ms, .gives_up = [&] {
            return inputs.stop.stop_requested();
          }});
    }
    enter(inputs.watch, Phase::start_up, 0);
    HF_TRY(const bool again, wait->again(waiter_for(inputs, setup.config, terms.recovers), [&] {
      print_message(
          "{}. The run has read this before, so it waits until it is there again, at most {} "
          "(elastic.input_timeout)",
          outcome.error().message, format_duration(limit_ms));
    }));
    if (!again) return with_code(ExitCode::communication, outcome.error());
  }
}

Result<void> prepare_alone(Env& env, const Result<LoadedConfig>& config, const PrepareTerms& terms,
                           RunSetup& setup) {
  const std::unique_ptr<Communicator> alone = std::move(make_local_communicators(1).front());
  FaultPoints faults;
  NothingToStop stop;
  return prepare({{.env = env, .faults = faults, .communicator = *alone},
                  {.tries_storage_once = terms.mode == PrepareMode::ready},
                  stop,
                  config},
                 terms, setup);
}

Waiter waiter_for(const TrainInputs& inputs, const Config& config, bool recovers) {
  std::int64_t timeout_ms = config.parallel.timeout_ms;
  if (recovers) timeout_ms = std::min(timeout_ms, config.elastic.recovery_timeout_ms);
  return {inputs.env, timeout_ms, inputs.watch};
}

}  // namespace holdfast::elastic
