#include "runtime/device/cuda/event_pool.h"

namespace holdfast::device {

EventPool::~EventPool() {
  for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::record(cuda::Context& context) {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    context.note(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreate");
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  context.note(cudaEventRecord(event, context.stream()), "cudaEventRecord");
  return event;
}

}  // namespace holdfast::device
