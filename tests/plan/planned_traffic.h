// The traffic of a step as a planner counts it.
#pragma once

#include <vector>

#include "runtime/elastic/planned_rank.h"
#include "runtime/plan/step_traffic.h"
#include "runtime/run/run_layout.h"
#include "runtime/train/worker.h"

namespace holdfast::test {

inline StepTraffic planned_traffic(const Config& config, int ranks, int rank, bool host_sees_memory = true) {
  FaultPoints faults;
  AbsentPeers peers(rank, ranks);
  PlannedDevice device({.host_sees_memory = host_sees_memory});
  const Mesh mesh = mesh_of(config, ranks);
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
