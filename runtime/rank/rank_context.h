// RankContext holds everything that a computing rank works with, and is the one way in which these objects are handed
// on. It grows as a rank comes into a run: RankInputs are there from the start, PlacedRank when the ranks have agreed
// on what each of them is, RankContext when the worker is built. It refers to objects that belong to the worker or
// outlive it; no object keeps a context for longer than the worker lives.
#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "parallel/comm/collectives.h"
#include "parallel/comm/communicator.h"
#include "parallel/data/buckets.h"
#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/device/device.h"
#include "runtime/device/host_access.h"
#include "runtime/model/spec.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/sealed_network.h"
#include "runtime/os/span_recorder.h"
#include "runtime/rank/run_secret.h"
#include "runtime/run/hardware_record.h"
#include "watchdog/rank_watch.h"

namespace holdfast::rank {

class RankLinks;

// RankInputs holds what a process has as one of several ranks, before anything is agreed on.
struct RankInputs {
  Env& env;
  FaultPoints& faults;
  Communicator& communicator;  // all of these ranks
  RankWatch* watch = nullptr;  // records what this rank is doing; null: not watched
  int ranks_on_host = 1;       // ranks that share the memory and processors of this host
  int sharers = 0;             // of them, those that may run on this rank's processors; 0: all of them
};

// PlacedRank adds what the ranks that compute have agreed on.
struct PlacedRank : RankInputs {
  Device& device;
  const Config& config;                // resolved
  Mesh mesh;                           // mesh of all ranks
  std::optional<Secret> secret = {};   // secret of connections between ranks; none: there are none
  HardwareRecord* hardware = nullptr;  // findings about the hardware of all ranks so far; null: not kept
  std::string hardware_name = "cpu";   // device of this rank in that record (hardware_name())

  // Returns the same rank with another communicator of the same ranks.
  PlacedRank with(Communicator& other) const {
    return {{env, faults, other, watch, ranks_on_host, sharers},
            device,
            config,
            mesh,
            secret,
            hardware,
            hardware_name};
  }
};

struct RankContext : PlacedRank {
  MeshCoordinate coordinate;  // coordinate of this rank in the mesh
  const ModelSpec& spec;      // of the whole model
  const BucketPlan& buckets;  // parameters and gradients of this rank's part of it
  const Waiter& waiter;
  SpanRecorder& spans;      // off unless there is a watch, or a trace is recorded
  HostAccess& host_access;  // reads and writes memory on the device
  RankLinks& links;         // those of `communicator` among them

  // Returns whether this rank counts for its tensor group: state that all ranks of a tensor group have is
  // saved, and summed, by the first of them only.
  bool counts_replicated() const { return coordinate.tensor == 0; }
  // Returns whether this rank counts the samples of its copy of the model, so that each counts once.
  bool counts_samples() const { return coordinate.pipeline == 0 && counts_replicated(); }
  // Returns whether enough copies of the model are left without these ranks of the communicator, which there are.
  bool can_spare(std::span<const int> ranks) const {
    std::set<int> copies;  // that lose a rank
    for (const int each : ranks) copies.insert(mesh.coordinate_of(each).data);
    const int left = mesh.shape().data - static_cast<int>(copies.size());
    return !ranks.empty() && left >= config.elastic.min_data_parallel;
  }
  // Returns the network through which ranks connect to each other beside the communicator; one for each
  // purpose.
  SealedNetwork network(std::string purpose) const { return {env, secret.value(), std::move(purpose)}; }
  Result<ListenAddress> listen_address() const {
    return rank::listen_address(env, config, ranks_on_host == communicator.size());
  }
  // Returns the number of threads for work on the host while the device is idle.
  int host_threads() const {
    if (device.host_sees_memory()) return device.threads();
    return std::max(1, env.processor_count() / std::max(1, sharers > 0 ? sharers : ranks_on_host));
  }
};

}  // namespace holdfast::rank
