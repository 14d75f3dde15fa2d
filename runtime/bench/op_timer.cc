#include "runtime/bench/op_timer.h"

#include <cstring>

#include "kernels/visit_op.h"

namespace holdfast {

void OpTimer::attach(CpuDeviceOptions& options) {
  options.observer = [this](OpId) { begin_ns_ = env_->monotonic_ns(); };
  options.after = [this](OpId id, const void* arguments) { finished(id, arguments); };
}

void OpTimer::finished(OpId id, const void* arguments) {
  const std::int64_t duration_ns = env_->monotonic_ns() - begin_ns_;
  Record& record = records_.emplace_back();
  record.id = id;
  record.duration_ns = duration_ns;
  visit_op(id, arguments, [&](const auto& op) { std::memcpy(record.arguments.data(), &op, sizeof(op)); });
}

}  // namespace holdfast
