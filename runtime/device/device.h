// Device: an in-order asynchronous queue, a workspace and a table of kernels. It corresponds to a stream of a
// GPU; the CPU device has a thread of its own for the queue, and a fixed team of threads that the kernels
// share.
//
//   device->launch(RmsNormForward{...});          // returns at once
//   Device::Ticket done = device->ticket();       // everything launched so far
//   while (!device->wait(done, 1000)) poll_the_network();
//
// Threads: one thread launches; any thread may poll. Arguments are copied; the memory they point to must stay
// valid until the op is reached. launch() waits when the queue is full. An op that was planned (see
// begin_planning) allocates nothing when it runs; one that was not makes what it needs then, and tests and
// sampling rely on that. Destroying a device first runs everything launched. Bits: every kernel gives the
// same bits for any number of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/op.h"
#include "kernels/op_scope.h"
#include "kernels/product_plan.h"
#include "kernels/registry.h"
#include "runtime/core/device_event.h"
#include "runtime/core/injected_fault.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/result.h"
#include "runtime/device/op_inspector.h"
#include "runtime/device/shadow_result.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::device {

// Looks after what the queue of a device waits for and cannot end by itself: exchanges with ranks that may be dead.
class QueueWatch {
 public:
  // Called while the launching thread waits for the queue, at least once in a wait that is not over at once. It may
  // sleep, 1 ms at most, and neither launches nor waits for the device.
  virtual void look() = 0;

 protected:
  ~QueueWatch() = default;
};

class Device : public DeviceQueue {
 public:
  using Ticket = std::uint64_t;  // number of ops launched up to a point of the queue

  virtual ~Device() = default;

  template <typename Op>
  void launch(const Op& op) {
    static_assert(std::is_trivially_copyable_v<Op> && sizeof(Op) <= op_bytes_max);
    submit(Op::id, &op, sizeof(Op));
    if (inspector_ != nullptr) inspect(Op::id, &op);
  }

  // Runs `launches`, which launches the same ops with the same arguments every time for one `key`, with no
  // tickets in between: a device may remember them and run them as one. The bits are the same. While there is
  // an inspector, they run one by one, so that it sees them.
  template <typename Launches>
  void repeat(std::uint64_t key, const Launches& launches) {
    const bool remembers = inspector_ == nullptr;
    if (remembers && !begin_repeated(key)) return;
    launches();
    if (remembers) end_repeated(key);
  }

  // Makes `inspector` see every op that is launched from now on; null ends that. It outlives its use. Called
  // by the launching thread, neither inside repeat() nor by an inspector.
  void inspect_with(OpInspector* inspector) { inspector_ = inspector; }
  // Returns the inspector that is set, or null.
  OpInspector* inspector() const { return inspector_; }
  // Says what is launched for. The launching thread keeps it up to date as far as inspectors are to know it; its layer and
  // its part are right for all ops of a layer and of the head, because rules choose their kernels by them
  // (kernels/call_filter.h).
  OpScope& scope() { return scope_; }

  // Says that what is launched from now on belongs to a step (counted from 1), in which the shadows that are due
  // (KernelChoice::shadows) are compared; 0: to none. Where none is due, it changes nothing.
  void shadow_step(std::uint64_t step) { shadow_step_ = step; }
  // Returns what was found since the last call, an element for each op, layer and kernel. Called while nothing is in flight.
  virtual std::vector<ShadowResult> take_shadow_results() { return {}; }

  virtual Ticket ticket() = 0;
  virtual bool reached(Ticket ticket) const = 0;
  // Waits at most `timeout_us` (0 = poll); returns true when the ticket is reached.
  virtual bool wait(Ticket ticket, std::int64_t timeout_us) = 0;
  // Returns whether everything launched so far has run.
  bool idle() { return reached(ticket()); }
  void synchronize() {
    while (!wait(ticket(), 1'000'000)) {
    }
  }

  // Returns whether other queues of the device and this one can wait for each other (record() and wait_for()).
  // Neither is called inside repeat(). What the queue waits for is not an op that ends by itself: whoever calls
  // wait_for() sets a watch, until the last of these events is reached. It outlives its use.
  virtual bool orders_by_events() const { return false; }
  void record(DeviceEvent /*event*/) override { HF_CHECK(false, "a device without events"); }
  void wait_for(DeviceEvent /*event*/) override { HF_CHECK(false, "a device without events"); }
  // Sets the watch, or none (null). The launching thread calls it.
  void watch_with(QueueWatch* watch) {
    watch_ = watch;
    launching_thread_ = std::this_thread::get_id();
  }

  // Makes the device store the number of ops that have run in a counter from now on, as far as it learns of
  // them: a monitor then sees progress. The counter outlives the device, or the next call. Called while
  // nothing is in flight. A device that runs nothing counts nothing.
  virtual void count_ops_in(std::atomic<std::uint64_t>& /*done*/) {}

  // Makes the device call `report` from its queue before each kernel of a plug-in, with PluginKernel::line, and after it
  // with an empty one: a monitor then names a kernel that crashes or hangs. Called while nothing is in flight. A
  // device without plug-ins never calls it.
  virtual void report_plugins(std::function<void(std::string_view)> /*report*/) {}

  // Writes `target` when the queue gets here; the launching thread may read it after a wait() for a ticket
  // that was taken later. `target` stays valid until then. Not inside repeat(). May allocate.
  virtual void stamp(Stamp& target) = 0;

  // Returns the clock of the queue; null for a device that has none.
  virtual WorkClock* work_clock() { return nullptr; }

  // Allocates memory that the kernels work on. ExitCode::does_not_fit, with a clause that gives the reason.
  // The memory may outlive the device.
  virtual Result<OwnedMemory> allocate(MemoryKind kind, std::uint64_t bytes) = 0;
  // Returns whether the host may touch MemoryKind::device, too, while nothing that was launched works on it.
  virtual bool host_sees_memory() const = 0;

  // Copies `source`, of MemoryKind::device, to `target`, of MemoryKind::host_visible, when `after` is
  // reached, concurrently with later ops, which must not write it. Returns true when the copy is complete, or
  // false: status() has the error. Any thread, several at a time. Only for a device whose memory the host
  // does not see.
  virtual bool read_beside(Ticket /*after*/, std::span<const std::byte> /*source*/, std::byte* /*target*/) {
    HF_CHECK(false, "the host sees the memory of this device");
    return false;
  }

  // Returns the error of the device itself, as far as it was waited for; ops that were launched since did not
  // run, and tickets are reached all the same. Check it before you trust results.
  virtual Result<void> status() = 0;
  // Returns whether such an error has made the device unusable for this process.
  virtual bool lost() = 0;

  // Begins planning: until end_planning(), launch() runs nothing. It only creates what the op will need
  // (primitives, workspace), so that the same calls later allocate nothing; pointers are not read and may be
  // null. end_planning() allocates the workspace; its error is that there is not enough memory. Tickets count
  // planned ops too.
  virtual void begin_planning() = 0;
  virtual Result<void> end_planning() = 0;
  virtual std::uint64_t workspace_bytes() const = 0;

  virtual const KernelTable& kernels() const = 0;
  // Returns the kind of the device, the processor's instructions and the kernels with bits of their own, such
  // as "cpu, avx512, matmul amx".
  virtual std::string description() const = 0;
  // Returns the part of the description that decides the bits of a run in `precision` (so neither threads nor
  // instructions that give the same bits): "cpu" in fp32, "cpu, matmul amx" in bf16. It is stored with a run;
  // a resume with another one reports that. A device that cannot tell returns the whole description.
  virtual std::string identity(DType /*precision*/) const { return description(); }
  // Returns the choices of planning beyond the table of kernels, one a line: a library's algorithms for the
  // products of this run. For its log; empty where description() is complete.
  virtual std::string plan_description() const { return {}; }
  // Gives algorithms for the products that are planned from now on, where the device has them; else, and on devices
  // that choose none, they change nothing. For a product that two calls have, the first one counts.
  virtual void prefer_plan(const ProductAlgorithms& /*plan*/) {}
  // Returns the algorithms that could compute the product, the one that it would take by itself first; in the words
  // of a plan. Empty where the device chooses none.
  virtual std::vector<std::string> algorithms_for(const Matmul& /*op*/) { return {}; }
  // Returns sentences about planned ops that take a far slower path than this device has for ops of their
  // kind (a head size without a tensor-core kernel, a product that the library has no algorithm for), each
  // with the expected cost. Valid after end_planning(); empty where all are fast.
  virtual std::vector<std::string> slow_paths() const { return {}; }
  virtual int threads() const = 0;

  // Breaks the device the way hardware and wrong kernels do, for tests. A device that is not the host's
  // processor launches a kernel that breaks it; the host's processor makes wrong products, from this place of
  // the queue on (is_wrong_product()). Neither supports the other's faults.
  virtual void launch_fault(DeviceFault /*fault*/) { HF_CHECK(false, "a device without faults"); }

 protected:
  std::uint64_t shadow_step() const { return shadow_step_; }
  // Calls the watch, in a wait of the launching thread.
  void look_after_queue() {
    if (std::this_thread::get_id() != launching_thread_ || watch_ == nullptr) return;
    QueueWatch* const watch = std::exchange(watch_, nullptr);
    watch->look();
    watch_ = watch;
  }

 private:
  virtual void submit(OpId id, const void* arguments, std::size_t bytes) = 0;
  // Returns false when the device remembers the launches of `key`, and has launched them. Otherwise the
  // launches and end_repeated() follow.
  virtual bool begin_repeated(std::uint64_t /*key*/) { return true; }
  virtual void end_repeated(std::uint64_t /*key*/) {}

  // Calls the inspector, which is not set meanwhile: what it launches is not inspected.
  void inspect(OpId id, const void* arguments) {
    OpInspector* const inspector = std::exchange(inspector_, nullptr);
    inspector->launched(id, arguments);
    inspector_ = inspector;
  }

  QueueWatch* watch_ = nullptr;
  std::thread::id launching_thread_;
  OpInspector* inspector_ = nullptr;
  OpScope scope_;
  std::uint64_t shadow_step_ = 0;
};

// Allocates all memory of a plan.
inline Result<MemoryArena> allocate_memory(Device& device, const MemoryPlan& plan) {
  return MemoryArena::allocate(
      plan, [&device](MemoryKind kind, std::uint64_t bytes) { return device.allocate(kind, bytes); });
}

struct CpuDeviceOptions {
  int threads = 1;
  CpuIsa isa = best_cpu_isa();                          // highest instruction set that kernels may use
  std::vector<KernelPreference> kernels = {};           // by name; the others are chosen by the registry
  const KernelRegistry* registry = &kernel_registry();  // outlives the device
  std::size_t queue_capacity = 16384;                   // launches in flight; launch() waits when it is full
  bool runs_at_launch = false;  // ops run on the launching thread: simulations are the same each time
  // Both are called on the queue thread, before and after each op runs; for tests and profilers. `arguments`
  // is the struct of the op.
  std::function<void(OpId)> observer = {};
  std::function<void(OpId, const void* arguments)> after = {};
};
// Makes a CPU device. The requests must be such that KernelRegistry::choose() accepts them.
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

}  // namespace holdfast::device
