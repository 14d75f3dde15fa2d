// The warp's matrix instructions, element by element as the PTX ISA defines their fragments.
#include <cstring>

#include "runtime/core/check.h"
#include "runtime/core/tensor.h"
#include "tests/cuda_emulator/emulator.h"

namespace holdfast::cuda_emulator {
using namespace core;

namespace {

constexpr std::uint32_t whole_warp = 0xffffffffU;

struct MatrixRow {
  const std::byte* row;
  bool transposed;
  unsigned* fragment;
};

// The 16 bits of (row, column) of matrix `matrix`.
unsigned element_of(void* const* lanes, int matrix, int row, int column) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, static_cast<MatrixRow*>(lanes[8 * matrix + row])->row + 2 * column, 2);
  return bits;
}

void give_matrices(void* const* lanes) {
  for (int lane = 0; lane < warp_lanes; ++lane) {
    const MatrixRow& part = *static_cast<MatrixRow*>(lanes[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int matrix = 0; matrix < 4; ++matrix) {
      const unsigned low =
          part.transposed ? element_of(lanes, matrix, pair, group) : element_of(lanes, matrix, group, pair);
      const unsigned high = part.transposed ? element_of(lanes, matrix, pair + 1, group)
                                            : element_of(lanes, matrix, group, pair + 1);
      part.fragment[matrix] = low | high << 16;
    }
  }
}

struct Fragments {
  float* sum;
  const unsigned* left;
  const unsigned* right;
};

float half_of(unsigned pair, int half) {
  return to_float(BFloat16{static_cast<std::uint16_t>(half == 0 ? pair & 0xffffU : pair >> 16)});
}

void multiply(void* const* lanes) {
  float left[16][16], right[16][8];
  for (int lane = 0; lane < warp_lanes; ++lane) {
    const Fragments& part = *static_cast<Fragments*>(lanes[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i)
        left[group + 8 * (i % 2)][pair + 8 * (i / 2) + half] = half_of(part.left[i], half);
      for (int i = 0; i < 2; ++i) right[pair + 8 * i + half][group] = half_of(part.right[i], half);
    }
  }
  for (int lane = 0; lane < warp_lanes; ++lane) {
    const Fragments& part = *static_cast<Fragments*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      float sum = part.sum[i];
      for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
      part.sum[i] = sum;
    }
  }
}

}  // namespace

void load_matrices(unsigned (&fragment)[4], const std::byte* row, bool transposed) {
  HF_CHECK(reinterpret_cast<std::uintptr_t>(row) % 16 == 0, "ldmatrix of a row that is not aligned");
  MatrixRow mine{row, transposed, fragment};
  warp_together(whole_warp, &mine, give_matrices);
}

void multiply_bf16(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2]) {
  Fragments mine{sum, left, right};
  warp_together(whole_warp, &mine, multiply);
}

}  // namespace holdfast::cuda_emulator
