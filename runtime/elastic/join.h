// Start-up: what all ranks must agree on before the first step, and the objects that follow from it. Each
// function is collective: all ranks call it, and all get the same outcome, with the rank named that differs
// or failed.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/device.h"
#include "parallel/comm/collectives.h"
#include "runtime/config/config.h"
#include "runtime/data/loader.h"
#include "runtime/elastic/resume.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/run_places.h"
#include "runtime/train/evaluation.h"

namespace holdfast::inline elastic {

// Config and binary are the same everywhere. Returns the config.
Result<Config> join_config(const TrainInputs& inputs, const Waiter& waiter);

struct JoinedStart {
  StartPoint start = {};
  std::optional<Place> place = {};  // of this rank, where run.directory is local to each host
};
// Rank 0 claims the run directory, says where it does no direct I/O, and chooses where to start; all learn
// it. Where it is local, the first rank of each host claims that of its host, and all of them choose together
// (part_start.h).
Result<JoinedStart> join_start(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                               std::unique_ptr<Claim>& claim);

// Gives what rank 0 has chosen, or its error, to all; what the others bring does not count.
Result<StartPoint> share_start(const TrainInputs& inputs, const Waiter& waiter,
                               const Result<StartPoint>& chosen);

// Looks for a snapshot in the shared memory of all hosts that is newer than what `start` has, and adds it. It
// was seen, not yet read; where it turns out to be damaged, it is added to what is skipped, and this is
// called again.
Result<void> join_snapshot(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                           StartPoint& start);

// check_checkpoint_io() of every rank; rank 0 says what it is not given.
Result<void> join_checkpoint_io(const TrainInputs& inputs, const Waiter& waiter, const Config& config);

// Opens the data everywhere and compares its fingerprint.
Result<std::shared_ptr<DataSet>> join_data(const TrainInputs& inputs, const Waiter& waiter,
                                           const Config& config);

// The same of the held-out data; none unless evaluation.every_steps asks for it.
Result<std::optional<HeldOutSet>> join_held_out(const TrainInputs& inputs, const Waiter& waiter,
                                                const Config& config, const DataSet& training);

// resolve_config() with what the data says about the vocabulary.
Result<void> resolve_shape_with_data(Config& config, const DataSet& data);
// Does the same, and check_layout(). `ranks`: with spares.
Result<void> resolve_with_data(Config& config, int ranks, const DataSet& data);

// replica_buddies() with the hosts of all ranks, and whether all_cross_hosts().
struct JoinedBuddies {
  std::vector<int> of_rank;
  bool all_cross_hosts = false;
};
Result<JoinedBuddies> join_buddies(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                   const Mesh& mesh);

// check_device() of every rank: nothing is made yet.
Result<void> join_device_check(const TrainInputs& inputs, const Waiter& waiter, const Config& config);
// Makes the device this rank computes on, of a config without "auto"; the same kind, out of the same library,
// everywhere. A rank that has one gives it as `existing`, takes part with that, and gets null.
Result<std::unique_ptr<Device>> join_device(const TrainInputs& inputs, const Waiter& waiter,
                                            const Config& config, Device* existing = nullptr);

}  // namespace holdfast::inline elastic
