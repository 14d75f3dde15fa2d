#include "runtime/elastic/planned_rank.h"

#include "kernels/visit_op.h"

namespace holdfast::elastic {

void PlannedDevice::begin_planning() {
  planning_ = true;
  if (options_.kernels != nullptr) options_.kernels->begin_planning();
}

Result<void> PlannedDevice::end_planning() {
  planning_ = false;
  return options_.kernels == nullptr ? Result<void>{} : options_.kernels->end_planning();
}

std::uint64_t PlannedDevice::workspace_bytes() const {
  return options_.kernels == nullptr ? 0 : options_.kernels->workspace_bytes();
}

const KernelTable& PlannedDevice::kernels() const {
  return no_kernels_;
}

void PlannedDevice::submit(OpId id, const void* arguments, std::size_t) {
  ++launched_;
  if (!planning_) {
    if (observer_) observer_(id, arguments);
  } else if (options_.kernels != nullptr) {
    visit_op(id, arguments, [this](const auto& op) { options_.kernels->launch(op); });
  }
}

}  // namespace holdfast::elastic
