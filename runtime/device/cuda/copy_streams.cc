#include "runtime/device/cuda/copy_streams.h"

#include <chrono>
#include <thread>

namespace holdfast::device {

CopyStreams::~CopyStreams() {
  for (const Queue& queue : all_) {
    cudaEventDestroy(queue.event);
    cudaStreamDestroy(queue.stream);
  }
}

cudaError_t CopyStreams::prepare(int count) {
  std::vector<Queue> taken(static_cast<std::size_t>(count));
  cudaError_t error = cudaSuccess;
  for (Queue& queue : taken) {
    if (error == cudaSuccess) error = take(queue);
  }
  const std::lock_guard lock(mutex_);
  for (const Queue& queue : taken) {
    if (queue.event != nullptr) idle_.push_back(queue);
  }
  return error;
}

// Takes an unused stream, or makes one.
cudaError_t CopyStreams::take(Queue& queue) {
  const std::lock_guard lock(mutex_);
  if (!idle_.empty()) {
    queue = idle_.back();
    idle_.pop_back();
    return cudaSuccess;
  }
  if (const cudaError_t error = cudaStreamCreateWithFlags(&queue.stream, cudaStreamNonBlocking);
      error != cudaSuccess)
    return error;
  if (const cudaError_t error = cudaEventCreateWithFlags(&queue.event, cudaEventDisableTiming);
      error != cudaSuccess) {
    cudaStreamDestroy(queue.stream);
    queue = {};
    return error;
  }
  all_.push_back(queue);
  return cudaSuccess;
}

// Looks seldom: every question to the driver holds up the thread that launches, and a copy of 8 MiB takes
// some 200 us.
cudaError_t CopyStreams::copy_to_host(std::span<const std::byte> source, std::byte* target) {
  constexpr std::chrono::microseconds look_again(30);
  Queue queue;
  cudaError_t error = take(queue);
  if (error != cudaSuccess) return error;
  error = cudaMemcpyAsync(target, source.data(), source.size(), cudaMemcpyDeviceToHost, queue.stream);
  if (error == cudaSuccess) error = cudaEventRecord(queue.event, queue.stream);
  while (error == cudaSuccess && (error = cudaEventQuery(queue.event)) == cudaErrorNotReady) {
    std::this_thread::sleep_for(look_again);
    error = cudaSuccess;
  }
  const std::lock_guard lock(mutex_);
  idle_.push_back(queue);
  return error;
}

}  // namespace holdfast::device
