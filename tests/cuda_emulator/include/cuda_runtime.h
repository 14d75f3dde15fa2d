// Stands in for CUDA's <cuda_runtime.h> when kernels/cuda and runtime/device/cuda are compiled for the CPU
// (tests/cuda_emulator): the part of the language and of the runtime that they use, and no more.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/hopper.h"
#include "tests/cuda_emulator/shared_memory.h"

// Kernels multiply and add as one operation, which is one instruction of most processors, and a function of
// the C library without it. The bits are the same.
#if defined(HF_EMULATOR_HAS_FMA)
#pragma GCC target("fma")
#endif

#define HF_CUDA_EMULATED 1
#define CUDART_VERSION 13000
#define __global__
#define __grid_constant__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(bytes) alignas(bytes)
// The fibers of a block run on one thread of the system.
#define __shared__ static thread_local

#define HF_EMULATED_VECTOR(name, type, bytes) \
  struct alignas(bytes) name {                \
    type x, y, z, w;                          \
  };
HF_EMULATED_VECTOR(uint4, unsigned, 16)
HF_EMULATED_VECTOR(int4, int, 16)
HF_EMULATED_VECTOR(float4, float, 16)
#undef HF_EMULATED_VECTOR
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Variables, not macros: launch configurations have members of the same names.
namespace holdfast::cuda_emulator {
template <Index3 (*read)(), unsigned Index3::*member>
struct Component {
  operator unsigned() const { return read().*member; }  // NOLINT(google-explicit-constructor)
};
template <Index3 (*read)()>
struct Indices {
  Component<read, &Index3::x> x;
  Component<read, &Index3::y> y;
  Component<read, &Index3::z> z;
};
}  // namespace holdfast::cuda_emulator
inline constexpr holdfast::cuda_emulator::Indices<holdfast::cuda_emulator::thread_index> threadIdx;
inline constexpr holdfast::cuda_emulator::Indices<holdfast::cuda_emulator::block_index> blockIdx;
inline constexpr holdfast::cuda_emulator::Indices<holdfast::cuda_emulator::block_size> blockDim;
inline constexpr holdfast::cuda_emulator::Indices<holdfast::cuda_emulator::grid_size> gridDim;
inline constexpr int warpSize = 32;

inline void __syncthreads() {
  ::holdfast::cuda_emulator::block_barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  int none = 0;
  ::holdfast::cuda_emulator::warp_together(mask, &none, [](void* const*) {});
}

int __syncthreads_and(int predicate);

namespace holdfast::cuda_emulator {

template <typename T>
struct Shuffle {
  T value;
  int source;
  T result;
};

template <typename T>
T shuffle(unsigned mask, T value, int source) {
  Shuffle<T> mine{value, source, value};
  warp_together(mask, &mine, [](void* const lanes[warp_lanes]) {
    for (int lane = 0; lane < warp_lanes; ++lane) {
      if (lanes[lane] == nullptr) continue;
      auto& part = *static_cast<Shuffle<T>*>(lanes[lane]);
      const void* other = part.source >= 0 && part.source < warp_lanes ? lanes[part.source] : nullptr;
      if (other != nullptr) part.result = static_cast<const Shuffle<T>*>(other)->value;
    }
  });
  return mine.result;
}

}  // namespace holdfast::cuda_emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = ::holdfast::cuda_emulator::lane_index();
  return ::holdfast::cuda_emulator::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int = 32) {
  return ::holdfast::cuda_emulator::shuffle(mask, value, ::holdfast::cuda_emulator::lane_index() ^ flip);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = ::holdfast::cuda_emulator::lane_index();
  const int source = lane + static_cast<int>(delta);
  return ::holdfast::cuda_emulator::shuffle(mask, value,
                                            (source & ~(width - 1)) == (lane & ~(width - 1)) ? source : lane);
}
unsigned __ballot_sync(unsigned mask, int predicate);

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
inline float rsqrtf(float x) {
  return 1.0F / std::sqrt(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
void __nanosleep(unsigned nanoseconds);
template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, T value) {
  *address = value;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
void __stcg(T* address, T value) {
  *address = value;
}
using std::max;
using std::min;
// Blocks run one after another, and their threads are fibers of one thread.
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return std::exchange(*address, *address + value);
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  return std::exchange(*address, *address + value);
}
inline unsigned long long atomicMin(unsigned long long* address, unsigned long long value) {
  return std::exchange(*address, std::min(*address, value));
}

// ---- the runtime ----------------------------------------------------------------------------------------

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorUnknown = 999,
};
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  std::size_t totalGlobalMem;
  int multiProcessorCount;
  int l2CacheSize;
  int major, minor;
  int pciDomainID, pciBusID, pciDeviceID;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes);

// Device memory: where the processor has protection keys, the host crashes when it touches it.
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
inline constexpr unsigned cudaHostAllocDefault = 0;
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);

// Streams run on a thread of their own, so whoever forgets to wait reads what is not there yet. Calls that
// block the host (cudaStreamSynchronize, cudaDeviceSynchronize, cudaMemcpy ...) are left out: the device
// polls events, and nothing else may wait.
struct EmulatedStream;
struct EmulatedEvent;
using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0, cudaEventDisableTiming = 2;
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

// Capture: what would be put on the stream is kept instead. Memory cannot be had meanwhile, which breaks the
// capture.
struct EmulatedGraph;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;
enum cudaStreamCaptureMode : int { cudaStreamCaptureModeThreadLocal = 1 };
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

enum cudaMemcpyKind : int {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* target, int value, std::size_t bytes, cudaStream_t stream);

enum cudaFuncAttribute : int { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  const bool allowed = ::holdfast::cuda_emulator::allow_shared_memory(reinterpret_cast<const void*>(kernel),
                                                                      static_cast<std::size_t>(bytes));
  return allowed ? cudaSuccess : cudaErrorInvalidValue;
}

// The driver's functions that the emulator has (cuda.h).
enum cudaDriverEntryPointQueryResult : int {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1
};
inline constexpr unsigned long long cudaEnableDefault = 0;
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status);

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  void* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace holdfast::cuda_emulator {
// The kernel that runs breaks the device for good.
void break_device(cudaError_t error);
// For libraries that compute on a stream.
void enqueue(cudaStream_t stream, std::function<void()> task);
cudaError_t enqueue_launch(const cudaLaunchConfig_t& config, std::function<void()> body);
}  // namespace holdfast::cuda_emulator

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const auto* const id = reinterpret_cast<const void*>(kernel);
  if (!::holdfast::cuda_emulator::may_have_shared_memory(id, config->dynamicSmemBytes)) {
    return cudaErrorInvalidValue;
  }
  return ::holdfast::cuda_emulator::enqueue_launch(
      *config, [kernel, ... values = static_cast<Parameters>(arguments)] { kernel(values...); });
}
