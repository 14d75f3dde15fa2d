// Times every op that a device runs: on the CPU on its queue thread, on a GPU by events.
//
//   OpTimer timer(env);
//   CpuDeviceOptions options{.threads = 2};
//   timer.attach(options);                        // before the device is made; the timer outlives the device
//   ... launch ...; device->synchronize();
//   timer.records();                              // only while the device is idle
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/optimizer.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/device/device.h"
#include "runtime/device/host_access.h"
#include "runtime/os/env.h"

namespace holdfast::measure {

class OpTimer {
 public:
  struct Record {
    OpId id = OpId::count;
    std::int64_t duration_ns = 0;
    alignas(16) std::array<std::byte, op_bytes_max> arguments = {};
  };

  explicit OpTimer(Env& env) : env_(&env) {}
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  void attach(CpuDeviceOptions& options);
  void attach(CudaDeviceOptions& options);
  const std::vector<Record>& records() const { return records_; }
  void clear() { records_.clear(); }  // keeps the memory
  // Costs and shapes are read from the tables that some arguments point to. Copies those to where the host
  // reads them, once each; what that launches is not recorded. The device is idle.
  void fetch_tables(HostAccess& device_memory);

 private:
  void finished(OpId id, const void* arguments, std::int64_t duration_ns);

  Env* env_;
  std::int64_t begin_ns_ = 0;
  std::vector<Record> records_;
  // By where the device has them, and how many tensors of them an op takes.
  std::map<std::pair<const OptimizerTensor*, std::size_t>, std::vector<OptimizerTensor>> tables_;
};

}  // namespace holdfast::measure
