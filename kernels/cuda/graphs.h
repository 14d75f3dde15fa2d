// Launches that come again and again with the same arguments, as CUDA graphs: captured from the stream when
// they come for the first time, and launched as one from then on. The kernels and their order are the same,
// and so are the bits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <unordered_map>

#include "kernels/cuda/context.h"

namespace holdfast::cuda {

// Used by the launching thread only. Errors go to the context.
class Graphs {
 public:
  Graphs() = default;
  ~Graphs() { clear(); }
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Puts the launches of `key` on the stream; false when they were not captured yet.
  bool launch(Context& context, std::uint64_t key);
  // From here to end() the stream runs nothing; end() launches what was captured meanwhile.
  void begin(Context& context);
  void end(Context& context, std::uint64_t key);
  bool capturing() const { return capturing_; }
  // Whether something could not be captured.
  bool failed() const { return failed_; }
  // Forgets all: what they were captured with (the workspace) has moved. Nothing of them runs any more.
  void clear();

 private:
  bool capturing_ = false, failed_ = false;
  std::unordered_map<std::uint64_t, cudaGraphExec_t> graphs_;
};

}  // namespace holdfast::cuda
