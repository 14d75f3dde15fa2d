#include "tests/cuda_emulator/emulator.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cuda_emulator/hopper.h"

namespace holdfast::cuda_emulator {
namespace {

constexpr std::size_t stack_bytes = std::size_t{256} << 10;
constexpr std::size_t shared_room = std::size_t{256} << 10;
constexpr std::size_t usual_alignment = 16;  // of dynamic shared memory, and no better
constexpr unsigned block_threads_max = 1024;

[[noreturn]] void stop(const std::string& sentence) {
  std::fprintf(stderr, "CUDA emulator: %s\n", sentence.c_str());
  std::abort();
}

// Saves the registers that a call preserves, changes stacks, and restores the other side's.
#if defined(__x86_64__)
extern "C" void hf_switch_stack(void** save, void* restore);
asm(R"(
.text
.globl hf_switch_stack
.type hf_switch_stack, @function
hf_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hf_switch_stack, .-hf_switch_stack
)");
#endif

enum class State : std::uint8_t { ready, at_barrier, at_warp, at_condition, done };

struct PendingCopy {
  void* target;
  const void* source;
  std::size_t bytes, zero_bytes;
};

struct Fiber {
  Index3 thread;
  State state = State::done;
  std::uint32_t warp_mask = 0;
  void* part = nullptr;  // in what the warp does together
  const std::function<bool()>* holds = nullptr;
  const std::function<std::string()>* where = nullptr;
  std::vector<std::vector<PendingCopy>> copy_groups;
  std::vector<PendingCopy> uncommitted;
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
};

// What one operating system thread needs to run blocks.
class Block {
 public:
  Block();
  ~Block() {
    munmap(stacks_, stacks_bytes_);
    munmap(shared_, shared_room);
    munmap(open_shared_, shared_room);
  }
  void run(const Launch& launch, Index3 block, const std::function<void()>& body);

  // Of the fiber that runs.
  Fiber& current() { return fibers_[current_]; }
  unsigned current_index() const { return current_; }
  bool in_turn() const { return in_turn_; }
  Index3 block_index() const { return block_index_; }
  const Launch& launch() const { return *launch_; }
  std::byte* shared() { return shared_; }
  std::byte* open_shared() { return open_shared_; }
  void wait(State state);
  void together(std::uint32_t mask, void* mine, Combine combine);

 private:
  // Lanes of a warp that have come to do something together, by their mask.
  struct Meeting {
    std::uint32_t mask = 0, here = 0;
  };
  void prepare(unsigned index);
  void enter(unsigned index);
  bool release_barrier();
  [[noreturn]] void report_deadlock();
  static void start();

  std::vector<Fiber> fibers_;
  std::byte* shared_ = nullptr;       // as kernels see it
  std::byte* open_shared_ = nullptr;  // the same memory, never protected
  std::vector<unsigned> order_;
  std::vector<std::vector<Meeting>> meetings_;  // by warp; in one there are several where it diverges
  std::byte* stacks_ = nullptr;
  std::size_t stacks_bytes_ = stack_bytes * block_threads_max;
  const Launch* launch_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  Index3 block_index_;
  unsigned current_ = 0, threads_ = 0;
  bool in_turn_ = false;  // a fiber runs, not the scheduler
#if defined(__x86_64__)
  void* scheduler_ = nullptr;
#else
  ucontext_t scheduler_;
#endif
};

thread_local std::unique_ptr<Block> this_block;
std::uint64_t current_order = 0;

Block& block() {
  if (this_block == nullptr) this_block = std::make_unique<Block>();
  return *this_block;
}

std::vector<unsigned> order_of(unsigned count, std::uint64_t seed) {
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0U);
  if (current_order == 1) std::ranges::reverse(order);
  if (current_order > 1) std::ranges::shuffle(order, std::mt19937_64(current_order ^ (seed << 20)));
  return order;
}

Block::Block() : fibers_(block_threads_max) {
  void* memory = mmap(nullptr, stacks_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) stop("no memory for the stacks of a block");
  stacks_ = static_cast<std::byte*>(memory);
  const int file = memfd_create("shared memory of an emulated GPU", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, shared_room) != 0) stop("no memory for a block");
  for (std::byte** const view : {&shared_, &open_shared_}) {
    memory = mmap(nullptr, shared_room, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) stop("no memory for a block");
    *view = static_cast<std::byte*>(memory);
  }
  close(file);
}

void Block::start() {
  Block& self = block();
  (*self.body_)();
  self.wait(State::done);
}

void Block::prepare(unsigned index) {
  Fiber& fiber = fibers_[index];
  const Index3 size = launch_->block;
  fiber.thread = {index % size.x, index / size.x % size.y, index / (size.x * size.y)};
  fiber.state = State::ready;
  fiber.copy_groups.clear();
  fiber.uncommitted.clear();
#if defined(__x86_64__)
  auto* top = reinterpret_cast<void**>(stacks_ + stack_bytes * (index + 1));
  *--top = nullptr;  // start() never returns; the stack is aligned as after a call
  *--top = reinterpret_cast<void*>(&Block::start);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber.stack_pointer = top;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stacks_ + stack_bytes * index;
  fiber.context.uc_stack.ss_size = stack_bytes;
  makecontext(&fiber.context, &Block::start, 0);
#endif
}

void Block::enter(unsigned index) {
  current_ = index;
  in_turn_ = true;
  watch_accumulators(index);
#if defined(__x86_64__)
  hf_switch_stack(&scheduler_, fibers_[index].stack_pointer);
#else
  swapcontext(&scheduler_, &fibers_[index].context);
#endif
  stop_watching();
  in_turn_ = false;
}

void Block::wait(State state) {
  Fiber& fiber = current();
  fiber.state = state;
#if defined(__x86_64__)
  hf_switch_stack(&fiber.stack_pointer, scheduler_);
#else
  swapcontext(&fiber.context, &scheduler_);
#endif
}

bool Block::release_barrier() {
  bool any = false;
  for (unsigned i = 0; i < threads_; ++i) {
    if (fibers_[i].state == State::done) continue;
    if (fibers_[i].state != State::at_barrier) return false;
    any = true;
  }
  for (unsigned i = 0; i < threads_ && any; ++i) {
    if (fibers_[i].state == State::at_barrier) fibers_[i].state = State::ready;
  }
  return any;
}

void Block::report_deadlock() {
  std::string list, last_where;
  for (unsigned i = 0; i < threads_; ++i) {
    if (fibers_[i].state == State::at_warp)
      list += fmt::format(" {}:warp(mask {:08x})", i, fibers_[i].warp_mask);
    if (fibers_[i].state == State::at_barrier) list += fmt::format(" {}:barrier", i);
    if (fibers_[i].state != State::at_condition) continue;
    const std::string where = (*fibers_[i].where)();
    if (where != last_where) list += fmt::format(" {}:{}", i, where);  // most wait where the one before does
    last_where = where;
  }
  stop(fmt::format("{}, block ({}, {}, {}): its threads wait for each other; thread:where{}", launch_->what,
                   block_index_.x, block_index_.y, block_index_.z, list));
}

void Block::run(const Launch& launch, Index3 index, const std::function<void()>& body) {
  launch_ = &launch;
  body_ = &body;
  block_index_ = index;
  threads_ = launch.block.x * launch.block.y * launch.block.z;
  if (launch.shared_bytes + usual_alignment > shared_room)
    stop(fmt::format("{}: {} bytes of shared memory", launch.what, launch.shared_bytes));
  std::memset(shared_, 0xff, launch.shared_bytes + usual_alignment);  // NaNs
  begin_asynchronous(current_order, index.x + launch.grid.x * (index.y + launch.grid.y * index.z));
  order_ = order_of(threads_, index.x + 1);
  meetings_.resize((threads_ + warp_lanes - 1) / warp_lanes);
  for (unsigned i = 0; i < threads_; ++i) prepare(i);
  for (;;) {
    bool ran = false;
    for (const unsigned i : order_) {
      Fiber& fiber = fibers_[i];
      if (fiber.state == State::at_condition && (*fiber.holds)()) fiber.state = State::ready;
      if (fiber.state != State::ready) continue;
      enter(i);
      drift();
      ran = true;
    }
    if (ran || release_barrier()) continue;
    if (std::all_of(fibers_.begin(), fibers_.begin() + threads_,
                    [](const Fiber& each) { return each.state == State::done; }))
      return end_asynchronous();
    if (!complete_something()) report_deadlock();
  }
}

void Block::together(std::uint32_t mask, void* mine, Combine combine) {
  const unsigned warp = current_ / warp_lanes, first = warp * warp_lanes;
  const std::uint32_t lane = std::uint32_t{1} << (current_ - first);
  if ((mask & lane) == 0) stop(fmt::format("{}: a lane outside of its own mask", launch_->what));
  if (const unsigned last = first + static_cast<unsigned>(std::bit_width(mask)) - 1; last >= threads_)
    stop(fmt::format("{}: mask {:08x} of a warp without lane {}", launch_->what, mask, last - first));
  std::vector<Meeting>& meetings = meetings_[warp];
  auto meeting = std::ranges::find(meetings, mask, &Meeting::mask);
  if (meeting == meetings.end()) meeting = meetings.insert(meeting, {.mask = mask});
  meeting->here |= lane;
  current().part = mine;
  current().warp_mask = mask;
  if (meeting->here != mask) return wait(State::at_warp);
  meetings.erase(meeting);
  void* lanes[warp_lanes] = {};
  for (unsigned each = 0; each < warp_lanes; ++each) {
    if ((mask >> each & 1U) == 0) continue;
    lanes[each] = fibers_[first + each].part;
    fibers_[first + each].state = State::ready;
  }
  combine(lanes);
}

void check_limits(const Launch& launch) {
  const Index3 b = launch.block, g = launch.grid;
  if (b.x == 0 || b.y == 0 || b.z == 0 || b.x * b.y * b.z > block_threads_max || b.z > 64)
    stop(fmt::format("{}: a block of {} x {} x {} threads", launch.what, b.x, b.y, b.z));
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffU || g.y > 65535 || g.z > 65535)
    stop(fmt::format("{}: a grid of {} x {} x {} blocks", launch.what, g.x, g.y, g.z));
}

}  // namespace

void run_grid(const Launch& launch, const std::function<void()>& body) {
  check_limits(launch);
  const Index3 grid = launch.grid;
  Block& runner = block();
  const unsigned count = grid.x * grid.y * grid.z;
  for (const unsigned i : order_of(count, 0)) {
    runner.run(launch, {i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)}, body);
  }
}

void set_order(std::uint64_t order) {
  current_order = order;
}

Made& made() {
  static Made made;
  return made;
}

Index3 thread_index() {
  return this_block->current().thread;
}
Index3 block_index() {
  return this_block->block_index();
}
Index3 block_size() {
  return this_block->launch().block;
}
Index3 grid_size() {
  return this_block->launch().grid;
}
std::byte* dynamic_shared_memory() {
  return this_block->shared() + usual_alignment;
}
std::byte* aligned_shared() {
  return this_block->shared();
}
std::byte* open_shared_memory() {
  return this_block->open_shared();
}
void wait_until(const std::function<bool()>& holds, const std::function<std::string()>& where) {
  if (holds()) return;
  Fiber& fiber = this_block->current();
  fiber.holds = &holds;
  fiber.where = &where;
  this_block->wait(State::at_condition);
}
const Launch& launched() {
  return this_block->launch();
}
int thread_number() {
  return static_cast<int>(this_block->current_index());
}
void stop_kernel(const std::string& sentence) {
  const Index3 index = block_index();
  const std::string thread = this_block->in_turn() ? fmt::format(", thread {}", thread_number()) : "";
  stop(fmt::format("{}, block ({}, {}, {}){}: {}", this_block->launch().what, index.x, index.y, index.z,
                   thread, sentence));
}
void block_barrier() {
  this_block->wait(State::at_barrier);
}
void warp_together(std::uint32_t mask, void* mine, Combine combine) {
  this_block->together(mask, mine, combine);
}
int lane_index() {
  return static_cast<int>(this_block->current_index() % warp_lanes);
}

namespace {
void do_copy(const PendingCopy& copy) {
  std::memcpy(copy.target, copy.source, copy.bytes);
  std::memset(static_cast<std::byte*>(copy.target) + copy.bytes, 0, copy.zero_bytes);
}
}  // namespace

void copy_later(void* target, const void* source, std::size_t bytes, std::size_t zero_bytes) {
  const PendingCopy copy{target, source, bytes, zero_bytes};
  if (current_order == 1) return do_copy(copy);
  this_block->current().uncommitted.push_back(copy);
}

void commit_copies() {
  Fiber& fiber = this_block->current();
  fiber.copy_groups.push_back(std::move(fiber.uncommitted));
  fiber.uncommitted.clear();
}

void expect_count(const unsigned* counter, unsigned count) {
  if (*counter >= count) return;
  stop_kernel(
      fmt::format("waits for {} of something that is {}, and no block that began before it is left to "
                  "change that",
                  count, *counter));
}

void await_copies(int groups_left) {
  auto& groups = this_block->current().copy_groups;
  while (groups.size() > static_cast<std::size_t>(groups_left)) {
    for (const PendingCopy& copy : groups.front()) do_copy(copy);
    groups.erase(groups.begin());
  }
}

}  // namespace holdfast::cuda_emulator
