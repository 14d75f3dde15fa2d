#include "runtime/device/cuda/nccl_loader.h"

#ifdef HF_NCCL  // nccl.h was found (cmake/HoldfastCuda.cmake)

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <nccl.h>

#include <cstring>
#include <string>

static_assert(static_cast<int>(holdfast::device::NcclResult::in_progress) == ncclInProgress &&
              static_cast<int>(holdfast::device::NcclResult::remote_error) == ncclRemoteError);
static_assert(sizeof(holdfast::device::NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(NCCL_VERSION_CODE >= holdfast::device::NcclLibrary::version_min,
              "NCCL 2.18 or newer is needed");

namespace holdfast::device {
namespace {

// The functions of the library, with the types of its header.
struct NcclFunctions {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init = nullptr;
  decltype(&ncclCommGetAsyncError) comm_state = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  ncclResult_t (*comm_revoke)(ncclComm_t,
                              int flags) = nullptr;  // null before 2.28.7, whose header lacks it, too
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
};

Error not_loaded(const std::string& file) {
  const char* reason = ::dlerror();
  return with_reach(
      Reach::host,
      fail(ExitCode::config,
           "NCCL could not be loaded from {}: {}; install libnccl 2.18 or newer, or let LD_LIBRARY_PATH name "
           "its directory",
           file, reason == nullptr ? "unknown reason" : reason));
}

Result<NcclFunctions> load_functions(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return not_loaded(file);
  NcclFunctions functions;
  bool found = true;
  const auto bind = [&](auto& function, const char* name) {
    if (!found) return;
    void* symbol = ::dlsym(library, name);
    found = symbol != nullptr;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  bind(functions.get_version, "ncclGetVersion");
  bind(functions.get_unique_id, "ncclGetUniqueId");
  bind(functions.comm_init, "ncclCommInitRankConfig");
  bind(functions.comm_state, "ncclCommGetAsyncError");
  bind(functions.comm_abort, "ncclCommAbort");
  bind(functions.group_start, "ncclGroupStart");
  bind(functions.group_end, "ncclGroupEnd");
  bind(functions.send, "ncclSend");
  bind(functions.receive, "ncclRecv");
  bind(functions.error_string, "ncclGetErrorString");
  bind(functions.last_error, "ncclGetLastError");
  if (!found) return not_loaded(file);
  functions.comm_revoke =
      reinterpret_cast<decltype(functions.comm_revoke)>(::dlsym(library, "ncclCommRevoke"));
  return functions;
}

NcclResult of(ncclResult_t result) {
  return static_cast<NcclResult>(result);
}
ncclComm_t raw(NcclComm comm) {
  return reinterpret_cast<ncclComm_t>(comm);
}
cudaStream_t raw(CudaStream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}
cudaEvent_t raw(CudaEvent event) {
  return reinterpret_cast<cudaEvent_t>(event);
}

class LoadedNccl final : public NcclLibrary {
 public:
  LoadedNccl(const NcclFunctions& functions, int version) : nccl_(functions), version_(version) {}
  int version() const override { return version_; }

  NcclResult unique_id(NcclUniqueId& id) override {
    ncclUniqueId raw_id;
    const ncclResult_t result = nccl_.get_unique_id(&raw_id);
    std::memcpy(id.bytes.data(), raw_id.internal, sizeof(raw_id.internal));
    return of(result);
  }
  NcclResult comm_init(NcclComm& comm, const NcclCommConfig& wanted) override {
    ncclUniqueId raw_id;
    std::memcpy(raw_id.internal, wanted.id.bytes.data(), sizeof(raw_id.internal));
    // An older library reads as much of the structure as it knows (init.cc, parseCommConfig). Variables of
    // the environment win over it (envConfigOverride): a user's NCCL_MAX_CTAS stays what the user wants.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 0;  // nothing is shared with what will be aborted
    if (wanted.max_ctas > 0) config.maxCTAs = wanted.max_ctas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
    config.commName = wanted.name.c_str();  // NCCL copies it
#endif
    ncclComm_t made = nullptr;
    const ncclResult_t result = nccl_.comm_init(&made, wanted.ranks, raw_id, wanted.rank, &config);
    comm = reinterpret_cast<NcclComm>(made);
    return of(result);
  }
  NcclResult comm_state(NcclComm comm, NcclResult& state) override {
    ncclResult_t raw_state = ncclSuccess;
    const ncclResult_t result = nccl_.comm_state(raw(comm), &raw_state);
    state = of(raw_state);
    return of(result);
  }
  bool can_revoke() const override {
    return nccl_.comm_revoke != nullptr;
  }
  NcclResult comm_revoke(NcclComm comm) override {
    constexpr int default_flags = 0;
    return of(nccl_.comm_revoke(raw(comm), default_flags));
  }
  NcclResult comm_abort(NcclComm comm) override {
    return of(nccl_.comm_abort(raw(comm)));
  }
  NcclResult group_start() override {
    return of(nccl_.group_start());
  }
  NcclResult group_end() override {
    return of(nccl_.group_end());
  }
  NcclResult send(const void* source, std::size_t bytes, int peer, NcclComm comm,
                  CudaStream stream) override {
    return of(nccl_.send(source, bytes, ncclInt8, peer, raw(comm), raw(stream)));
  }
  NcclResult receive(void* target, std::size_t bytes, int peer, NcclComm comm, CudaStream stream) override {
    return of(nccl_.receive(target, bytes, ncclInt8, peer, raw(comm), raw(stream)));
  }
  std::string text(NcclResult result) override {
    return nccl_.error_string(static_cast<ncclResult_t>(result));
  }
  std::string last_error(NcclComm comm) override {
    const char* text = nccl_.last_error(raw(comm));
    return text == nullptr ? "" : text;
  }

  CudaError device_count(int& count) override {
    return cudaGetDeviceCount(&count);
  }
  CudaError set_device(int device) override {
    return cudaSetDevice(device);
  }
  CudaError allocate(void** memory, std::size_t bytes) override {
    return cudaMalloc(memory, bytes);
  }
  CudaError free(void* memory) override {
    return cudaFree(memory);
  }
  CudaError free_memory(std::size_t& bytes) override {
    std::size_t total = 0;
    return cudaMemGetInfo(&bytes, &total);
  }
  CudaError stream_create(CudaStream& stream) override {
    cudaStream_t made = nullptr;
    int lowest = 0, highest = 0;  // numbers that fall as priorities rise; both 0 where the device has none
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    if (error == cudaSuccess) error = cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, highest);
    stream = reinterpret_cast<CudaStream>(made);
    return error;
  }
  CudaError stream_query(CudaStream stream) override {
    return cudaStreamQuery(raw(stream));
  }
  CudaError stream_destroy(CudaStream stream) override {
    return cudaStreamDestroy(raw(stream));
  }
  CudaError event_create(CudaEvent& event) override {
    cudaEvent_t made = nullptr;
    const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    event = reinterpret_cast<CudaEvent>(made);
    return error;
  }
  CudaError event_record(CudaEvent event, CudaStream stream) override {
    return cudaEventRecord(raw(event), raw(stream));
  }
  CudaError event_query(CudaEvent event) override {
    return cudaEventQuery(raw(event));
  }
  CudaError stream_wait(CudaStream stream, CudaEvent event) override {
    return cudaStreamWaitEvent(raw(stream), raw(event), 0);
  }
  CudaError event_destroy(CudaEvent event) override {
    return cudaEventDestroy(raw(event));
  }
  CudaError last_cuda_error() override {
    return cudaGetLastError();
  }
  std::string text(CudaError error) override {
    return fmt::format("{} ({})", cudaGetErrorString(static_cast<cudaError_t>(error)), error);
  }

 private:
  NcclFunctions nccl_;
  int version_;
};

}  // namespace

Result<std::unique_ptr<NcclLibrary>> load_nccl(const std::string& file) {
  HF_TRY(const NcclFunctions functions, load_functions(file));
  int version = 0;
  if (functions.get_version(&version) != ncclSuccess || version < NcclLibrary::version_min) {
    return with_reach(Reach::host, fail(ExitCode::config, "{} is NCCL {}, and 2.18 or newer is needed", file,
                                        nccl_version_text(version)));
  }
  auto library = std::make_unique<LoadedNccl>(functions, version);
  int devices = 0;
  if (const CudaError error = library->device_count(devices); error != 0 || devices == 0) {
    return with_reach(
        Reach::host,
        fail(ExitCode::config, "NCCL {} was found, but no CUDA device to use it with: {}",
             nccl_version_text(version), error != 0 ? library->text(error) : "the driver shows none"));
  }
  return std::unique_ptr<NcclLibrary>(std::move(library));
}

}  // namespace holdfast::device

#else

namespace holdfast::device {

Result<std::unique_ptr<NcclLibrary>> load_nccl(const std::string&) {
  return fail(ExitCode::config,
              "this holdfast was built without NCCL: build it where the CUDA toolkit and nccl.h are found");
}

}  // namespace holdfast::device

#endif
