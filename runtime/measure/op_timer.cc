#include "runtime/measure/op_timer.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "kernels/visit_op.h"

namespace holdfast::measure {

void OpTimer::attach(CpuDeviceOptions& options) {
  options.observer = [this](OpId) { begin_ns_ = env_->monotonic_ns(); };
  options.after = [this](OpId id, const void* arguments) {
    finished(id, arguments, env_->monotonic_ns() - begin_ns_);
  };
}

void OpTimer::attach(CudaDeviceOptions& options) {
  options.timed = [this](OpId id, const void* arguments, std::int64_t duration_ns) {
    finished(id, arguments, duration_ns);
  };
}

void OpTimer::finished(OpId id, const void* arguments, std::int64_t duration_ns) {
  Record& record = records_.emplace_back();
  record.id = id;
  record.duration_ns = duration_ns;
  visit_op(id, arguments, [&](const auto& op) { std::memcpy(record.arguments.data(), &op, sizeof(op)); });
}

void OpTimer::fetch_tables(HostAccess& device_memory) {
  const std::size_t recorded = records_.size();
  const auto fetch = [&]<typename Op>(Record& record, Op op) {
    std::memcpy(&op, record.arguments.data(), sizeof(op));
    const std::span table(op.tensors, static_cast<std::size_t>(op.tensor_count));
    const auto [found, fresh] = tables_.try_emplace({op.tensors, table.size()}, table.size());
    if (fresh)
      std::ranges::copy(device_memory.to_read(std::as_bytes(table)),
                        std::as_writable_bytes(std::span(found->second)).begin());
    op.tensors = found->second.data();
    std::memcpy(record.arguments.data(), &op, sizeof(op));
  };
  for (std::size_t i = 0; i < recorded; ++i) {
    visit_op(records_[i].id, records_[i].arguments.data(), [&](const auto& op) {
      if constexpr (requires { op.tensors; }) fetch(records_[i], op);
    });
  }
  records_.resize(recorded);
}

}  // namespace holdfast::measure
