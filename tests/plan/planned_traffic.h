// The traffic of a step as a planner counts it.
#pragma once

#include <string>
#include <vector>

#include "runtime/elastic/planned_rank.h"
#include "runtime/plan/step_traffic.h"
#include "runtime/run/run_layout.h"
#include "runtime/train/worker.h"

namespace holdfast::test {

// `on_host`: ranks of a host; 0: all.
inline Mesh planned_mesh(const Config& config, int ranks, int on_host) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(std::to_string(on_host == 0 ? 0 : rank / on_host));
  return Mesh(mesh_of(config, ranks).shape(), hosts);
}

inline StepTraffic planned_traffic(const Config& config, int ranks, int rank, bool host_sees_memory = true,
                                   int on_host = 0) {
  FaultPoints faults;
  AbsentPeers peers(rank, ranks);
  PlannedDevice device({.host_sees_memory = host_sees_memory});
  const Mesh mesh = planned_mesh(config, ranks, on_host);
  const Result<std::unique_ptr<Worker>> worker = Worker::plan(
      {.rank = {{.env = posix_env(), .faults = faults, .communicator = peers}, device, config, mesh},
       .data = nullptr});
  HF_CHECK(worker.ok(), "{}", worker.error().message);
  std::vector<PartTraffic> parts;
  for (std::size_t chunk = 0; chunk < (*worker)->workload().parts.size(); ++chunk)
    parts.emplace_back(**worker, static_cast<int>(chunk));
  return step_traffic(posix_env(), config, mesh, rank, parts);
}

}  // namespace holdfast::test
