// Context of a CUDA kernel: the device's stream, its workspace and its matrix products. It does not have the
// GPU's number of multiprocessors, because nothing that a kernel does may follow from it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

namespace holdfast::kernels::cuda {

class MatmulCache;  // kernels/cuda/matmul_cache.h: the matrix products of cuBLASLt

class Context {
 public:
  Context(cudaStream_t stream, MatmulCache& matmuls) : stream_(stream), matmuls_(matmuls) {}

  cudaStream_t stream() const { return stream_; }
  MatmulCache& matmuls() const { return matmuls_; }

  // Returns scratch in device memory, at least the largest request_workspace() so far; 256-byte aligned. It
  // belongs to one op at a time: the stream runs them in order.
  std::byte* workspace() const { return workspace_; }
  void request_workspace(std::size_t bytes) {
    requested_bytes_ = std::max(requested_bytes_, bytes);
  }  // in prepare only
  std::size_t requested_bytes() const { return requested_bytes_; }
  void set_workspace(std::byte* workspace) { workspace_ = workspace; }

  // Keeps the first error of the runtime: what was launched after it never ran.
  void note(cudaError_t error, const char* operation) {
    if (error != cudaSuccess && error_ == cudaSuccess) {
      error_ = error;
      operation_ = operation;
    }
  }
  cudaError_t error() const { return error_; }
  const char* failed_operation() const { return operation_; }

 private:
  cudaStream_t stream_;
  MatmulCache& matmuls_;
  std::byte* workspace_ = nullptr;
  std::size_t requested_bytes_ = 0;
  cudaError_t error_ = cudaSuccess;
  const char* operation_ = "";
};

}  // namespace holdfast::kernels::cuda
