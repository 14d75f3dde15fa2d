// Code shared by the kernels of LayerNorm and RMSNorm: a row belongs to a team of neighbouring warps, which
// keep it in registers, so that memory is read once. A block has one or more teams. The numbers of threads,
// teams and blocks follow from the shape, and so do the bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

// Selects LayerNorm or RMSNorm, which is LayerNorm without the mean and the bias.
enum class NormKind { layer, rms };

// Selects how a thread accesses its part of a row.
enum class Access {
  packs,     // read once in full accesses, and kept in registers
  elements,  // of other alignment: read each time, one by one; the same bits
  wide,      // more than the sums of a team fit into registers: likewise, and the sums are in memory
};

inline constexpr int norm_block_threads = 256;  // or one larger team

// Cut of rows among threads, which follows from the shape alone.
struct Teams {
  int threads = 32;    // of a team; a power of two
  int per_block = 1;   // teams
  bool holds = false;  // a team's registers hold a row
};
// Passes the team's shape to the kernels, so that they need no division.
struct TeamShape {
  int thread_bits = 5;  // threads of a team are 1 << thread_bits
  float inverse_width = 1;
  __device__ int threads() const { return 1 << thread_bits; }
  __device__ unsigned warps() const { return 1U << (thread_bits - 5); }
  __device__ int team() const { return static_cast<int>(threadIdx.x) >> thread_bits; }
  __device__ int teams() const { return static_cast<int>(blockDim.x) >> thread_bits; }
  __device__ int thread() const { return static_cast<int>(threadIdx.x) & (threads() - 1); }
};
inline TeamShape shape_of(const Teams& teams, std::int64_t width) {
  return {.thread_bits = std::countr_zero(static_cast<unsigned>(teams.threads)),
          .inverse_width = 1.0F / static_cast<float>(width)};
}
// Returns the fewest threads of a team that can hold a row of `width` in `packs` packs each.
inline Teams teams_of(std::int64_t width, int packs, int pack_elements, int threads_max) {
  Teams teams;
  const auto held = [&] { return static_cast<std::int64_t>(teams.threads) * packs * pack_elements; };
  while (held() < width && teams.threads < threads_max) teams.threads *= 2;
  teams.per_block = std::max(1, norm_block_threads / teams.threads);
  teams.holds = held() >= width;
  return teams;
}

// Runs run(access) with the widest access that the row and the addresses allow.
template <typename T, typename Run, typename... Pointers>
void with_access(const Teams& teams, std::int64_t width, const Run& run, const Pointers*... addresses) {
  if (!teams.holds) {
    run(std::integral_constant<Access, Access::wide>{});
  } else if (packs_fit<T>(width, addresses...)) {
    run(std::integral_constant<Access, Access::packs>{});
  } else {
    run(std::integral_constant<Access, Access::elements>{});
  }
}

// Columns of a row that a thread has: packs `thread`, `thread + threads`, `thread + 2 threads` ... of its
// team.
template <Access access, int packs, int size>
struct Columns {
  int thread, threads, width;

  // Calls use(k, first) for each pack k of the thread, which starts at column `first`.
  template <typename Use>
  __device__ void for_each(const Use& use) const {
    if constexpr (access == Access::wide) {
      for (int first = thread * size; first < width; first += threads * size) use(0, first);
    } else {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        const int first = (thread + k * threads) * size;
        if (first < width) use(k, first);
      }
    }
  }
};

// Holds a thread's columns of one row.
template <typename T, Access access, int packs>
class Row {
 public:
  static constexpr int size = pack_size<T>;

  __device__ Row(const T* row, const Columns<access, packs, size>& columns)
      : row_(row), width_(columns.width) {
    if constexpr (access == Access::packs) {
      columns.for_each(
          [&](int k, int first) { held_[k] = *reinterpret_cast<const Pack<T, size>*>(row + first); });
    }
  }
  // Returns the values of a pack, with zeros beyond the row.
  __device__ void get(int k, int first, float (&values)[size]) const {
    if constexpr (access == Access::packs) {
      unpack(held_[k], values);
    } else {
      load_part<false>(row_, first, width_, values);
    }
  }

 private:
  const T* row_;
  int width_;
  Pack<T, size> held_[access == Access::packs ? packs : 1];
};

}  // namespace holdfast::kernels::cuda
