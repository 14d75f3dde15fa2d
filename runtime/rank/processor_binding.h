// Binds a rank that computes on a GPU to the processors of the NUMA node that its GPU is attached to: what the GPU
// copies to the host does not cross between nodes then, and eight ranks do not get into each other's way.
//
// Threads: bind_to_gpu() binds all threads of the process, and what they start inherits it, copying threads among
// them. Memory follows without another call, because Linux takes a page from the node of the thread that first asks
// for it, unless told otherwise: cudaHostAlloc takes its pages in the thread that calls it, and memory in /dev/shm is
// reserved by the thread that makes it, both after the binding. Where that node is full the next one serves, so
// nothing fails for it.
//
// The user's decision stays: a process that mpirun, taskset or a control group allows some processors alone
// keeps to those of them that are near its GPU, and to all of them where none is. A rank on the CPU is not bound.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/os/env.h"

namespace holdfast::rank {

// NearGpu holds what the kernel says about the place of a GPU in its host.
struct NearGpu {
  std::string gpu = {};              // name on the PCI bus
  int nodes = 0;                     // NUMA nodes of the host that have processors; 0: not known
  int node = -1;                     // that of the GPU; -1: not known
  std::vector<int> processors = {};  // of that node, in ascending order
};
// Reads /sys/bus/pci/devices and /sys/devices/system/node. What cannot be read is not known.
NearGpu near_gpu(Env& env, const CudaFacts& gpu);

// ProcessorPlan says on which processors a rank is to run, and what to tell about it.
struct ProcessorPlan {
  std::vector<int> processors = {};  // empty: it stays where it is
  std::string description = {};      // "NUMA node 1 (32-63)"; empty where the host has one node
  std::string problem = {};          // sentence for the user; empty: none
};
// Plans for a process that may run on the processors `own`. The plan for the result of a plan is the same.
ProcessorPlan plan_processors(const NearGpu& near, std::span<const int> own);

// Binds this process as plan_processors() says for the processors that the calling thread may run on.
Result<void> bind_to_gpu(Env& env, const CudaFacts& gpu);

// Return the processors as Linux writes them, "0-15,32", and those of such a text; a part that is none is skipped.
std::string processor_list(std::span<const int> processors);
std::vector<int> processors_of_list(const std::string& list);
// Returns the processors that are in both, which are in ascending order.
std::vector<int> common_processors(std::span<const int> a, std::span<const int> b);

}  // namespace holdfast::rank
