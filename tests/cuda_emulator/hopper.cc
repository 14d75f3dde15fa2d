#include "tests/cuda_emulator/hopper.h"

#include <cuda.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "runtime/core/tensor.h"
#include "tests/cuda_emulator/emulator.h"

namespace holdfast::cuda_emulator {
using namespace core;

namespace {

constexpr unsigned window_base = 1024;  // of dynamic shared memory; the system has what is below
constexpr unsigned window_bytes = 1U << 18;
constexpr unsigned unit = 16;  // bytes, the least that the asynchronous proxy reads or writes
constexpr unsigned page = 4096;
constexpr unsigned warpgroup = 128;  // threads
constexpr unsigned product_rows = 64, product_depth = 16;
constexpr unsigned registers_of_block = 65536;
constexpr std::byte in_flight{0xff};  // NaNs, in the target of a copy
// A signalling NaN, in the accumulators of a product: arithmetic with it traps.
constexpr std::uint32_t signalling = 0x7fa5ca1e, quieted = signalling | 0x400000;

// Holds what cuTensorMapEncodeTiled() knows.
struct TensorMap {
  static constexpr std::uint64_t expected_magic = 0x70616d726f736e65;
  std::uint64_t magic = 0;
  const std::byte* address = nullptr;
  std::uint64_t sizes[3] = {}, strides[2] = {};
  std::uint32_t box[3] = {};
  std::uint32_t swizzled = 0;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

using Units = std::bitset<window_bytes / unit>;

unsigned swizzle(unsigned address) {
  return address ^ (address >> 7 & 7U) << 4;
}

struct Barrier {
  unsigned arrivals, missing;
  std::int64_t bytes = 0;      // expected and not arrived
  std::int64_t unclaimed = 0;  // expected, and no copy has been started for them
  std::uint64_t phase = 0;
  unsigned maker;
  bool visible = false;  // to the asynchronous proxy
  bool odd() const { return phase % 2 != 0; }
};

struct Copy {
  TensorMap map;
  int first[3];
  unsigned target, rows, row_bytes;
  std::uint64_t barrier;
  unsigned thread;
  std::vector<unsigned> missing;  // rows
  unsigned bytes() const { return rows * row_bytes; }
};

// A matrix descriptor of wgmma (PTX ISA, "Matrix Descriptor Format"). Rows are those across the sum.
struct Matrix {
  unsigned start, leading, stride, swizzle_mode;
  bool transposed;

  Matrix(std::uint64_t bits, bool transposed_) : transposed(transposed_) {
    constexpr std::uint64_t known = 0xc000'3fff'3fff'3fff;
    const auto bytes_at = [&](int bit) { return static_cast<unsigned>(bits >> bit & 0x3fffU) * unit; };
    start = bytes_at(0);
    leading = bytes_at(16);
    stride = bytes_at(32);
    swizzle_mode = static_cast<unsigned>(bits >> 62);
    if ((bits & ~known) != 0 || swizzle_mode > 1)
      stop_kernel(fmt::format(
          "matrix descriptor {:016x}: the emulator knows no base offset, and swizzles of 128 bytes "
          "(1) or none (0) alone",
          bits));
  }
  // Returns where element (row, k) is.
  unsigned place(unsigned row, unsigned k) const {
    if (swizzle_mode == 0) {
      return transposed ? start + row / 8 * stride + k / 8 * leading + k % 8 * 16 + row % 8 * 2
                        : start + row / 8 * stride + k / 8 * leading + row % 8 * 16 + k % 8 * 2;
    }
    return swizzle(transposed ? start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2
                              : start + row / 8 * stride + row % 8 * 128 + k * 2);
  }
};

struct Accumulator {
  float* place;
  std::vector<float> values;
  std::uint64_t last;  // product that adds to it
};

// A thread's part in a product.
struct Part {
  float* place = nullptr;
  std::array<unsigned, 4> left = {};
};

struct Product {
  WarpgroupProduct what;
  std::vector<Part> parts = std::vector<Part>(warpgroup);
  unsigned here = 0;
  Units reads = {};
  std::uint64_t read_hash = 0;
  bool issued() const { return here == warpgroup; }
};

struct Warpgroup {
  std::deque<Product> products;  // from number `done` on
  std::uint64_t done = 0, awaited = 0;
  bool can_run() const { return !products.empty() && products.front().issued(); }
};

struct Thread {
  std::uint64_t issued = 0;           // products
  std::vector<std::uint64_t> groups;  // products issued when each was committed
  std::vector<Accumulator> accumulators;
  bool fenced = false;
  int registers = 0;
};

struct NamedBarrier {
  int threads = 0, here = 0;
  std::uint64_t turn = 0;
};

// Holds what is asynchronous in a block. It begins with the first such instruction.
class Asynchronous {
 public:
  Asynchronous(std::uint64_t order, unsigned block);
  ~Asynchronous() { protect(0, shared_bytes_, PROT_READ | PROT_WRITE); }

  Barrier& barrier_at(const std::byte* address);
  void set_barrier(const std::byte* address, unsigned arrivals);
  void arrive(const std::byte* address, unsigned bytes);
  void fence(unsigned thread);
  std::string text_of(const Barrier& barrier, std::uint64_t name) const;
  void start(Copy copy);
  void drift();
  bool complete_something();
  void end();

  void add(unsigned thread, float* sums, const WarpgroupProduct& what);
  void await_products(unsigned thread, std::size_t groups_left, std::initializer_list<const float*> named);
  bool watched(unsigned thread) const { return !threads_[thread].accumulators.empty(); }
  Thread& thread(unsigned index) { return threads_[index]; }
  NamedBarrier& named(int id) { return named_[static_cast<std::size_t>(id)]; }
  void check_registers() const;

 private:
  std::byte* open(unsigned window) const { return open_shared_memory() + (window - window_base); }
  void protect(unsigned first, unsigned bytes, int protection) const;
  void protect(const Copy& copy, int protection) const;
  void land(Copy& copy, std::size_t rows);
  void flip(Barrier& barrier);
  void issue(Product& product);
  Units units_of(const Product& product) const;
  std::uint64_t hash_of(const Product& product) const;
  void execute(Warpgroup& group);
  float element(unsigned window) const;

  std::uint64_t order_;
  std::mt19937_64 random_;
  unsigned shared_bytes_;
  std::vector<std::byte> seen_;                // shared memory as the asynchronous proxy sees it
  std::map<std::uint64_t, Barrier> barriers_;  // by window address
  std::vector<Copy> copies_;
  std::vector<Warpgroup> groups_;
  std::vector<Thread> threads_;
  std::array<NamedBarrier, 16> named_;
};

thread_local std::unique_ptr<Asynchronous> current;
thread_local std::uint64_t order_of_block = 0;
thread_local unsigned number_of_block = 0;
thread_local bool watching = false;

Asynchronous& asynchronous() {
  if (current == nullptr) current = std::make_unique<Asynchronous>(order_of_block, number_of_block);
  return *current;
}

// ---- traps ----------------------------------------------------------------------------------------------

#if defined(__x86_64__)
constexpr unsigned invalid_masked = 0x80, flags_of_exceptions = 0x3f;

// Whether a register holds `quieted` or `signalling`, or else what makes an operation invalid by itself.
bool is_about_accumulators(const ucontext_t& context) {
  bool others = false;
  for (const auto& each : context.uc_mcontext.fpregs->_xmm) {
    for (const std::uint32_t bits : each.element) {
      if (bits == signalling || bits == quieted) return true;
      others = others || (bits & 0x7f800000U) == 0x7f800000U;
    }
  }
  return !others;
}

void on_invalid(int, siginfo_t*, void* memory) {
  auto& context = *static_cast<ucontext_t*>(memory);
  if (watching && is_about_accumulators(context))
    stop_kernel("uses an accumulator of a product (wgmma) that it has not waited for (wgmma.wait_group)");
  context.uc_mcontext.fpregs->mxcsr |= invalid_masked;  // numbers of the kernel's own
}

// Lets invalid operations trap, or not.
void trap_invalid(bool trap) {
  const unsigned now = _mm_getcsr() & ~flags_of_exceptions;
  _mm_setcsr(trap ? now & ~invalid_masked : now | invalid_masked);
}
#else
void trap_invalid(bool) {}
#endif

struct sigaction old_fault;
void on_fault(int signal, siginfo_t* info, void*) {
  const std::byte* const shared = current == nullptr ? nullptr : aligned_shared();
  const auto* const address = static_cast<const std::byte*>(info->si_addr);
  if (shared != nullptr && address >= shared && address < shared + window_bytes)
    stop_kernel(fmt::format(
        "reads or writes shared memory at {}, which a copy in flight will write: wait for its mbarrier",
        window_address(address)));
  sigaction(signal, &old_fault, nullptr);
}

void set_traps() {
  [[maybe_unused]] static const bool set = [] {
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    action.sa_sigaction = on_fault;
    sigaction(SIGSEGV, &action, &old_fault);
#if defined(__x86_64__)
    action.sa_sigaction = on_invalid;
    sigaction(SIGFPE, &action, nullptr);
#endif
    return true;
  }();
}

// ---- barriers -------------------------------------------------------------------------------------------

Asynchronous::Asynchronous(std::uint64_t order, unsigned block)
    : order_(order),
      random_(order ^ std::uint64_t{block} << 24),
      shared_bytes_(static_cast<unsigned>(launched().shared_bytes)),
      seen_(shared_bytes_, in_flight),
      threads_(launched().block.x * launched().block.y * launched().block.z) {
  groups_.resize((threads_.size() + warpgroup - 1) / warpgroup);
  set_traps();
}

Barrier& Asynchronous::barrier_at(const std::byte* address) {
  const auto found = barriers_.find(window_address(address));
  if (found == barriers_.end())
    stop_kernel(fmt::format("the mbarrier at {} was not initialised, or not before a barrier of the block",
                            window_address(address)));
  return found->second;
}

void Asynchronous::set_barrier(const std::byte* address, unsigned arrivals) {
  const unsigned window = window_address(address);
  if (window % 8 != 0 || window + 8 > window_base + shared_bytes_)
    stop_kernel(
        fmt::format("an mbarrier at {}, which is not 8 aligned bytes of dynamic shared memory", window));
  if (arrivals == 0 || arrivals >= 1U << 20) stop_kernel(fmt::format("an mbarrier of {} arrivals", arrivals));
  barriers_[window] = {
      .arrivals = arrivals, .missing = arrivals, .maker = static_cast<unsigned>(thread_number())};
}

void Asynchronous::flip(Barrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
}

void Asynchronous::arrive(const std::byte* address, unsigned bytes) {
  Barrier& barrier = barrier_at(address);
  if (barrier.missing == 0)
    stop_kernel(fmt::format(
        "arrives at the mbarrier at {}, which has its {} arrivals of this phase and waits for bytes",
        window_address(address), barrier.arrivals));
  barrier.bytes += bytes;
  barrier.unclaimed += bytes;
  --barrier.missing;
  flip(barrier);
}

std::string Asynchronous::text_of(const Barrier& barrier, std::uint64_t name) const {
  std::int64_t flying = 0;
  for (const Copy& copy : copies_) flying += copy.barrier == name ? copy.bytes() : 0;
  return fmt::format("mbarrier {}, whose phase {} lacks {} of {} arrivals and {} bytes ({} in flight)", name,
                     barrier.phase, barrier.missing, barrier.arrivals, barrier.bytes, flying);
}

void Asynchronous::fence(unsigned thread) {
  std::memcpy(seen_.data(), open_shared_memory(), shared_bytes_);
  for (auto& [window, barrier] : barriers_) barrier.visible = barrier.visible || barrier.maker == thread;
}

// ---- copies ---------------------------------------------------------------------------------------------

void Asynchronous::protect(unsigned first, unsigned bytes, int protection) const {
  const unsigned begin = (first + page - 1) / page * page, end = (first + bytes) / page * page;
  if (begin < end) mprotect(aligned_shared() + begin, end - begin, protection);
}
void Asynchronous::protect(const Copy& copy, int protection) const {
  protect(copy.target - window_base, copy.bytes(), protection);
}

void Asynchronous::start(Copy copy) {
  Barrier& barrier = barriers_.at(copy.barrier);
  const std::string what = fmt::format("a copy of {} bytes to {}", copy.bytes(), copy.target);
  if (copy.map.magic != TensorMap::expected_magic)
    stop_kernel(what + " by something that is no map of a tensor");
  if (copy.target % 128 != 0 || copy.target + copy.bytes() > window_base + shared_bytes_)
    stop_kernel(what + ", which is not 128-byte aligned memory of the block");
  if (!barrier.visible)
    stop_kernel(fmt::format("{} by mbarrier {}, whose initialisation was not followed by fence.proxy.async",
                            what, copy.barrier));
  barrier.unclaimed -= copy.bytes();
  if (barrier.unclaimed < 0)
    stop_kernel(
        fmt::format("{}: mbarrier {} expects {} bytes too few (arrive.expect_tx comes before the copies)",
                    what, copy.barrier, -barrier.unclaimed));
  for (const Copy& other : copies_) {
    if (copy.target < other.target + other.bytes() && other.target < copy.target + copy.bytes())
      stop_kernel(
          fmt::format("{}, where a copy of thread {} is in flight to {}", what, other.thread, other.target));
  }
  for (const Warpgroup& group : groups_) {
    for (const Product& product : group.products) {
      for (unsigned i = copy.target / unit; i < (copy.target + copy.bytes()) / unit; ++i) {
        if (product.reads[i])
          stop_kernel(fmt::format(
              "{}, of which a product in flight reads {}: wait for it (wgmma.wait_group) before the "
              "memory is given away",
              what, i * unit));
      }
    }
  }
  const unsigned offset = copy.target - window_base;
  if (std::memcmp(seen_.data() + offset, open(copy.target), copy.bytes()) != 0)
    stop_kernel(what + ", which has ordinary stores without fence.proxy.async after them");
  std::memset(open(copy.target), static_cast<int>(in_flight), copy.bytes());
  std::memset(seen_.data() + offset, static_cast<int>(in_flight), copy.bytes());
  if (order_ == 1) return land(copy, copy.rows);
  protect(copy, PROT_NONE);
  if (order_ > 1) std::ranges::shuffle(copy.missing, random_);
  copies_.push_back(std::move(copy));
}

// Brings so many of the missing rows. Elements outside of the tensor are zeros.
void Asynchronous::land(Copy& copy, std::size_t rows) {
  const TensorMap& map = copy.map;
  for (std::size_t i = 0; i < rows; ++i) {
    const unsigned row = copy.missing.back();
    copy.missing.pop_back();
    const std::int64_t y = copy.first[1] + row % map.box[1], z = copy.first[2] + row / map.box[1];
    const bool inside = y >= 0 && y < static_cast<std::int64_t>(map.sizes[1]) && z >= 0 &&
                        z < static_cast<std::int64_t>(map.sizes[2]);
    for (unsigned first = 0; first < copy.row_bytes; first += unit) {
      std::uint16_t elements[unit / 2] = {};
      for (unsigned j = 0; j < unit / 2 && inside; ++j) {
        const std::int64_t x = copy.first[0] + static_cast<std::int64_t>(first / 2 + j);
        if (x < 0 || x >= static_cast<std::int64_t>(map.sizes[0])) continue;
        std::memcpy(&elements[j],
                    map.address + 2 * x + y * static_cast<std::int64_t>(map.strides[0]) +
                        z * static_cast<std::int64_t>(map.strides[1]),
                    2);
      }
      const unsigned linear = copy.target + row * copy.row_bytes + first;
      const unsigned place = map.swizzled != 0 ? swizzle(linear) : linear;
      std::byte* const target = open(place);
      if (std::any_of(target, target + unit, [](std::byte each) { return each != in_flight; }))
        stop_kernel(
            fmt::format("shared memory at {} was written while a copy of thread {} to it was in flight",
                        place, copy.thread));
      std::memcpy(target, elements, unit);
      std::memcpy(seen_.data() + (place - window_base), elements, unit);
    }
  }
  if (copy.missing.empty()) protect(copy, PROT_READ | PROT_WRITE);
  Barrier& barrier = barriers_.at(copy.barrier);
  barrier.bytes -= static_cast<std::int64_t>(rows) * copy.row_bytes;
  flip(barrier);
}

void Asynchronous::drift() {
  constexpr std::uint64_t turns = 64, most_rows = 96;
  if (order_ < 2 || random_() % turns != 0) return;
  if (!copies_.empty()) {
    const std::size_t i = random_() % copies_.size();
    Copy& copy = copies_[i];
    land(copy, std::min<std::size_t>(1 + random_() % most_rows, copy.missing.size()));
    if (copy.missing.empty()) copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  Warpgroup& group = groups_[random_() % groups_.size()];
  if (group.can_run()) execute(group);
}

bool Asynchronous::complete_something() {
  // In order 0 only what is waited for.
  const auto runs = [&](const Warpgroup& group) {
    return group.can_run() && (order_ != 0 || group.done < group.awaited);
  };
  const auto group = std::ranges::find_if(groups_, runs);
  if (group != groups_.end() && (order_ == 0 || copies_.empty() || random_() % 2 == 0)) {
    execute(*group);
    return true;
  }
  if (copies_.empty()) return false;
  const std::size_t i = order_ == 0 ? 0 : random_() % copies_.size();
  Copy copy = std::move(copies_[i]);
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
  land(copy, copy.missing.size());
  return true;
}

void Asynchronous::end() {
  if (!copies_.empty())
    stop_kernel(fmt::format("ends while a copy of thread {} to {} is in flight: nobody waited for it",
                            copies_.front().thread, copies_.front().target));
  for (const auto& [window, barrier] : barriers_) {
    if (barrier.bytes != 0)
      stop_kernel(fmt::format("ends with {} bytes that mbarrier {} still expects", barrier.bytes, window));
  }
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    if (!threads_[i].accumulators.empty())
      stop_kernel(fmt::format("thread {} ended without waiting for its last product (wgmma.wait_group)", i));
  }
  for (std::size_t i = 0; i < named_.size(); ++i) {
    if (named_[i].here != 0)
      stop_kernel(fmt::format("named barrier {} has {} of {} threads at the end: one arrival more than turns",
                              i, named_[i].here, named_[i].threads));
  }
}

// ---- products -------------------------------------------------------------------------------------------

float Asynchronous::element(unsigned window) const {
  std::uint16_t bits;
  std::memcpy(&bits, open(window), 2);
  return to_float(BFloat16{bits});
}

Units Asynchronous::units_of(const Product& product) const {
  Units units;
  const auto mark = [&](const Matrix& matrix, unsigned rows) {
    for (unsigned row = 0; row < rows; ++row) {
      for (unsigned k = 0; k < product_depth; ++k) {
        const unsigned place = matrix.place(row, k);
        if (place < window_base || place + 2 > window_base + shared_bytes_)
          stop_kernel(fmt::format(
              "a matrix descriptor of a product leads to {} in the window, and the block's memory is "
              "{} to {}",
              place, window_base, window_base + shared_bytes_));
        units.set(place / unit);
      }
    }
  };
  const WarpgroupProduct& what = product.what;
  if (what.left_fragment == nullptr) mark(Matrix(what.left, what.left_transposed), product_rows);
  mark(Matrix(what.right, what.right_transposed), static_cast<unsigned>(what.columns));
  return units;
}

std::uint64_t Asynchronous::hash_of(const Product& product) const {
  std::uint64_t hash = 0;
  for (std::size_t i = product.reads._Find_first(); i < product.reads.size();
       i = product.reads._Find_next(i)) {
    std::uint64_t words[2];
    std::memcpy(words, open(static_cast<unsigned>(i) * unit), unit);
    hash = (hash ^ words[0]) * 0x9e3779b97f4a7c15U;
    hash = (hash ^ words[1] ^ hash >> 32) * 0x9e3779b97f4a7c15U;
  }
  return hash;
}

// All threads of the warpgroup have issued it: from now on it may run.
void Asynchronous::issue(Product& product) {
  product.reads = units_of(product);
  for (const Copy& copy : copies_) {
    for (unsigned i = copy.target / unit; i < (copy.target + copy.bytes()) / unit; ++i) {
      if (product.reads[i])
        stop_kernel(fmt::format(
            "a product reads shared memory at {}, which a copy of thread {} in flight will write: wait "
            "for mbarrier {}",
            i * unit, copy.thread, copy.barrier));
    }
  }
  for (std::size_t i = product.reads._Find_first(); i < product.reads.size();
       i = product.reads._Find_next(i)) {
    const unsigned window = static_cast<unsigned>(i) * unit;
    const unsigned bytes = std::min(unit, window_base + shared_bytes_ - window);
    if (std::memcmp(open(window), seen_.data() + (window - window_base), bytes) != 0)
      stop_kernel(fmt::format(
          "a product reads shared memory at {}, which has ordinary stores without fence.proxy.async "
          "after them",
          window));
  }
  product.read_hash = hash_of(product);
}

bool is_signalling(const float* sums, std::size_t count) {
  return std::all_of(sums, sums + count, [](const float& each) {
    std::uint32_t bits;
    std::memcpy(&bits, &each, 4);
    return bits == signalling;
  });
}

void Asynchronous::add(unsigned index, float* sums, const WarpgroupProduct& what) {
  Thread& mine = threads_[index];
  Warpgroup& group = groups_[index / warpgroup];
  const auto count = static_cast<std::size_t>(what.columns) / 2;
  if (!mine.fenced) stop_kernel("a product without wgmma.fence since its registers were last free to change");
  if ((index / warpgroup + 1) * warpgroup > threads_.size())
    stop_kernel("a product of less than a warpgroup");
  const std::uint64_t number = mine.issued++;
  if (number - group.done == group.products.size()) group.products.push_back({.what = what});
  Product& product = group.products[number - group.done];
  const WarpgroupProduct& first = product.what;
  if (first.columns != what.columns || first.left != what.left || first.right != what.right ||
      first.left_transposed != what.left_transposed || first.right_transposed != what.right_transposed ||
      first.add != what.add || (first.left_fragment == nullptr) != (what.left_fragment == nullptr))
    stop_kernel("its product differs from that of another thread of the warpgroup");
  auto accumulator = std::ranges::find(mine.accumulators, sums, &Accumulator::place);
  if (accumulator == mine.accumulators.end()) {
    accumulator =
        mine.accumulators.insert(accumulator, {.place = sums, .values{sums, sums + count}, .last = 0});
    for (std::size_t i = 0; i < count; ++i) std::memcpy(sums + i, &signalling, 4);
  } else if (accumulator->values.size() != count || !is_signalling(sums, count)) {
    stop_kernel("an accumulator was changed while a product to it was in flight");
  }
  accumulator->last = number;
  Part& part = product.parts[index % warpgroup];
  part.place = sums;
  if (what.left_fragment != nullptr) std::copy_n(what.left_fragment, part.left.size(), part.left.begin());
  trap_invalid(watching = true);
  if (++product.here < warpgroup) return;
  issue(product);
  if (order_ == 1) execute(group);
}

// Computes the warpgroup's first product; sums stay out of the threads' registers.
void Asynchronous::execute(Warpgroup& group) {
  trap_invalid(false);  // numbers of the kernel's may be infinite
  const Product& product = group.products.front();
  const WarpgroupProduct& what = product.what;
  if (hash_of(product) != product.read_hash)
    stop_kernel(
        "shared memory that a product in flight reads was written before it was waited for "
        "(wgmma.wait_group)");
  const auto columns = static_cast<unsigned>(what.columns);
  std::vector<float> left(product_rows * product_depth), right(product_depth * columns),
      sums(product_rows * columns);
  const Matrix right_matrix(what.right, what.right_transposed);
  for (unsigned k = 0; k < product_depth; ++k) {
    for (unsigned n = 0; n < columns; ++n) right[k * columns + n] = element(right_matrix.place(n, k));
  }
  if (what.left_fragment == nullptr) {
    const Matrix matrix(what.left, what.left_transposed);
    for (unsigned row = 0; row < product_rows; ++row) {
      for (unsigned k = 0; k < product_depth; ++k)
        left[row * product_depth + k] = element(matrix.place(row, k));
    }
  }
  const auto first_thread = static_cast<unsigned>(&group - groups_.data()) * warpgroup;
  // Calls visit(place of the sum, its value in the accumulator) for each element of each thread.
  const auto for_each_sum = [&](const auto& visit) {
    for (unsigned i = 0; i < warpgroup; ++i) {
      Accumulator& accumulator = *std::ranges::find(threads_[first_thread + i].accumulators,
                                                    product.parts[i].place, &Accumulator::place);
      const unsigned row = i / 32 * 16 + i % 32 / 4, column = i % 4 * 2;
      for (unsigned j = 0; j < columns / 2; ++j)
        visit(sums[(row + j / 2 % 2 * 8) * columns + j / 4 * 8 + column + j % 2], accumulator.values[j]);
    }
  };
  for (unsigned i = 0; i < warpgroup && what.left_fragment != nullptr; ++i) {
    const unsigned row = i / 32 * 16 + i % 32 / 4, pair = i % 4 * 2;
    for (unsigned j = 0; j < 8; ++j) {
      const unsigned bits = product.parts[i].left[j / 2];
      left[(row + j / 2 % 2 * 8) * product_depth + pair + j / 4 * 8 + j % 2] =
          to_float(BFloat16{static_cast<std::uint16_t>(j % 2 == 0 ? bits & 0xffffU : bits >> 16)});
    }
  }
  if (what.add) for_each_sum([](float& sum, float& value) { sum = value; });
  for (unsigned row = 0; row < product_rows; ++row) {
    float* const sum = &sums[row * columns];
    for (unsigned k = 0; k < product_depth; ++k) {
      const float factor = left[row * product_depth + k];
      for (unsigned n = 0; n < columns; ++n) sum[n] += factor * right[k * columns + n];
    }
  }
  for_each_sum([](float& sum, float& value) { value = sum; });
  group.products.pop_front();
  ++group.done;
  trap_invalid(watching);
}

void Asynchronous::await_products(unsigned index, std::size_t groups_left,
                                  std::initializer_list<const float*> named) {
  Thread& mine = threads_[index];
  Warpgroup& group = groups_[index / warpgroup];
  mine.fenced = false;
  const std::size_t groups = mine.groups.size() - std::min(groups_left, mine.groups.size());
  const std::uint64_t until = groups == 0 ? 0 : mine.groups[groups - 1];
  group.awaited = std::max(group.awaited, until);
  wait_until([&] { return group.done >= until; },
             [] { return std::string("a product, which other warps of its warpgroup have not issued"); });
  for (auto each = mine.accumulators.begin(); each != mine.accumulators.end();) {
    const bool is_named = std::ranges::find(named, each->place) != named.end();
    if (is_named != (each->last < until))
      stop_kernel(is_named ? "a wait names sums of a product that it does not wait for"
                           : "a wait does not name sums of a product that it waits for: the compiler may use "
                             "them earlier");
    if (each->last >= until) {
      ++each;
      continue;
    }
    if (!is_signalling(each->place, each->values.size()))
      stop_kernel("an accumulator was changed while a product to it was in flight");
    std::memcpy(each->place, each->values.data(), each->values.size() * sizeof(float));
    each = mine.accumulators.erase(each);
  }
  trap_invalid(watching = watched(index));
}

void Asynchronous::check_registers() const {
  int sum = 0;
  for (const Thread& each : threads_) sum += each.registers;
  if (sum > static_cast<int>(registers_of_block))
    stop_kernel(fmt::format("setmaxnreg: threads of the block have {} registers together, and a block has {}",
                            sum, registers_of_block));
}

}  // namespace

unsigned window_address(const std::byte* memory) {
  return static_cast<unsigned>(memory - aligned_shared()) + window_base;
}

void set_barrier(std::byte* barrier, unsigned arrivals) {
  asynchronous().set_barrier(barrier, arrivals);
}
void arrive(std::byte* barrier, unsigned expected_bytes) {
  asynchronous().arrive(barrier, expected_bytes);
}
void await_phase(std::byte* barrier, unsigned parity) {
  const Barrier& waited = asynchronous().barrier_at(barrier);
  wait_until([&] { return waited.odd() != (parity != 0); },
             [&] {
               return fmt::format("parity {} of {}", parity,
                                  asynchronous().text_of(waited, window_address(barrier)));
             });
}
void fence_async_proxy() {
  asynchronous().fence(static_cast<unsigned>(thread_number()));
}

void named_barrier(int id, int threads, bool waits) {
  if (id <= 0 || id > 15 || threads <= 0 || threads % warp_lanes != 0)
    stop_kernel(fmt::format("named barrier {} of {} threads (0 is that of __syncthreads(), 15 the last)", id,
                            threads));
  NamedBarrier& barrier = asynchronous().named(id);
  if (barrier.here > 0 && barrier.threads != threads)
    stop_kernel(
        fmt::format("named barrier {} of {} threads, where others say {}", id, threads, barrier.threads));
  barrier.threads = threads;
  const std::uint64_t turn = barrier.turn;
  if (++barrier.here == threads) {
    barrier.here = 0;
    ++barrier.turn;
  }
  if (!waits) return;
  wait_until(
      [&] { return barrier.turn > turn; },
      [&] { return fmt::format("named barrier {}, {} of {} threads are there", id, barrier.here, threads); });
}

void set_registers(int count) {
  if (count < 24 || count > 256 || count % 8 != 0)
    stop_kernel(fmt::format("setmaxnreg of {} registers", count));
  asynchronous().thread(static_cast<unsigned>(thread_number())).registers = count;
  asynchronous().check_registers();
}

void copy_box(std::byte* target, const void* map, const int (&first)[3], std::byte* barrier) {
  Copy copy = {};
  std::memcpy(&copy.map, map, sizeof(copy.map));
  std::copy_n(first, 3, copy.first);
  copy.target = window_address(target);
  copy.rows = copy.map.box[1] * copy.map.box[2];
  copy.row_bytes = copy.map.box[0] * 2;
  copy.barrier = window_address(barrier);
  copy.thread = static_cast<unsigned>(thread_number());
  copy.missing.resize(copy.rows);
  for (unsigned row = 0; row < copy.rows; ++row) copy.missing[row] = copy.rows - 1 - row;
  static_cast<void>(asynchronous().barrier_at(barrier));
  asynchronous().start(std::move(copy));
}

void fence_products() {
  asynchronous().thread(static_cast<unsigned>(thread_number())).fenced = true;
}
void multiply_later(float* sums, const WarpgroupProduct& product) {
  asynchronous().add(static_cast<unsigned>(thread_number()), sums, product);
}
void commit_products() {
  Thread& mine = asynchronous().thread(static_cast<unsigned>(thread_number()));
  mine.groups.push_back(mine.issued);
}
void await_products(int groups_left, std::initializer_list<const float*> named) {
  asynchronous().await_products(static_cast<unsigned>(thread_number()), static_cast<std::size_t>(groups_left),
                                named);
}

void begin_asynchronous(std::uint64_t order, unsigned block) {
  current.reset();
  order_of_block = order;
  number_of_block = block;
}
void drift() {
  if (current != nullptr) current->drift();
}
bool complete_something() {
  return current != nullptr && current->complete_something();
}
void end_asynchronous() {
  if (current != nullptr) current->end();
  current.reset();
}
void watch_accumulators(unsigned thread) {
  if (current == nullptr || !current->watched(thread)) return;
  trap_invalid(watching = true);
}
void stop_watching() {
  if (watching) trap_invalid(watching = false);
}

}  // namespace holdfast::cuda_emulator

// As the driver checks it (CUDA Driver API, cuTensorMapEncodeTiled).
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  using holdfast::cuda_emulator::TensorMap;
  constexpr cuuint64_t sizes_end = cuuint64_t{1} << 32, strides_end = cuuint64_t{1} << 40;
  constexpr cuuint32_t box_most = 256, swizzled_bytes = 128;
  if (rank != 3 || type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && swizzle != CU_TENSOR_MAP_SWIZZLE_128B) ||
      reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || reinterpret_cast<std::uintptr_t>(address) % 16 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  TensorMap known = {.magic = TensorMap::expected_magic, .address = static_cast<const std::byte*>(address)};
  for (int i = 0; i < 3; ++i) {
    if (sizes[i] == 0 || sizes[i] > sizes_end || box[i] == 0 || box[i] > box_most || element_strides[i] != 1)
      return CUDA_ERROR_INVALID_VALUE;
    known.sizes[i] = sizes[i];
    known.box[i] = box[i];
  }
  for (int i = 0; i < 2; ++i) {
    if (strides[i] % 16 != 0 || strides[i] >= strides_end) return CUDA_ERROR_INVALID_VALUE;
    known.strides[i] = strides[i];
  }
  known.swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 1 : 0;
  if (box[0] * 2 % 16 != 0 || (known.swizzled != 0 && box[0] * 2 > swizzled_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &known, sizeof(known));
  return CUDA_SUCCESS;
}
