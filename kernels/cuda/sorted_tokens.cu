// Tiles are sorted in shared memory (bitonic, Batcher 1968); then every key finds its place by counting, with
// a binary search in each other tile, what comes before it.
#include "kernels/cuda/sorted_tokens.h"

#include <bit>

#include "kernels/cuda/launch.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr std::int64_t tile_max = 4096;  // keys; 32 KiB
constexpr int sort_threads = 1024;
constexpr TokenRow nothing = ~TokenRow{0};  // after every token

// Keys of a tile: a power of two.
std::int64_t tile_of(std::int64_t rows) {
  const auto fitting = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  return std::min(std::max<std::int64_t>(fitting, 2), tile_max);
}
std::int64_t padded(std::int64_t rows) {
  const std::int64_t tile = tile_of(rows);
  return (rows + tile - 1) / tile * tile;
}

// A block per tile; what is missing in the last one counts as `nothing`.
__global__ void __launch_bounds__(sort_threads)
    sort_tiles(const std::int32_t* tokens, std::int64_t rows, unsigned tile, TokenRow* sorted) {
  auto* const keys = reinterpret_cast<TokenRow*>(dynamic_shared());
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * tile;
  for (unsigned i = threadIdx.x; i < tile; i += blockDim.x) {
    const std::int64_t row = first + i;
    keys[i] = row < rows ? static_cast<TokenRow>(tokens[row]) << 32 | static_cast<TokenRow>(row) : nothing;
  }
  for (unsigned run = 2; run <= tile; run *= 2) {
    for (unsigned distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (unsigned pair = threadIdx.x; pair < tile / 2; pair += blockDim.x) {
        const unsigned low = 2 * pair - (pair & (distance - 1)), high = low + distance;
        const bool ascending = (low & run) == 0;
        const TokenRow a = keys[low], b = keys[high];
        if ((a > b) == ascending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < tile; i += blockDim.x) sorted[first + i] = keys[i];
}

// Returns how many of the `count` sorted keys are smaller; count is a power of two.
__device__ unsigned smaller_keys(const TokenRow* keys, unsigned count, TokenRow than) {
  unsigned found = 0;
  for (unsigned step = count / 2; step > 0; step /= 2) found += keys[found + step - 1] < than ? step : 0;
  return found + (keys[found] < than ? 1 : 0);
}

// A thread per key.
__global__ void merge_tiles(const TokenRow* tiles, std::int64_t count, unsigned tile, TokenRow* sorted) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= count || tiles[index] == nothing) return;
  const TokenRow key = tiles[index];
  const std::int64_t own = index / tile * tile;
  std::int64_t place = index - own;
#pragma unroll 4
  for (std::int64_t other = 0; other < count; other += tile) {
    if (other != own) place += smaller_keys(tiles + other, tile, key);
  }
  sorted[place] = key;
}

}  // namespace

std::size_t sort_bytes(std::int64_t rows) {
  return 2 * static_cast<std::size_t>(padded(rows)) * sizeof(TokenRow);
}

const TokenRow* sort_tokens(Context& context, const std::int32_t* tokens, std::int64_t rows) {
  HF_CHECK(rows < (std::int64_t{1} << 31), "more than 2^31 rows");
  const std::int64_t tile = tile_of(rows), count = padded(rows);
  auto* const tiles = reinterpret_cast<TokenRow*>(context.workspace());
  launch(context, sort_tiles,
         {.blocks = blocks_for(count, tile),
          .threads = static_cast<int>(std::min<std::int64_t>(sort_threads, (tile / 2 + 31) / 32 * 32)),
          .shared_bytes = static_cast<std::size_t>(tile) * sizeof(TokenRow)},
         tokens, rows, tile, tiles);
  if (count == tile) return tiles;
  launch(context, merge_tiles, {.blocks = blocks_for(count, 256)}, tiles, count, tile, tiles + count);
  return tiles + count;
}

}  // namespace holdfast::kernels::cuda
