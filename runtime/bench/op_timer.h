// Times every op that a CPU device runs, on its queue thread.
//
//   OpTimer timer(env);
//   CpuDeviceOptions options{.threads = 2};
//   timer.attach(options);                        // before the device is made; the timer outlives the device
//   ... launch ...; device->synchronize();
//   timer.records();                              // only while the device is idle
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/device.h"
#include "runtime/core/env.h"

namespace holdfast {

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
  const std::vector<Record>& records() const { return records_; }
  void clear() { records_.clear(); }  // keeps the memory

 private:
  void finished(OpId id, const void* arguments);

  Env* env_;
  std::int64_t begin_ns_ = 0;
  std::vector<Record> records_;
};

}  // namespace holdfast
