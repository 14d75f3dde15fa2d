// The emulated CUDA runtime: memory, streams and events (include/cuda_runtime.h).
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/cuda_emulator/event.h"

using namespace holdfast;

namespace {

// What a test asks for through the environment, of a program that it cannot tell otherwise.
std::uint64_t asked(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::atomic<std::size_t> device_bytes = asked("EMULATED_GPU_BYTES", std::uint64_t{8} << 30);
// A test may have a GPU go between two starts.
int device_count() {
  return static_cast<int>(asked("EMULATED_GPUS", 1));
}
// This one is there, and does not work. None: -1.
const auto broken_device = static_cast<int>(asked("EMULATED_BROKEN_GPU", ~std::uint64_t{0}));
// The kernel of this number (from 1, over all streams) breaks the device for good; 0 = none does.
const std::uint64_t breaking_kernel = asked("EMULATED_GPU_BREAKS_AT", 0);
// A process that has no context yet needs so much for one, in cudaSetDevice; it is not counted as used.
const std::size_t context_bytes = asked("EMULATED_GPU_CONTEXT_BYTES", 0);
// Its kernels are for another GPU.
const bool no_image = asked("EMULATED_GPU_NO_IMAGE", 0) != 0;
const auto driver_version = static_cast<int>(asked("EMULATED_GPU_DRIVER", CUDART_VERSION));
std::atomic<std::uint64_t> kernels_run{0};
std::atomic<cudaError_t> sticky_error{cudaSuccess};
std::atomic<std::int64_t> pinned_refusals =
    static_cast<std::int64_t>(asked("EMULATED_GPU_PINNED_REFUSALS", 0));

struct HeldMemory {
  std::mutex mutex;
  std::size_t bytes = asked("EMULATED_GPU_HELD_BYTES", 0);
  std::uint64_t refusals = asked("EMULATED_GPU_HELD_REFUSALS", 0);
};
HeldMemory& held_memory() {
  static HeldMemory& memory = *new HeldMemory;
  return memory;
}
std::size_t bytes_of_others() {
  HeldMemory& held = held_memory();
  const std::lock_guard lock(held.mutex);
  return held.refusals > 0 ? held.bytes : 0;
}
void refused() {
  HeldMemory& held = held_memory();
  const std::lock_guard lock(held.mutex);
  if (held.refusals > 0) --held.refusals;
}

// Which memory is the device's. The key (or -1 where the processor has none) keeps the host out.
struct DeviceMemory {
  std::mutex mutex;
  std::map<void*, std::size_t> blocks;
  std::size_t used = 0;
  int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
};

DeviceMemory& device_memory() {
  static DeviceMemory& memory = *new DeviceMemory;  // for ever: a static device may give its memory back last
  return memory;
}

void allow_device_memory() {
  if (device_memory().key >= 0) pkey_set(device_memory().key, 0);
}

thread_local cudaError_t last_error = cudaSuccess;
// A thread that has named no GPU works with the first one.
thread_local int chosen_gpu = 0;
std::atomic<std::uint64_t> gpus_with_contexts{0};  // a bit for each

// As the real runtime does in calls that need a context: makes one on the GPU of this thread.
void need_context() {
  gpus_with_contexts |= std::uint64_t{1} << chosen_gpu;
}

cudaError_t noted(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

}  // namespace

struct EmulatedGraph {
  std::vector<std::function<void()>> tasks;
  bool broken = false;
};
// What this thread captures; null = nothing.
thread_local EmulatedGraph* captured = nullptr;

struct EmulatedStream {
  EmulatedStream() : thread([this] { serve(); }) {}
  ~EmulatedStream() {
    push({});
    thread.join();
  }
  void push(std::function<void()> task) {
    if (captured != nullptr) return captured->tasks.push_back(std::move(task));
    const std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    changed.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return tasks.empty();
  }
  void serve() {
    allow_device_memory();
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return !tasks.empty(); });
      const std::function<void()> task = tasks.front();
      lock.unlock();
      if (task) task();
      lock.lock();
      tasks.pop_front();
      changed.notify_all();
      if (!task) return;
    }
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;  // the first one runs
  std::thread thread;
};

namespace holdfast::cuda_emulator {

std::uint64_t take_contexts() {
  return gpus_with_contexts.exchange(0);
}

void enqueue(cudaStream_t stream, std::function<void()> task) {
  stream->push(std::move(task));
}

cudaError_t enqueue_launch(const cudaLaunchConfig_t& config, std::function<void()> body) {
  if (no_image) return noted(cudaErrorNoKernelImageForDevice);
  const dim3 g = config.gridDim, b = config.blockDim;
  const Launch launch{
      .grid = {g.x, g.y, g.z}, .block = {b.x, b.y, b.z}, .shared_bytes = config.dynamicSmemBytes};
  config.stream->push([launch, body = std::move(body)] {
    if (++kernels_run == breaking_kernel) sticky_error = cudaErrorIllegalAddress;
    if (sticky_error == cudaSuccess) run_grid(launch, body);
  });
  return sticky_error;
}

void break_device(cudaError_t error) {
  sticky_error = error;
}

std::size_t resize_device(std::size_t bytes) {
  return device_bytes.exchange(bytes);
}

void refuse_pinned_memory(int refusals) {
  pinned_refusals = refusals;
}

void hold_memory(std::size_t bytes, int refusals) {
  HeldMemory& held = held_memory();
  const std::lock_guard lock(held.mutex);
  held.bytes = bytes;
  held.refusals = static_cast<std::uint64_t>(refusals);
}

}  // namespace holdfast::cuda_emulator

void __nanosleep(unsigned nanoseconds) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
}

unsigned __ballot_sync(unsigned mask, int predicate) {
  struct Vote {
    int predicate;
    unsigned result;
  } mine{predicate, 0};
  cuda_emulator::warp_together(mask, &mine, [](void* const lanes[cuda_emulator::warp_lanes]) {
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (lanes[lane] != nullptr && static_cast<Vote*>(lanes[lane])->predicate != 0) votes |= 1U << lane;
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (lanes[lane] != nullptr) static_cast<Vote*>(lanes[lane])->result = votes;
    }
  });
  return mine.result;
}

int __syncthreads_and(int predicate) {
  static thread_local int all = 1;
  if (predicate == 0) all = 0;
  __syncthreads();
  const int result = all;
  __syncthreads();
  all = 1;
  return result;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorUnknown:
      return "unknown error";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) {
  return cudaGetErrorString(error);
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (driver_version < CUDART_VERSION) return noted(cudaErrorInsufficientDriver);
  *count = device_count();
  return device_count() > 0 ? cudaSuccess : noted(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (context_bytes > 0 && bytes_of_others() + context_bytes > device_bytes) {
    refused();
    return noted(cudaErrorMemoryAllocation);
  }
  if (device >= device_count() || device == broken_device) return noted(cudaErrorInvalidDevice);
  chosen_gpu = device;
  need_context();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = chosen_gpu;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(device);
  // Hosts of a test have devices of their own.
  static_cast<void>(gethostname(properties->uuid.bytes + 1, sizeof(properties->uuid.bytes) - 1));
  std::snprintf(properties->name, sizeof(properties->name), "emulated device");
  properties->totalGlobalMem = device_bytes;
  properties->multiProcessorCount = 4;  // few, so that grids that depend on it take several turns
  properties->l2CacheSize = 1 << 20;
  properties->major = cuda_emulator::compute_capability() / 10;
  properties->minor = cuda_emulator::compute_capability() % 10;
  properties->pciDomainID = 0xe0e0;  // that no machine has
  properties->pciBusID = device;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* status) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
  *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  DeviceMemory& memory = device_memory();
  const std::lock_guard lock(memory.mutex);
  *free_bytes = device_bytes - memory.used - std::min(bytes_of_others(), device_bytes - memory.used);
  *total_bytes = device_bytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** target, std::size_t bytes) {
  need_context();
  ++cuda_emulator::made().allocations;
  if (captured != nullptr) {
    captured->broken = true;
    return noted(cudaErrorStreamCaptureUnsupported);
  }
  DeviceMemory& memory = device_memory();
  const std::lock_guard lock(memory.mutex);
  if (bytes + bytes_of_others() > device_bytes - memory.used) {
    refused();
    return noted(cudaErrorMemoryAllocation);
  }
  void* block = mmap(nullptr, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return noted(cudaErrorMemoryAllocation);
  if (memory.key >= 0) pkey_mprotect(block, bytes + 1, PROT_READ | PROT_WRITE, memory.key);
  memory.blocks[block] = bytes;
  memory.used += bytes;
  *target = block;
  return cudaSuccess;
}
cudaError_t cudaFree(void* block) {
  if (block == nullptr) return cudaSuccess;
  DeviceMemory& memory = device_memory();
  const std::lock_guard lock(memory.mutex);
  const auto found = memory.blocks.find(block);
  if (found == memory.blocks.end()) return noted(cudaErrorInvalidValue);
  munmap(block, found->second + 1);
  memory.used -= found->second;
  memory.blocks.erase(found);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  need_context();
  if (pinned_refusals > 0) {
    --pinned_refusals;
    return noted(cudaErrorMemoryAllocation);
  }
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return noted(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  need_context();
  *stream = new EmulatedStream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  need_context();
  if (sticky_error != cudaSuccess) return sticky_error;
  return stream->idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::uint64_t count = event->last_recorded();
  stream->push([event, count] { event->wait_for(count); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  need_context();
  ++cuda_emulator::made().events;
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  event->wait_for(event->recorded);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  need_context();
  const std::uint64_t count = event->record();
  stream->push([event, count] { event->reach(count); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  need_context();
  if (captured != nullptr) {  // as in the capture mode of a thread
    captured->broken = true;
    return noted(cudaErrorStreamCaptureUnsupported);
  }
  if (sticky_error != cudaSuccess) return sticky_error;
  return event->done() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!start->done() || !end->done()) return noted(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->when - start->when).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (captured != nullptr) return noted(cudaErrorStreamCaptureUnsupported);
  captured = new EmulatedGraph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  const std::unique_ptr<EmulatedGraph> made(std::exchange(captured, nullptr));
  *graph = nullptr;
  if (made == nullptr || made->broken) return noted(cudaErrorStreamCaptureInvalidated);
  *graph = new EmulatedGraph(*made);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  ++cuda_emulator::made().graphs;
  *executable = new EmulatedGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const std::function<void()>& task : executable->tasks) stream->push(task);
  return sticky_error;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  need_context();
  stream->push([=] {
    if (sticky_error == cudaSuccess) std::memcpy(target, source, bytes);
  });
  return sticky_error;
}
cudaError_t cudaMemsetAsync(void* target, int value, std::size_t bytes, cudaStream_t stream) {
  need_context();
  stream->push([=] {
    if (sticky_error == cudaSuccess) std::memset(target, value, bytes);
  });
  return sticky_error;
}
