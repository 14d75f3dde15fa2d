#include "runtime/device/cuda/trial.h"

#include <fmt/core.h>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/error.h"
#include "runtime/device/cuda/memory_wait.h"
#ifdef HF_CUDA_SM_90A
#include "kernels/cuda/sm_90a/warpgroup_trial.h"
#endif
#include "kernels/cuda/trial_kernel.h"
#include "runtime/os/env.h"

namespace holdfast::device {
namespace {

// Holds memory that is freed at the end of its scope.
struct Trial {
  cudaStream_t stream = nullptr;
  int* target = nullptr;
  Trial() = default;
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    if (stream != nullptr) cudaStreamDestroy(stream);
    if (target != nullptr) cudaFreeHost(target);
  }
};

// Returns cudaErrorNotReady after a minute.
cudaError_t wait_for(cudaStream_t stream) {
  Env& env = posix_env();
  constexpr std::int64_t minute_ns = 60'000'000'000;
  const std::int64_t end_ns = env.monotonic_ns() + minute_ns;
  while (true) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state != cudaErrorNotReady || env.monotonic_ns() >= end_ns) return state;
    env.sleep_us(50);
  }
}

struct Outcome {
  cudaError_t error = cudaSuccess;
  const char* operation = "the first kernel";
  bool right = true;  // what the kernel wrote

  bool good() const { return error == cudaSuccess && right; }
};

using LaunchTrial = cudaError_t (*)(cudaStream_t stream, int* target);

Outcome run_trial(LaunchTrial launch = cuda::launch_trial) {
  Trial trial;
  Outcome outcome;
  outcome.error = cudaStreamCreateWithFlags(&trial.stream, cudaStreamNonBlocking);
  if (!outcome.good()) return {outcome.error, "cudaStreamCreate"};
  outcome.error = cudaHostAlloc(reinterpret_cast<void**>(&trial.target), sizeof(int), cudaHostAllocDefault);
  if (!outcome.good()) return {outcome.error, "cudaHostAlloc"};
  *trial.target = 0;
  outcome.error = launch(trial.stream, trial.target);
  if (outcome.good()) outcome.error = wait_for(trial.stream);
  if (outcome.good()) outcome.right = *trial.target == cuda::trial_answer;
  if (outcome.error == cudaErrorNotReady) {  // what still runs keeps them, and freeing would wait for it
    trial.stream = nullptr;
    trial.target = nullptr;
  }
  return outcome;
}

// Returns whether the library holds nothing that this GPU and driver run; the numbers are cudaError_t's.
bool lacks_kernels(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case 98:   // cudaErrorInvalidDeviceFunction
    case 200:  // cudaErrorInvalidKernelImage
    case 209:  // cudaErrorNoKernelImageForDevice
    case 218:  // cudaErrorInvalidPtx
    case 222:  // cudaErrorUnsupportedPtxVersion
      return true;
    default:
      return false;
  }
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string advice_for(const CudaFacts& gpu, const Outcome& outcome) {
  if (!lacks_kernels(outcome.error)) return "look at the GPU (nvidia-smi -q, dmesg | grep Xid)";
  if (gpu.driver_version < gpu.runtime_version)
    return fmt::format("install a driver for CUDA {} or newer", version_text(gpu.runtime_version));
  return fmt::format("build for it, with -DCMAKE_CUDA_ARCHITECTURES={}{} for cmake", gpu.compute_major,
                     gpu.compute_minor);
}

}  // namespace

std::string cuda_built_for() {
  return HF_CUDA_BUILT_FOR;
}

Result<void> try_device(int ordinal, const MemoryWait& wait) {
  HF_TRY(const CudaFacts gpu, cuda_facts_of(ordinal));
  const std::string name = fmt::format("{} (GPU {}, compute capability {}.{})", gpu.name, gpu.ordinal,
                                       gpu.compute_major, gpu.compute_minor);
  constexpr int oldest_major = 8;  // bf16 in the matrix units
  if (gpu.compute_major < oldest_major) {
    return with_reach(Reach::host, fail(ExitCode::config,
                                        "{} is too old, compute capability {}.0 is needed; use a newer GPU",
                                        name, oldest_major));
  }
  Outcome outcome;
  // The first call that makes a context: a full GPU has no room for it, and one that only one process may
  // have is not free until the last owner is gone.
  constexpr int devices_unavailable = 46;
  const auto attempt = [&] {
    outcome = {cudaSetDevice(ordinal), "cudaSetDevice"};
    if (outcome.good()) outcome = run_trial();
    const bool taken =
        outcome.error == cudaErrorMemoryAllocation || static_cast<int>(outcome.error) == devices_unavailable;
    return taken ? cudaErrorMemoryAllocation : cudaSuccess;
  };
  HF_TRY_VOID(claim_memory({.gpu = gpu, .wait = wait, .bytes = 0, .purpose = "a context"}, attempt));
  if (outcome.good()) return {};
  cudaGetLastError();  // it is told here, not by the next call that looks
  return with_reach(
      Reach::host,
      fail(ExitCode::config,
           "{} does not run the kernels of this build, which are for {} and CUDA {} (the driver's is {}): "
           "{}; {}",
           name, cuda_built_for(), version_text(gpu.runtime_version), version_text(gpu.driver_version),
           outcome.right ? sentence_of(outcome.error, outcome.operation)
                         : "the first kernel wrote something else than it was told to",
           advice_for(gpu, outcome)));
}

Result<std::string> try_own_instructions([[maybe_unused]] int ordinal) {
#ifdef HF_CUDA_SM_90A
  HF_TRY(const CudaFacts gpu, cuda_facts_of(ordinal));
  constexpr int hopper = 90;
  if (target_of(gpu).gpu != hopper) return std::string();
  HF_TRY_VOID(check(cudaSetDevice(ordinal), "cudaSetDevice"));
  const Outcome outcome = run_trial(cuda::launch_warpgroup_trial);
  if (outcome.good()) return std::string("sm_90a: warpgroup products are right");
  cudaGetLastError();  // it is told here, not by the next call that looks
  return with_reach(Reach::host, fail(ExitCode::config, "sm_90a: {}",
                                      outcome.right ? sentence_of(outcome.error, outcome.operation)
                                                    : "a warpgroup product of ones is wrong"));
#else
  return std::string();
#endif
}

}  // namespace holdfast::device
