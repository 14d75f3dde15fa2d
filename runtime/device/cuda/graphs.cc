#include "runtime/device/cuda/graphs.h"

namespace holdfast::device {

bool Graphs::launch(cuda::Context& context, std::uint64_t key) {
  const auto found = graphs_.find(key);
  if (found == graphs_.end() || found->second == nullptr) return false;
  context.note(cudaGraphLaunch(found->second, context.stream()), "cudaGraphLaunch");
  return true;
}

void Graphs::begin(cuda::Context& context, std::uint64_t key) {
  const bool first = graphs_.try_emplace(key, nullptr).second;
  if (first) return;
  // The capture covers this thread only: other threads allocate memory meanwhile.
  const cudaError_t error = cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeThreadLocal);
  context.note(error, "cudaStreamBeginCapture");
  capturing_ = error == cudaSuccess;
  failed_ = failed_ || !capturing_;
}

void Graphs::end(cuda::Context& context, std::uint64_t key) {
  if (!capturing_) return;
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  context.note(cudaStreamEndCapture(context.stream(), &graph), "cudaStreamEndCapture");
  if (context.error() == cudaSuccess) {
    context.note(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (context.error() != cudaSuccess) {
    cudaGetLastError();  // it is told by the context, not by the next call that looks
    failed_ = true;
    return;
  }
  graphs_[key] = executable;
  launch(context, key);
}

void Graphs::clear() {
  for (const auto& [key, graph] : graphs_) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }
  graphs_.clear();
}

}  // namespace holdfast::device
