// The CPU device: a ring of launches, one thread that runs them in order, and its team.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/team.h"
#include "kernels/matmul.h"
#include "kernels/plugin.h"
#include "kernels/reference/element.h"
#include "runtime/core/injected_fault.h"
#include "runtime/device/counting_device.h"
#include "runtime/device/cpu/call_watch.h"
#include "runtime/device/cpu/shadow_runner.h"
#include "runtime/device/device.h"
#include "runtime/os/env.h"

namespace holdfast::device {

namespace {

// Action of the queue thread on a slot.
enum class Action : std::uint8_t { run, prepare, begin_count, allocate, stamp, count_as, spoil, stop };

struct Slot {
  OpId id = OpId::count;
  Action action = Action::run;
  CallPlace place;
  std::uint64_t shadow_step = 0;
  alignas(16) std::byte arguments[op_bytes_max];
};

bool same_shape(const Matmul& a, const Matmul& b) {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.transpose_a == b.transpose_a &&
         a.transpose_b == b.transpose_b && a.accumulate == b.accumulate && a.dtype == b.dtype &&
         a.dtype_c == b.dtype_c;
}

// Adds an error to the elements of one tile of 16 x 16 of C, in the middle of it (less where C is smaller):
// 2^8 times the first element of the tile that is finite and not 0, or 2^8 if there is none. The result is
// finite where that product is.
void spoil_tile(const Matmul& op) {
  constexpr std::int64_t side = 16;
  constexpr double factor = 256.0;
  const auto first_of = [](std::int64_t count) { return count / side / 2 * side; };
  const std::int64_t row_begin = first_of(op.m), row_end = std::min(op.m, row_begin + side);
  const std::int64_t column_begin = first_of(op.n), column_end = std::min(op.n, column_begin + side);
  std::optional<double> error;
  const auto for_each = [&](const auto& visit) {
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      for (std::int64_t column = column_begin; column < column_end; ++column) visit(row * op.ldc + column);
    }
  };
  for_each([&](std::int64_t index) {
    const double value = element(op.c, index, op.dtype_c);
    if (!error.has_value() && std::isfinite(value) && std::abs(value) > 0.0) error = factor * value;
  });
  for_each([&](std::int64_t index) {
    set_element(op.c, index, op.dtype_c, element(op.c, index, op.dtype_c) + error.value_or(factor));
  });
}

// WrongProduct makes matrix products wrong in one tile of their result, for tests (DeviceFault): what a broken unit
// of a processor does, where everything else goes on. It is for the thread of the queue.
class WrongProduct {
 public:
  // From now on, the next product is wrong, or that and every later one of its shape.
  void begin(DeviceFault fault) {
    fault_ = fault;
    of_shape_.reset();
  }
  // Called after each op that has run. `arguments` is the struct of the op.
  void after(OpId id, const void* arguments) {
    if (!fault_.has_value() || id != Matmul::id) return;
    const auto& op = *static_cast<const Matmul*>(arguments);
    if (of_shape_.has_value() && !same_shape(*of_shape_, op)) return;
    of_shape_ = op;
    spoil_tile(op);
    if (*fault_ == DeviceFault::wrong_product) fault_.reset();
  }

 private:
  std::optional<DeviceFault> fault_;
  std::optional<Matmul> of_shape_;  // the first product that was spoiled
};

// QueueClock is the clock of a queue that one thread serves, which calls the functions that are not const.
class QueueClock {
 public:
  void begin_idle() { idle_.store(idle_ns_ - begin_of_idle(), std::memory_order_relaxed); }
  void end_idle() {
    idle_ns_ += posix_env().monotonic_ns() - idle_since_ns_;
    idle_.store(idle_ns_, std::memory_order_relaxed);
  }
  void count_as(SpanKind kind) {
    const std::int64_t now_ns = posix_env().monotonic_ns();
    std::atomic<std::int64_t>& worked = worked_ns_[static_cast<std::size_t>(kind_)];
    worked.store(
        worked.load(std::memory_order_relaxed) + (now_ns - counted_ns_) - (idle_ns_ - idle_counted_ns_),
        std::memory_order_relaxed);
    kind_ = kind;
    counted_ns_ = now_ns;
    idle_counted_ns_ = idle_ns_;
  }
  std::int64_t idle_ns(std::int64_t now_ns) const {
    const std::int64_t idle = idle_.load(std::memory_order_relaxed);
    return idle >= 0 ? idle : now_ns + idle;
  }
  std::int64_t worked_ns(SpanKind kind) const {
    return worked_ns_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
  }

 private:
  std::int64_t begin_of_idle() { return idle_since_ns_ = posix_env().monotonic_ns(); }

  // Idle time so far while the queue works; while it is idle, that less the time at which that began, which is
  // negative. So one word says both, and a reader never sees half of a change.
  std::atomic<std::int64_t> idle_{0};
  std::array<std::atomic<std::int64_t>, static_cast<std::size_t>(SpanKind::count) + 1> worked_ns_{};
  std::int64_t idle_ns_ = 0, idle_since_ns_ = 0;
  SpanKind kind_ = SpanKind::count;
  std::int64_t counted_ns_ = 0, idle_counted_ns_ = 0;
};

class CpuDevice final : public Device, public WatchedCalls, private WorkClock {
 public:
  CpuDevice(const CpuDeviceOptions& options, KernelTable kernels, bool counts_workspace)
      : isa_(options.isa),
        observer_(options.observer),
        after_(options.after),
        counts_workspace_(counts_workspace),
        runs_at_launch_(options.runs_at_launch),
        kernels_(std::move(kernels)),
        slots_(options.queue_capacity),
        team_(options.threads, cpu::use_one_thread_per_primitive),
        scratch_(empty_scratch()),
        shadows_(counts_workspace),
        matmuls_(options.threads),
        context_(team_, scratch_, matmuls_) {
    if (runs_at_launch_) {
      cpu::use_one_thread_per_primitive();
    } else {
      queue_thread_ = std::thread([this] { serve(); });
    }
  }

  ~CpuDevice() override {
    if (runs_at_launch_) return;
    push(OpId::count, Action::stop, nullptr, 0);
    queue_thread_.join();
  }

  Ticket ticket() override { return submitted_.load(std::memory_order_relaxed); }
  void count_ops_in(std::atomic<std::uint64_t>& done) override { reported_ = &done; }
  void report_plugins(std::function<void(std::string_view)> report) override {
    synchronize();  // the queue thread reads it
    report_plugin_ = std::move(report);
  }
  void watch_calls(CallWatch* watch) override {
    synchronize();  // the queue thread reads it
    watch_calls_ = watch;
  }
  std::vector<ShadowResult> take_shadow_results() override {
    synchronize();
    return shadows_.take();
  }
  bool reached(Ticket ticket) const override { return completed_.load(std::memory_order_acquire) >= ticket; }
  bool wait(Ticket ticket, std::int64_t timeout_us) override;

  void stamp(Stamp& target) override {
    Stamp* const pointer = &target;
    push(OpId::count, Action::stamp, &pointer, sizeof(pointer));
  }

  WorkClock* work_clock() override { return this; }

  void launch_fault(DeviceFault fault) override {
    HF_CHECK(is_wrong_product(fault), "a fault of a GPU on a processor");
    push(OpId::count, Action::spoil, &fault, sizeof(fault));
  }

  Result<OwnedMemory> allocate(MemoryKind kind, std::uint64_t bytes) override {
    return host_memory(kind, bytes);
  }
  bool host_sees_memory() const override { return true; }
  Result<void> status() override { return {}; }
  bool lost() override { return false; }

  void begin_planning() override;
  Result<void> end_planning() override;
  std::uint64_t workspace_bytes() const override { return workspace_bytes_.load(std::memory_order_relaxed); }

  const KernelTable& kernels() const override { return kernels_; }
  std::string description() const override;
  std::string identity(DType precision) const override { return with_bits("cpu", precision); }
  int threads() const override { return team_.threads(); }

 private:
  std::int64_t idle_ns(std::int64_t now_ns) const override { return clock_.idle_ns(now_ns); }
  std::int64_t worked_ns(SpanKind kind) const override { return clock_.worked_ns(kind); }
  void count_as(SpanKind kind) override { push(OpId::count, Action::count_as, &kind, sizeof(kind)); }

  void submit(OpId id, const void* arguments, std::size_t bytes) override {
    push(id, planning_ ? Action::prepare : Action::run, arguments, bytes);
  }
  void push(OpId id, Action action, const void* arguments, std::size_t bytes);
  std::string with_bits(std::string_view name, DType precision) const;

  // The queue thread.
  void serve();
  void await_submission(std::uint64_t done);
  void execute(const Slot& slot);
  void run_on_kernel(const Slot& slot, const Implementation& kernel);
  const KernelRule* shadow_of(const KernelChoice& choice, const Slot& slot, const ShadowedCall& call) const;
  void run_compared(const KernelRule& shadow, const ShadowedCall& call, const Slot& slot,
                    const Implementation& kernel);
  void complete(std::uint64_t done);
  bool allocate_scratch();
  cpu::Scratch empty_scratch() const {
    return cpu::Scratch(counts_workspace_ ? -team_.threads() : team_.threads());
  }

  const CpuIsa isa_;
  const std::function<void(OpId)> observer_;
  const std::function<void(OpId, const void*)> after_;
  const bool counts_workspace_;
  const bool runs_at_launch_;
  const KernelTable kernels_;
  std::vector<Slot> slots_;
  cpu::Team team_;
  cpu::Scratch scratch_;
  ShadowRunner shadows_;
  cpu::MatmulCache matmuls_;
  cpu::Context context_;
  WrongProduct wrong_product_;
  QueueClock clock_;
  bool planning_ = false;  // of the launching thread

  // Sequentially consistent against sleeping_ and waiters_: who publishes looks for sleepers afterwards, who
  // goes to sleep looks for news afterwards, so one of them sees the other.
  alignas(64) std::atomic<std::uint64_t> submitted_{0};
  alignas(64) std::atomic<std::uint64_t> completed_{0};
  alignas(64) std::atomic<bool> sleeping_{false};               // the queue thread
  std::atomic<std::atomic<std::uint64_t>*> reported_{nullptr};  // count_ops_in()
  std::function<void(std::string_view)> report_plugin_;         // or empty
  CallWatch* watch_calls_ = nullptr;
  std::atomic<int> waiters_{0};  // threads inside wait()
  std::string
      refused_;  // why what a plug-in asked for since the last planning is refused; of the queue thread
  std::atomic<bool> allocated_{true};  // whether the last allocation of scratch worked
  std::atomic<std::uint64_t> workspace_bytes_{0};
  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable work_done_;
  std::thread queue_thread_;  // last: it uses all of the above
};

void CpuDevice::push(OpId id, Action action, const void* arguments, std::size_t bytes) {
  const std::uint64_t position = submitted_.load(std::memory_order_relaxed);
  if (position >= slots_.size()) {
    while (!wait(position - slots_.size() + 1, 1'000'000)) {
    }
  }
  Slot& slot = slots_[position % slots_.size()];
  slot.id = id;
  slot.action = action;
  slot.place = place_of(scope());
  slot.shadow_step = shadow_step();
  if (bytes > 0) std::memcpy(slot.arguments, arguments, bytes);
  submitted_.store(position + 1);
  if (runs_at_launch_) {
    execute(slot);
    complete(position + 1);
  } else if (sleeping_.load()) {
    const std::lock_guard lock(mutex_);
    work_arrived_.notify_one();
  }
}

bool CpuDevice::wait(Ticket ticket, std::int64_t timeout_us) {
  if (reached(ticket)) return true;
  if (timeout_us <= 0) return false;
  waiters_.fetch_add(1);
  std::unique_lock lock(mutex_);
  const bool done = work_done_.wait_for(lock, std::chrono::microseconds(timeout_us),
                                        [&] { return completed_.load() >= ticket; });
  lock.unlock();
  waiters_.fetch_sub(1);
  return done;
}

// Names the widest instructions that own kernels are compiled for. A run in bf16 reaches every kernel.
std::string CpuDevice::description() const {
  return with_bits(fmt::format("cpu, {}", name_of(std::min(isa_, CpuIsa::avx512))), DType::bf16);
}

std::string CpuDevice::with_bits(std::string_view name, DType precision) const {
  const std::string bits = bits_of(kernels_, precision);
  return fmt::format("{}{}{}", name, bits.empty() ? "" : ", ", bits);
}

void CpuDevice::begin_planning() {
  planning_ = true;
  if (counts_workspace_) push(OpId::count, Action::begin_count, nullptr, 0);
}

Result<void> CpuDevice::end_planning() {
  planning_ = false;
  push(OpId::count, Action::allocate, nullptr, 0);
  synchronize();
  if (!refused_.empty()) return fail(ExitCode::config, "{}", std::exchange(refused_, {}));
  if (!allocated_.load(std::memory_order_relaxed)) {
    return fail(
        ExitCode::does_not_fit,
        "the CPU device could not allocate its workspace of {} threads: expected enough free memory; use "
        "fewer threads, a smaller microbatch or a shorter sequence",
        threads());
  }
  return {};
}

void CpuDevice::await_submission(std::uint64_t done) {
  const auto submitted = [&] { return submitted_.load() > done; };
  if (submitted()) return;
  clock_.begin_idle();
  if (!cpu::spin_until(submitted)) {
    std::unique_lock lock(mutex_);
    sleeping_.store(true);
    work_arrived_.wait(lock, submitted);
    sleeping_.store(false);
  }
  clock_.end_idle();
}

void CpuDevice::serve() {
  cpu::use_one_thread_per_primitive();
  for (std::uint64_t done = 0;; ++done) {
    await_submission(done);
    const Slot& slot = slots_[done % slots_.size()];
    if (slot.action == Action::stop) return;
    execute(slot);
    complete(done + 1);
  }
}

bool CpuDevice::allocate_scratch() {
  if (scratch_.enough()) return true;
  const bool allocated = scratch_.allocate();
  workspace_bytes_.store(scratch_.bytes() + shadows_.bytes(), std::memory_order_relaxed);
  return allocated;
}

void CpuDevice::execute(const Slot& slot) {
  if (slot.action == Action::allocate) {
    const bool has_shadows = shadows_.allocate();
    allocated_.store(allocate_scratch() && has_shadows, std::memory_order_relaxed);
    workspace_bytes_.store(scratch_.bytes() + shadows_.bytes(), std::memory_order_relaxed);
    return;
  }
  if (slot.action == Action::begin_count) {
    scratch_ = empty_scratch();
    shadows_.forget();
    workspace_bytes_.store(0, std::memory_order_relaxed);
    return;
  }
  if (slot.action == Action::stamp) {
    Stamp* target = nullptr;
    std::memcpy(&target, slot.arguments, sizeof(target));
    *target = {.time_ns = posix_env().monotonic_ns(), .worked_ns = posix_env().thread_processor_ns()};
    return;
  }
  if (slot.action == Action::count_as) {
    SpanKind kind = SpanKind::count;
    std::memcpy(&kind, slot.arguments, sizeof(kind));
    clock_.count_as(kind);
    return;
  }
  if (slot.action == Action::spoil) {
    DeviceFault fault = DeviceFault::wrong_product;
    std::memcpy(&fault, slot.arguments, sizeof(fault));
    wrong_product_.begin(fault);
    return;
  }
  HF_CHECK(slot.id < OpId::count, "launch of an unknown op {}", static_cast<int>(slot.id));
  const KernelChoice& choice = kernels_[static_cast<std::size_t>(slot.id)];
  const ShadowedCall call{.id = slot.id, .place = slot.place, .arguments = slot.arguments};
  const KernelRule* const shadow = shadow_of(choice, slot, call);
  const bool is_compared = shadow != nullptr && slot.action == Action::run;
  // Reports a plug-in from its first question on, which is whether it computes the call.
  const ImplementationOrder& order = choice.order_of(slot.place, slot.arguments);
  const bool is_reported = report_plugin_ && !order.empty() && order.front()->plugin != nullptr;
  if (is_reported) report_plugin_(order.front()->plugin->line);
  const Implementation& kernel = first_that_computes(order, slot.arguments);
  if (is_reported && (kernel.plugin == nullptr || is_compared)) report_plugin_({});
  if (is_compared) return run_compared(*shadow, call, slot, kernel);
  run_on_kernel(slot, kernel);
  if (is_reported && kernel.plugin != nullptr) report_plugin_({});
  if (shadow == nullptr) return;
  std::string problem = shadows_.plan(*shadow, context_, call, report_plugin_);
  if (refused_.empty()) refused_ = std::move(problem);
}

// Returns the shadow that is to be planned, or compared, with a call.
const KernelRule* CpuDevice::shadow_of(const KernelChoice& choice, const Slot& slot,
                                       const ShadowedCall& call) const {
  if (choice.shadows.empty()) return nullptr;
  if (slot.action == Action::prepare) return ShadowRunner::shadow_of(choice, call, 0);
  return slot.shadow_step > 0 ? ShadowRunner::shadow_of(choice, call, slot.shadow_step) : nullptr;
}

void CpuDevice::run_compared(const KernelRule& shadow, const ShadowedCall& call, const Slot& slot,
                             const Implementation& kernel) {
  shadows_.plan(shadow, context_, call, report_plugin_);
  HF_CHECK(shadows_.allocate() && allocate_scratch(), "no memory for a shadow of {}, which was not planned",
           name_of(slot.id));
  const auto run_chosen = [&] {
    const bool is_reported = report_plugin_ && kernel.plugin != nullptr;
    if (is_reported) report_plugin_(kernel.plugin->line);
    run_on_kernel(slot, kernel);
    if (is_reported) report_plugin_({});
  };
  shadows_.run(shadow, context_, call, kernel, run_chosen, report_plugin_);
}

void CpuDevice::run_on_kernel(const Slot& slot, const Implementation& kernel) {
  kernel.prepare_on(context_, slot.arguments);
  if (slot.action == Action::prepare) {
    if (refused_.empty() && kernel.plugin != nullptr) {
      const std::size_t bytes = kernels::workspace_bytes(kernel, context_, slot.arguments);
      refused_ = kernels::workspace_problem(*kernel.plugin, bytes);
    }
    return;
  }
  HF_CHECK(!counts_workspace_, "{} was launched on a device that only counts", name_of(slot.id));
  HF_CHECK(allocate_scratch(), "no memory for the scratch of {}, which was not planned", name_of(slot.id));
  if (observer_) observer_(slot.id);
  if (watch_calls_ != nullptr) watch_calls_->before(slot.id, slot.place, slot.arguments, kernel);
  kernel.run_on(context_, slot.arguments);
  wrong_product_.after(slot.id, slot.arguments);
  if (watch_calls_ != nullptr) watch_calls_->after(slot.id, slot.arguments);
  if (after_) after_(slot.id, slot.arguments);
}

void CpuDevice::complete(std::uint64_t done) {
  completed_.store(done);
  if (std::atomic<std::uint64_t>* const reported = reported_.load(std::memory_order_relaxed);
      reported != nullptr)
    reported->store(done, std::memory_order_relaxed);
  if (waiters_.load() > 0) {
    const std::lock_guard lock(mutex_);
    work_done_.notify_all();
  }
}

std::unique_ptr<Device> make_device(const CpuDeviceOptions& options, bool counts_workspace) {
  HF_CHECK(options.threads >= 1, "a CPU device needs at least one thread, not {}", options.threads);
  HF_CHECK(options.queue_capacity >= 1, "a CPU device needs room for at least one launch");
  Result<KernelTable> kernels = options.registry->choose(options.isa, options.kernels);
  HF_CHECK(kernels.ok(), "{}", kernels.error().message);
  return std::make_unique<CpuDevice>(options, std::move(kernels).value(), counts_workspace);
}

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return make_device(options, /*counts_workspace=*/false);
}

std::unique_ptr<Device> make_counting_cpu_device(const CpuDeviceOptions& options) {
  return make_device(options, /*counts_workspace=*/true);
}

}  // namespace holdfast::device
