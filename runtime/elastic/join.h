// The agreements of a start, one function each, with the objects that follow from them; prepare.h has their
// order. Each function is collective: all ranks call it, and all get the same outcome, which names the rank
// that differs or failed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/agreement.h"
#include "parallel/comm/collectives.h"
#include "runtime/config/config.h"
#include "runtime/data/loader.h"
#include "runtime/device/device.h"
#include "runtime/os/retry.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"
#include "runtime/train/evaluation.h"

namespace holdfast::elastic {

// Repeats an attempt that storage may fail for a moment, and tells the guard that this rank waits for storage. `what`: a
// literal, "training data".
template <typename Attempt>
auto try_storage(const TrainInputs& inputs, const char* what, Attempt attempt) {
  if (inputs.tries_storage_once) return attempt();
  const StorageWait storage(inputs.watch, what);
  return retry_storage(inputs.env, attempt);
}

// Returns whether some rank sees that the run has begun before: its directory holds the config of its first start.
// Ranks that do not see it, though ranks of several other hosts share it, have not mounted it: they get an error with
// Reach::host (agree_on_fitness()).
Result<bool> join_earlier_starts(const TrainInputs& inputs, const Waiter& waiter);

// Checks that config and binary are the same on all ranks. Returns the config. `difference`: whether most ranks go on
// without those that differ, or have no config.
Result<Config> join_config(const TrainInputs& inputs, const Waiter& waiter,
                           Difference difference = Difference::ends_run);

// Runs check_checkpoint_io() on every rank; rank 0 logs what is lost if its host does not get the wanted I/O.
// `says`: false if nothing is to be logged.
Result<void> join_checkpoint_io(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                bool says = true);

// Makes the tokens of text sources in the token cache. One process makes those of a source, and the others that see its
// directory wait and say so. Asked to stop, it ends with ExitCode::saved.
Result<void> join_tokens(const TrainInputs& inputs, const Waiter& waiter, const Config& config);

// Opens the data on all ranks and compares its fingerprint.
Result<std::shared_ptr<DataSet>> join_data(const TrainInputs& inputs, const Waiter& waiter,
                                           const Config& config,
                                           Difference difference = Difference::ends_run);

// Does the same for the held-out data; none unless evaluation.every_steps asks for it.
Result<std::optional<HeldOutSet>> join_held_out(const TrainInputs& inputs, const Waiter& waiter,
                                                const Config& config, const DataSet& training,
                                                Difference difference = Difference::ends_run);

// Runs resolve_config() with the vocabulary of the data.
Result<void> resolve_shape_with_data(Config& config, const DataSet& data);
// Does the same, and runs check_layout(). `ranks`: including spares.
Result<void> resolve_with_data(Config& config, int ranks, const DataSet& data);

// JoinedBuddies holds replica_buddies() for the hosts of all ranks, and all_cross_hosts().
struct JoinedBuddies {
  std::vector<int> of_rank;
  bool all_cross_hosts = false;
};
Result<JoinedBuddies> join_buddies(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                   const Mesh& mesh);

// Runs check_device() on every rank; no device is made yet.
Result<void> join_device_check(const TrainInputs& inputs, const Waiter& waiter, const Config& config);
// Agrees on the GPUs that the ranks compute on, and returns their names by rank; none on the CPU. Ranks share a GPU
// only as far as parallel.ranks_per_gpu says, which a first start sets to what it finds: where a GPU is gone,
// those behind it move up, and ranks would share one at half the speed without a word. The ranks that are too many
// get Reach::host (agree_on_fitness()).
Result<std::vector<std::string>> join_gpus(const TrainInputs& inputs, const Waiter& waiter, Config& config);

// JoinedProcessors is what the ranks of a run have told each other about their processors.
struct JoinedProcessors {
  // Ranks that may run on some of this rank's processors, itself among them; 0: all of the host, on the CPU.
  int sharers = 0;
  std::map<std::string, int> ranks;   // by ProcessorPlan::description; empty: there is nothing to tell
  std::vector<std::string> problems;  // each once
};
// Exchanges them when the devices are made.
Result<JoinedProcessors> join_processors(const TrainInputs& inputs, const Waiter& waiter,
                                         const Config& config);

// Makes the device that this rank computes on, from a config without "auto"; it is of the same kind, from the
// same library, on all ranks. A rank that has a device passes it as `existing`, takes part with that, and
// gets null.
Result<std::unique_ptr<Device>> join_device(const TrainInputs& inputs, const Waiter& waiter,
                                            const Config& config,
                                            Difference difference = Difference::ends_run,
                                            Device* existing = nullptr);

// JoinedPlans holds the matrix products that the ranks have planned (kernels/product_plan.h).
struct JoinedPlans {
  std::string plan;  // of all ranks (plan_of_ranks()); empty where there is none
  // Sentence about two ranks that compute one product in different ways, as GPUs of two kinds may that are alike to
  // Device::identity(): then bits depend on which rank computes what. Empty: none do.
  std::string warning;
};
Result<JoinedPlans> join_plans(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                               const Device& device);

// Returns a clause about the first product that some rank computes in another way than `made_with`, the plan of what a
// state was made on (difference_of_plans()), the same on all ranks; empty: there is none.
Result<std::string> join_plan_difference(const TrainInputs& inputs, const Waiter& waiter,
                                         const Device& device, const std::string& made_with);

}  // namespace holdfast::elastic
