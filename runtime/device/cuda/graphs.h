// Graphs: runs repeated launches with the same arguments as CUDA graphs. The first time they run as they are,
// because the first use of a kernel and of a library's algorithm loads code, which a capture does not allow;
// the second time they are captured from the stream; from then on they are launched as one. The kernels and
// their order are the same, and so are the bits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <unordered_map>

#include "kernels/cuda/context.h"

namespace holdfast::device {

// Used by the launching thread only. Errors go to the context.
class Graphs {
 public:
  Graphs() = default;
  ~Graphs() { clear(); }
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Puts the launches of `key` on the stream; returns false when they were not captured yet. Then they must
  // be launched between begin() and end().
  bool launch(cuda::Context& context, std::uint64_t key);
  // Starts the capture of `key` if it has run before: from here to end() the stream runs nothing.
  void begin(cuda::Context& context, std::uint64_t key);
  // Launches what was captured meanwhile.
  void end(cuda::Context& context, std::uint64_t key);
  bool capturing() const { return capturing_; }
  // Returns whether a capture has failed.
  bool failed() const { return failed_; }
  // Forgets all graphs, when the memory that they were captured with has moved. None of them may still be
  // running.
  void clear();

 private:
  bool capturing_ = false, failed_ = false;
  std::unordered_map<std::uint64_t, cudaGraphExec_t> graphs_;  // null: its launches ran once
};

}  // namespace holdfast::device
