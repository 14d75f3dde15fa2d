// Loads and stores several neighbouring elements at once, converted from and to fp32 (scalar.h): 16 bytes per
// access where addresses allow it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/scalar.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels::cuda {

// Holds `size` elements of T in memory, as one access of up to 16 bytes.
template <typename T, int size>
struct alignas(sizeof(T) * size <= 16 ? sizeof(T) * size : 16) Pack {
  T elements[size];
};
// Holds pairs of elements that share a register: one instruction extracts each, and one packs both. The
// members are registers, because the compiler splits an access into the size of smaller members.
template <int size>
requires(size % 2 == 0) struct alignas(2 * size <= 16 ? 2 * size : 16) Pack<BFloat16, size> {
  unsigned pairs[size / 2];
};
template <typename T>
inline constexpr int pack_size = 16 / static_cast<int>(sizeof(T));  // elements of a full access

template <int size, typename T>
__device__ void unpack(const Pack<T, size>& pack, float (&values)[size]) {
  if constexpr (std::is_same_v<T, BFloat16> && size % 2 == 0) {
#pragma unroll
    for (int i = 0; i < size / 2; ++i) {
      values[2 * i] = __uint_as_float(pack.pairs[i] << 16);
      values[2 * i + 1] = __uint_as_float(pack.pairs[i] & 0xffff0000U);
    }
  } else {
#pragma unroll
    for (int i = 0; i < size; ++i) values[i] = as_float(pack.elements[i]);
  }
}

// Loads one pack; the address must be a multiple of the size of the pack.
template <int size, typename T>
__device__ void load(const T* source, float (&values)[size]) {
  const Pack<T, size> pack = *reinterpret_cast<const Pack<T, size>*>(source);
  unpack(pack, values);
}
template <int size, typename T>
__device__ void store(T* target, const float (&values)[size]) {
  Pack<T, size> pack;
  if constexpr (std::is_same_v<T, BFloat16> && size % 2 == 0) {
#pragma unroll
    for (int i = 0; i < size / 2; ++i) pack.pairs[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < size; ++i) pack.elements[i] = from_float<T>(values[i]);
  }
  *reinterpret_cast<Pack<T, size>*>(target) = pack;
}

// Loads `size` elements of a row of `width` from `first` on: in full accesses when `whole` (packs_fit),
// otherwise one by one, where elements beyond the row are read as `beyond` and not written. So the shape
// decides which elements a thread has, and the addresses only decide the width of its accesses.
template <bool whole, int size, typename T>
__device__ void load_part(const T* row, std::int64_t first, std::int64_t width, float (&values)[size],
                          float beyond = 0.0F) {
  if constexpr (whole) {
    load<size>(row + first, values);
  } else {
#pragma unroll
    for (int i = 0; i < size; ++i) values[i] = first + i < width ? as_float(row[first + i]) : beyond;
  }
}
template <bool whole, int size, typename T>
__device__ void store_part(T* row, std::int64_t first, std::int64_t width, const float (&values)[size]) {
  if constexpr (whole) {
    store<size>(row + first, values);
  } else {
#pragma unroll
    for (int i = 0; i < size; ++i) {
      if (first + i < width) row[first + i] = from_float<T>(values[i]);
    }
  }
}

// Returns whether rows of `width` elements can be accessed in full packs from all these addresses (null
// counts as aligned).
template <typename T, typename... Pointers>
bool packs_fit(std::int64_t width, const Pointers*... addresses) {
  const auto aligned = [](const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
  };
  return width % pack_size<T> == 0 && (aligned(addresses) && ...);
}

// Calls run(elements of an access), as a constant, for elementwise work.
template <typename T, typename Run, typename... Pointers>
void with_pack(std::int64_t width, const Run& run, const Pointers*... addresses) {
  if (packs_fit<T>(width, addresses...)) {
    run(std::integral_constant<int, pack_size<T>>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
}

// Calls run(whole), as a constant, for work on rows (load_part).
template <typename T, typename Run, typename... Pointers>
void with_whole(std::int64_t width, const Run& run, const Pointers*... addresses) {
  packs_fit<T>(width, addresses...) ? run(std::true_type{}) : run(std::false_type{});
}

// Calls body(T{}).
template <typename Body>
void for_dtype(DType dtype, const Body& body) {
  HF_CHECK(dtype == DType::fp32 || dtype == DType::bf16, "elements of type {}", name_of(dtype));
  dtype == DType::fp32 ? body(float{}) : body(BFloat16{});
}

}  // namespace holdfast::kernels::cuda
