// CopyStreams: streams besides the computing one, for copies to the host that several threads make at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

namespace holdfast::device {

// Hands streams of one GPU to copying threads. Any thread that has named this GPU to CUDA (cudaSetDevice) may
// call. The owner ends its copies before it destroys the object.
class CopyStreams {
 public:
  CopyStreams() = default;
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  // Makes as many streams as threads may copy at a time, so that none is made while a run trains.
  cudaError_t prepare(int count);

  // Copies device memory to pinned memory of the host, at once and whatever else the GPU does. Returns when
  // `target` is whole, or the first error.
  cudaError_t copy_to_host(std::span<const std::byte> source, std::byte* target);

 private:
  struct Queue {
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
  };

  cudaError_t take(Queue& queue);

  std::mutex mutex_;
  std::vector<Queue> all_, idle_;
};

}  // namespace holdfast::device
