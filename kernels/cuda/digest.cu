// A fixed number of thread blocks reads the tensor, 16 bytes a thread and several such packs at a time; a
// second kernel adds the digests of the blocks. There are no atomic operations, so the result may be in the
// memory of the host.
#include "kernels/digest.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int threads = 256;
constexpr int batch = 4;  // packs of a thread that are in flight
constexpr int pack_bytes = 16;
constexpr std::int64_t tile_bytes = static_cast<std::int64_t>(threads) * batch * pack_bytes;
constexpr std::int64_t blocks_max = 1024;
constexpr unsigned infinity_bits = 0x7f800000U;

// The dtypes: the integer that has the bits of an element, and its magnitude as bits of fp32, at least those
// of infinity where it is not finite.
struct Fp32 {
  using Bits = unsigned;
  static __device__ unsigned magnitude(unsigned bits) { return bits & 0x7fffffffU; }
};
struct Bf16 {
  using Bits = unsigned short;
  static __device__ unsigned magnitude(unsigned bits) { return (bits & 0x7fffU) << 16; }
};
struct Int32 {
  using Bits = unsigned;
  static __device__ unsigned magnitude(unsigned) { return 0; }
};
struct Fp64 {
  using Bits = unsigned long long;
  static __device__ unsigned magnitude(unsigned long long bits) {
    constexpr double most = 3.40282346638528859812e+38;  // the largest finite value of fp32
    const double value = fabs(__longlong_as_double(static_cast<long long>(bits)));
    if (!(value < static_cast<double>(INFINITY))) return infinity_bits;
    return __float_as_uint(static_cast<float>(value < most ? value : most));
  }
};

// Digest of what one thread has seen.
struct ThreadDigest {
  unsigned long long sum = 0, weighted = 0;
  unsigned nonfinite = 0, largest = 0;

  template <typename Type, typename Bits>
  __device__ void add(Bits bits, std::uint64_t index) {
    const unsigned multiplier = static_cast<unsigned>(2 * index + 1) * 0x9e3779b1U;
    sum += bits;
    weighted += static_cast<unsigned long long>(bits) * multiplier;
    const unsigned magnitude = Type::magnitude(bits);
    nonfinite += magnitude >= infinity_bits ? 1 : 0;
    largest = magnitude < infinity_bits && magnitude > largest ? magnitude : largest;
  }
};

struct Largest {
  __device__ unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; }
  static constexpr unsigned identity = 0;
};

// Adds what the threads of a block have, and stores it. All threads call.
__device__ void store_digest(unsigned long long sum, unsigned long long weighted,
                             unsigned long long nonfinite, unsigned largest, DigestWords* target,
                             bool accumulate) {
  sum = block_reduce(sum, Sum{});
  weighted = block_reduce(weighted, Sum{});
  nonfinite = block_reduce(nonfinite, Sum{});
  largest = block_reduce(largest, Largest{});
  if (threadIdx.x != 0) return;
  DigestWords words;
  if (accumulate) words = *target;
  words.sum += sum;
  words.weighted += weighted;
  words.nonfinite += nonfinite;
  words.largest = Largest{}(words.largest, largest);
  words.reserved = 0;
  *target = words;
}

struct alignas(pack_bytes) Words {
  unsigned of[4];
};

// Calls add(bits, index) for the elements of a pack, the first of which has the index `first`.
template <typename Bits, typename Add>
__device__ void for_elements(const Words& words, std::int64_t first, const Add& add) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(Bits) == 4) {
      add(words.of[i], first + i);
    } else if constexpr (sizeof(Bits) == 2) {
      add(words.of[i] & 0xffffU, first + 2 * i);
      add(words.of[i] >> 16, first + 2 * i + 1);
    } else if (i % 2 == 0) {
      add(words.of[i] | static_cast<unsigned long long>(words.of[i + 1]) << 32, first + i / 2);
    }
  }
}

// Stores the digest of each block's share in targets[block]. `aligned`: the values begin at a multiple of
// 16 bytes.
template <typename Type>
__global__ void digests(const typename Type::Bits* values, bool aligned, std::int64_t count,
                        std::int64_t first_index, DigestWords* targets, bool accumulate) {
  using Bits = typename Type::Bits;
  constexpr int size = pack_bytes / static_cast<int>(sizeof(Bits));
  constexpr std::int64_t tile = tile_bytes / static_cast<std::int64_t>(sizeof(Bits));
  ThreadDigest mine;
  const auto add = [&](auto bits, std::int64_t i) {
    mine.add<Type>(bits, static_cast<std::uint64_t>(first_index + i));
  };
  const std::int64_t stride = tile * gridDim.x;
  const std::int64_t packed_end = aligned ? count / tile * tile : 0;  // whole tiles
  std::int64_t begin = blockIdx.x * tile;
  for (; begin < packed_end; begin += stride) {
    const Words* const packs = reinterpret_cast<const Words*>(values + begin) + threadIdx.x;
    Words words[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) words[i] = packs[i * threads];
#pragma unroll
    for (int i = 0; i < batch; ++i)
      for_elements<Bits>(words[i], begin + (i * threads + static_cast<std::int64_t>(threadIdx.x)) * size,
                         add);
  }
  for (; begin < count; begin += stride) {
    const std::int64_t end = min(begin + tile, count);
    for (std::int64_t i = begin + threadIdx.x; i < end; i += threads) add(values[i], i);
  }
  store_digest(mine.sum, mine.weighted, mine.nonfinite, mine.largest, targets + blockIdx.x, accumulate);
}

// Adds the digests of the blocks.
__global__ void total(const DigestWords* parts, int count, DigestWords* target, bool accumulate) {
  DigestWords mine;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    mine.sum += parts[i].sum;
    mine.weighted += parts[i].weighted;
    mine.nonfinite += parts[i].nonfinite;
    mine.largest = Largest{}(mine.largest, parts[i].largest);
  }
  store_digest(mine.sum, mine.weighted, mine.nonfinite, mine.largest, target, accumulate);
}

unsigned blocks_of(const TensorDigest& op) {
  const std::int64_t tiles = blocks_for(op.count, tile_bytes / static_cast<std::int64_t>(bytes_of(op.dtype)));
  return static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 1, blocks_max));
}

template <typename Type>
void launch_digests(Context& context, const TensorDigest& op, unsigned blocks, DigestWords* targets,
                    bool accumulate) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(op.values) % pack_bytes == 0;
  launch(context, digests<Type>, {.blocks = blocks, .threads = threads},
         static_cast<const typename Type::Bits*>(op.values), aligned, op.count, op.first_index, targets,
         accumulate);
}

}  // namespace

void prepare_digest(Context& context, const void* arguments) {
  const unsigned blocks = blocks_of(*static_cast<const TensorDigest*>(arguments));
  if (blocks > 1) context.request_workspace(blocks * sizeof(DigestWords));
}

void run_digest(Context& context, const void* arguments) {
  const TensorDigest& op = *static_cast<const TensorDigest*>(arguments);
  const unsigned blocks = blocks_of(op);
  const bool alone = blocks == 1;
  DigestWords* const targets =
      alone ? op.result : static_cast<DigestWords*>(static_cast<void*>(context.workspace()));
  const bool accumulate = alone && op.accumulate;
  switch (op.dtype) {
    case DType::fp32:
      launch_digests<Fp32>(context, op, blocks, targets, accumulate);
      break;
    case DType::bf16:
      launch_digests<Bf16>(context, op, blocks, targets, accumulate);
      break;
    case DType::int32:
      launch_digests<Int32>(context, op, blocks, targets, accumulate);
      break;
    case DType::fp64:
      launch_digests<Fp64>(context, op, blocks, targets, accumulate);
      break;
  }
  if (alone) return;
  launch(context, total, {.blocks = 1, .threads = threads}, targets, static_cast<int>(blocks), op.result,
         op.accumulate);
}

}  // namespace holdfast::kernels::cuda
