#include "runtime/device/cuda/cuda_device.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/context.h"
#include "kernels/cuda/fault_kernel.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/slow_paths.h"
#include "kernels/cuda/table.h"
#include "runtime/core/units.h"
#include "runtime/device/cuda/copy_streams.h"
#include "runtime/device/cuda/error.h"
#include "runtime/device/cuda/graphs.h"
#include "runtime/device/cuda/memory_wait.h"
#include "runtime/device/cuda/op_clock.h"
#include "runtime/device/cuda/stamp_clock.h"
#include "runtime/device/cuda_error.h"

namespace holdfast::device {

namespace {

// Allocated on the GPU by this process, which is what the driver counts, too: all devices of the process
// together, arenas that outlive their device among them.
std::atomic<std::uint64_t> held_bytes{0};

void free_device_memory(std::byte* base, std::uint64_t bytes) {
  cudaFree(base);
  held_bytes -= bytes;
}

void free_pinned_memory(std::byte* base, std::uint64_t) {
  cudaFreeHost(base);
}

// Launching puts kernels on the stream at once. ticket() records an event; events that were reached are used
// again, so nothing is made in the loop once there are as many as are ever in flight.
class CudaDevice final : public Device {
 public:
  CudaDevice(CudaFacts facts, KernelTable kernels, std::unique_ptr<cuda::MatmulCache> matmuls,
             cudaStream_t stream, const CudaDeviceOptions& options)
      : facts_(std::move(facts)),
        kernels_(std::move(kernels)),
        matmuls_(std::move(matmuls)),
        stream_(stream),
        context_(stream, *matmuls_),
        memory_wait_(options.memory_wait),
        clock_(options.timed ? std::make_unique<OpClock>(options.timed) : nullptr),
        graphs_(options.graphs && !options.timed ? std::make_unique<Graphs>() : nullptr) {}
  ~CudaDevice() override;

  Ticket ticket() override;
  void count_ops_in(std::atomic<std::uint64_t>& done) override {
    const std::lock_guard lock(mutex_);
    reported_ = &done;
  }
  bool reached(Ticket ticket) const override;
  bool wait(Ticket ticket, std::int64_t timeout_us) override;
  void stamp(Stamp& target) override;
  bool orders_by_events() const override { return true; }
  void record(DeviceEvent event) override;
  void wait_for(DeviceEvent event) override;

  Result<OwnedMemory> allocate(MemoryKind kind, std::uint64_t bytes) override;
  bool host_sees_memory() const override { return false; }
  bool read_beside(Ticket after, std::span<const std::byte> source, std::byte* target) override;
  Result<void> status() override;
  bool lost() override;

  void begin_planning() override;
  Result<void> end_planning() override;
  std::uint64_t workspace_bytes() const override { return workspace_bytes_; }

  const KernelTable& kernels() const override { return kernels_; }
  std::string description() const override { return identity(DType::bf16); }
  std::string identity(DType precision) const override;
  std::string plan_description() const override { return matmuls_->description(); }
  void prefer_plan(const ProductAlgorithms& plan) override { matmuls_->prefer(plan); }
  std::vector<std::string> algorithms_for(const Matmul& op) override {
    return matmuls_->algorithms_for(product_shape(op));
  }
  std::vector<std::string> slow_paths() const override { return slow_paths_.sentences(); }
  int threads() const override { return 1; }
  void launch_fault(DeviceFault fault) override;

 private:
  struct Mark {
    Ticket ticket;
    cudaEvent_t event;
  };

  void submit(OpId id, const void* arguments, std::size_t bytes) override;
  bool begin_repeated(std::uint64_t key) override;
  void end_repeated(std::uint64_t key) override;
  Result<void> grow_workspace();
  cudaEvent_t spare_event();
  cudaError_t first_error() const;

  const CudaFacts facts_;
  const KernelTable kernels_;
  const std::unique_ptr<cuda::MatmulCache> matmuls_;
  cudaStream_t stream_;
  cuda::Context context_;
  CopyStreams copy_streams_;
  const MemoryWait memory_wait_;
  cuda::SlowPaths slow_paths_;          // of the ops planned since begin_planning()
  std::unique_ptr<OpClock> clock_;      // null unless somebody asks for times
  std::unique_ptr<StampClock> stamps_;  // null until somebody asks for one
  std::unique_ptr<Graphs> graphs_;      // null unless asked for
  bool planning_ = false;
  Ticket submitted_ = 0;
  std::uint64_t workspace_bytes_ = 0;

  mutable std::mutex mutex_;  // any thread may poll
  mutable Ticket reached_ = 0;
  std::atomic<std::uint64_t>* reported_ = nullptr;  // count_ops_in()
  mutable cudaError_t failure_ = cudaSuccess;       // of something that was waited for; the first
  mutable std::deque<Mark> marks_;                  // not reached yet, in order
  mutable std::vector<cudaEvent_t> spare_events_;
};

CudaDevice::~CudaDevice() {
  stamps_.reset();  // nothing waits for them any more
  synchronize();
  context_.note(cudaFree(context_.workspace()), "cudaFree");
  held_bytes -= workspace_bytes_;
  for (const Mark& mark : marks_) cudaEventDestroy(mark.event);
  for (const cudaEvent_t event : spare_events_) cudaEventDestroy(event);
  clock_.reset();
  graphs_.reset();
  cudaStreamDestroy(stream_);
}

void CudaDevice::submit(OpId id, const void* arguments, std::size_t bytes) {
  const KernelChoice& choice = kernels_[static_cast<std::size_t>(id)];
  const Implementation& kernel =
      first_that_computes(choice.order_of(place_of(scope()), arguments), arguments);
  if (kernel.cuda_prepare != nullptr) kernel.cuda_prepare(context_, arguments);
  HF_CHECK(planning_ || grow_workspace().ok(), "no memory for the workspace of {}, which was not planned",
           name_of(id));
  if (planning_) slow_paths_.see(id, kernel, arguments, *matmuls_);
  ++submitted_;  // after growing, which waits for what was submitted
  if (planning_) return;
  if (clock_ != nullptr) clock_->begin(context_);
  kernel.cuda_run(context_, arguments);
  if (clock_ != nullptr) clock_->end(context_, id, arguments, bytes);
}

void CudaDevice::launch_fault(DeviceFault fault) {
  HF_CHECK(graphs_ == nullptr || !graphs_->capturing(), "a device fault inside of what is repeated");
  context_.note(cuda::launch_fault_kernel(stream_, fault), "cudaLaunchKernelEx");
  ++submitted_;
}

bool CudaDevice::begin_repeated(std::uint64_t key) {
  if (graphs_ == nullptr || planning_ || context_.error() != cudaSuccess) return true;
  if (graphs_->launch(context_, key)) {
    ++submitted_;
    return false;
  }
  graphs_->begin(context_, key);
  return true;
}

void CudaDevice::end_repeated(std::uint64_t key) {
  if (graphs_ != nullptr) graphs_->end(context_, key);
}

Result<void> CudaDevice::grow_workspace() {
  const std::uint64_t wanted = context_.requested_bytes();
  if (wanted <= workspace_bytes_) return {};
  HF_CHECK(graphs_ == nullptr || !graphs_->capturing(), "an op of a CUDA graph was not planned");
  synchronize();  // the old one may be in use
  if (graphs_ != nullptr) graphs_->clear();
  context_.note(cudaFree(context_.workspace()), "cudaFree");
  context_.set_workspace(nullptr);
  held_bytes -= std::exchange(workspace_bytes_, 0);
  void* memory = nullptr;
  HF_TRY_VOID(claim_memory({.gpu = facts_,
                            .wait = memory_wait_,
                            .bytes = wanted,
                            .held_bytes = held_bytes,
                            .purpose = "the workspace of its kernels"},
                           [&] { return cudaMalloc(&memory, wanted); }));
  context_.set_workspace(static_cast<std::byte*>(memory));
  workspace_bytes_ = wanted;
  held_bytes += wanted;
  return {};
}

cudaEvent_t CudaDevice::spare_event() {
  if (!spare_events_.empty()) {
    const cudaEvent_t event = spare_events_.back();
    spare_events_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  context_.note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return event;
}

Device::Ticket CudaDevice::ticket() {
  HF_CHECK(graphs_ == nullptr || !graphs_->capturing(), "a ticket inside of what is repeated");
  const std::lock_guard lock(mutex_);
  const Ticket last = marks_.empty() ? reached_ : marks_.back().ticket;
  if (last < submitted_) {
    const cudaEvent_t event = spare_event();
    context_.note(cudaEventRecord(event, stream_), "cudaEventRecord");
    marks_.push_back({submitted_, event});
  }
  return submitted_;
}

// Returns true for every ticket after an error of the runtime, because nothing more will run: no caller waits
// for ever, and status() reports the error.
bool CudaDevice::reached(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  while (!marks_.empty() && reached_ < ticket) {
    const cudaError_t state = cudaEventQuery(marks_.front().event);
    if (state == cudaErrorNotReady) return false;
    if (failure_ == cudaSuccess) failure_ = state;
    reached_ = marks_.front().ticket;
    if (reported_ != nullptr) reported_->store(reached_, std::memory_order_relaxed);
    spare_events_.push_back(marks_.front().event);
    marks_.pop_front();
  }
  return reached_ >= ticket;
}

bool CudaDevice::wait(Ticket ticket, std::int64_t timeout_us) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
  for (int looks = 0;; ++looks) {
    if (reached(ticket)) {
      if (clock_ != nullptr) clock_->tell();
      if (stamps_ != nullptr) stamps_->tell();
      return true;
    }
    look_after_queue();
    if (std::chrono::steady_clock::now() >= end) return false;
    if (looks < 1000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

// Counts as an op, so that a ticket that is taken later is reached after it.
void CudaDevice::stamp(Stamp& target) {
  HF_CHECK(graphs_ == nullptr || !graphs_->capturing(), "a stamp inside of what is repeated");
  if (stamps_ == nullptr) stamps_ = std::make_unique<StampClock>(context_);
  stamps_->stamp(context_, target);
  ++submitted_;
}

void CudaDevice::record(DeviceEvent event) {
  HF_CHECK(graphs_ == nullptr || !graphs_->capturing(), "an event inside of what is repeated");
  context_.note(cudaEventRecord(reinterpret_cast<cudaEvent_t>(event), stream_), "cudaEventRecord");
}

// Counts as an op, so that a ticket that is taken later is reached after it.
void CudaDevice::wait_for(DeviceEvent event) {
  HF_CHECK(graphs_ == nullptr || !graphs_->capturing(), "a wait inside of what is repeated");
  context_.note(cudaStreamWaitEvent(stream_, reinterpret_cast<cudaEvent_t>(event), 0), "cudaStreamWaitEvent");
  ++submitted_;
}

Result<OwnedMemory> CudaDevice::allocate(MemoryKind kind, std::uint64_t bytes) {
  const bool on_device = kind == MemoryKind::device;
  void* base = nullptr;
  if (on_device) {
    HF_TRY_VOID(claim_memory({.gpu = facts_,
                              .wait = memory_wait_,
                              .bytes = bytes,
                              .held_bytes = held_bytes,
                              .purpose = "memory of the run"},
                             [&] { return cudaMalloc(&base, bytes); }));
    held_bytes += bytes;
  } else {
    HF_TRY_VOID(claim_pinned_memory(bytes, memory_wait_,
                                    [&] { return cudaHostAlloc(&base, bytes, cudaHostAllocDefault); }));
  }
  OwnedMemory memory(static_cast<std::byte*>(base),
                     {.release = on_device ? free_device_memory : free_pinned_memory, .bytes = bytes});
  context_.note(cudaMemsetAsync(base, 0, bytes, stream_), "cudaMemsetAsync");
  ++submitted_;
  synchronize();
  HF_TRY_VOID(status());
  return memory;
}

bool CudaDevice::read_beside(Ticket after, std::span<const std::byte> source, std::byte* target) {
  constexpr std::chrono::microseconds look_again(50);
  // Before the first question about an event: a thread that has named no GPU would make a context on the first
  // one of the host.
  cudaError_t error = cudaSetDevice(facts_.ordinal);
  while (error == cudaSuccess && !reached(after)) std::this_thread::sleep_for(look_again);
  if (error == cudaSuccess) error = copy_streams_.copy_to_host(source, target);
  const std::lock_guard lock(mutex_);
  if (failure_ == cudaSuccess) failure_ = error;
  return failure_ == cudaSuccess;
}

// Returns the first error, of a launch or of something that was waited for.
cudaError_t CudaDevice::first_error() const {
  const std::lock_guard lock(mutex_);
  return context_.error() != cudaSuccess ? context_.error() : failure_;
}

Result<void> CudaDevice::status() {
  const cudaError_t error = first_error();
  if (error == cudaSuccess) return {};
  if (graphs_ != nullptr && graphs_->failed()) {
    return fail(
        ExitCode::config,
        "training.cuda_graphs = true, but not all ops of this run can be captured into a CUDA graph: {}; set "
        "it to false",
        sentence_of(error, context_.failed_operation()));
  }
  const bool at_launch = context_.error() != cudaSuccess;
  return with_reach(
      Reach::host,
      fail(ExitCode::communication,
           "{} (GPU {}) failed: {}; what it computed since is lost. Start again, a run goes on from its "
           "newest checkpoint; if this happens again, look at the GPU (nvidia-smi -q, dmesg | grep Xid)",
           facts_.name, facts_.ordinal,
           sentence_of(error, at_launch ? context_.failed_operation() : "a kernel")));
}

// Decides by the error alone: a driver that has lost its GPU need not return from another query.
bool CudaDevice::lost() {
  return cuda_error_class(first_error()) == CudaErrorClass::sticky;
}

void CudaDevice::begin_planning() {
  planning_ = true;
  slow_paths_.clear();
}

// Graphs hold addresses of the memory that was bound when they were captured; the next ops work on other
// memory.
Result<void> CudaDevice::end_planning() {
  planning_ = false;
  if (graphs_ != nullptr) {
    synchronize();
    graphs_->clear();
  }
  constexpr int copying_threads = 4;  // of a snapshot
  HF_TRY_VOID(check(copy_streams_.prepare(copying_threads), "cudaStreamCreate"));
  return grow_workspace();
}

// Returns what decides bits besides the own kernels named "cuda", which every CUDA device has.
std::string bits_beside_own(const KernelTable& kernels, DType precision) {
  std::vector<std::string> parts;
  const auto is_own = [precision](const Implementation& each) {
    return std::string_view(each.name) == "cuda" || (each.bf16_only && precision != DType::bf16);
  };
  for (const KernelChoice& choice : kernels) {
    visit_bits(choice, is_own, [&parts](const Implementation& each, const std::string& text) {
      parts.push_back(
          (each.library != nullptr ? each.library() : fmt::format("{} {}", name_of(each.op), each.name)) +
          text);
    });
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Two GPUs of one kind give the same bits; toolkit and number of multiprocessors decide which matrix products
// cuBLASLt takes.
std::string CudaDevice::identity(DType precision) const {
  const std::string bits = bits_beside_own(kernels_, precision);
  return fmt::format("cuda, sm_{}{}, {} multiprocessors, CUDA {}.{}{}{}", facts_.compute_major,
                     facts_.compute_minor, facts_.multiprocessors, facts_.runtime_version / 1000,
                     facts_.runtime_version % 1000 / 10, bits.empty() ? "" : ", ", bits);
}

// Why the runtime finds none. It gives one error for a driver that is too old and for none at all.
std::string no_gpu_sentence(cudaError_t found) {
  int driver = 0, runtime = 0;
  if (found == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0 &&
      cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
    return fmt::format(
        "NVIDIA's driver is for CUDA {}.{}, and this was built with CUDA {}.{}; install a newer driver",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  const char* reason = "none is visible to this process (CUDA_VISIBLE_DEVICES)";
  if (found == cudaErrorInsufficientDriver)
    reason = "NVIDIA's driver is not installed";
  else if (found != cudaSuccess)
    reason = cudaGetErrorString(found);
  return fmt::format("{}; look at what nvidia-smi says", reason);
}

}  // namespace

Result<CudaFacts> cuda_facts_of(int ordinal) {
  CudaFacts facts;
  cudaDeviceProp properties = {};
  HF_TRY_VOID(check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  facts.name = properties.name;
  for (const char byte : properties.uuid.bytes)
    facts.uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  facts.pci_bus_id = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID,
                                 properties.pciDeviceID);
  facts.ordinal = ordinal;
  facts.compute_major = properties.major;
  facts.compute_minor = properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.memory_bytes = properties.totalGlobalMem;
  facts.l2_bytes = static_cast<std::uint64_t>(properties.l2CacheSize);
  HF_TRY_VOID(check(cudaRuntimeGetVersion(&facts.runtime_version), "cudaRuntimeGetVersion"));
  HF_TRY_VOID(check(cudaDriverGetVersion(&facts.driver_version), "cudaDriverGetVersion"));
  return facts;
}

Result<std::vector<CudaFacts>> cuda_devices() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    cudaGetLastError();
    return with_reach(Reach::host,
                      fail(ExitCode::config, "there is no GPU that it can use: {}", no_gpu_sentence(found)));
  }
  std::vector<CudaFacts> all;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    HF_TRY(CudaFacts facts, cuda_facts_of(ordinal));
    all.push_back(std::move(facts));
  }
  return all;
}

Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options) {
  HF_TRY_VOID(outcome_of(cuda_devices()));
  HF_TRY_VOID(check(cudaSetDevice(options.ordinal), "cudaSetDevice"));
  HF_TRY(CudaFacts facts, cuda_facts_of(options.ordinal));
  HF_TRY(KernelTable kernels, cuda::registry().choose(target_of(facts), options.kernels));
  HF_TRY(std::unique_ptr<cuda::MatmulCache> matmuls, cuda::MatmulCache::make());
  cudaStream_t stream = nullptr;  // of the lowest priority, the default: exchanges go first (NcclLibrary)
  HF_TRY_VOID(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(facts), std::move(kernels),
                                                              std::move(matmuls), stream, options));
}

}  // namespace holdfast::device
