// A row belongs to a team of neighbouring warps, which keep it in registers, so that memory is read once. A
// block has one or more teams. Backward, teams walk over the rows with the sums of the weight gradients of
// their columns in registers; blocks write these as partial sums, which a second pass adds (column_sums.h).
// How many threads, teams and blocks there are follows from the shape, and so do the bits.
#include "kernels/norm.h"

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vector.h"

namespace holdfast::cuda {

namespace {

// LayerNorm and RMSNorm in one: RMSNorm is LayerNorm without the mean and the bias.
enum class Norm { layer, rms };

// How a thread reaches its part of a row.
enum class Access {
  packs,     // read once in full accesses, and kept in registers
  elements,  // of other alignment: read each time, one by one; the same bits
  wide,      // more than the sums of a team fit into registers: likewise, and the sums are in memory
};

constexpr int block_threads = 256;  // or one larger team
constexpr std::int64_t backward_blocks_max =
    264;  // two on each multiprocessor of an H100; of every GPU, for the bits
constexpr std::int64_t backward_rows_min = 2;  // of a team, when there are few

// Packs of a row that a thread keeps. Registers limit them: LayerNorm's backward pass has two sums a column.
constexpr int forward_packs = 4, forward_threads_max = 512;
template <Norm norm>
constexpr int backward_packs = norm == Norm::layer ? 3 : 4;
template <Norm norm>
constexpr int backward_threads_max = norm == Norm::layer ? 256 : 512;
template <Norm norm>
constexpr int sum_count = norm == Norm::layer ? 2 : 1;  // of weight, bias

// How rows are cut among threads, from the shape alone.
struct Teams {
  int threads = 32;    // of a team
  int per_block = 1;   // teams
  bool holds = false;  // a team's registers hold a row
};
Teams teams_of(std::int64_t width, int packs, int pack_elements, int threads_max) {
  Teams teams;
  const auto held = [&] { return static_cast<std::int64_t>(teams.threads) * packs * pack_elements; };
  while (held() < width && teams.threads < threads_max) teams.threads *= 2;
  teams.per_block = std::max(1, block_threads / teams.threads);
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

// Which columns of a row a thread has: packs `thread`, `thread + threads`, `thread + 2 threads` ... of its
// team.
template <Access access, int packs, int size>
struct Columns {
  int thread, threads, width;

  // use(k, first): its pack k starts at column `first`.
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

// A thread's columns of one row.
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
  // Zeros beyond the row.
  __device__ void get(int k, int first, float (&values)[size]) const {
    if constexpr (access == Access::packs) {
#pragma unroll
      for (int i = 0; i < size; ++i) values[i] = as_float(held_[k].elements[i]);
    } else {
      load_part<false>(row_, first, width_, values);
    }
  }

 private:
  const T* row_;
  int width_;
  Pack<T, size> held_[access == Access::packs ? packs : 1];
};

__device__ inline float inverse_root(float square_sum, float width, float epsilon) {
  return 1.0F / sqrtf(square_sum / width + epsilon);
}

template <Norm norm, typename T, Access access, typename Op>
__global__ void __launch_bounds__(forward_threads_max, 1) norm_forward(Op op, int team_threads) {
  constexpr int size = pack_size<T>;
  constexpr bool whole = access == Access::packs;
  const int thread = static_cast<int>(threadIdx.x), team_warps = team_threads / 32;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (static_cast<int>(blockDim.x) / team_threads) +
      thread / team_threads;
  const bool here = row < op.rows;
  const int width = static_cast<int>(op.width);
  const float inverse_count = static_cast<float>(width);
  const Columns<access, forward_packs, size> columns{thread % team_threads, team_threads, here ? width : 0};
  const Row<T, access, forward_packs> x(static_cast<const T*>(op.x) + row * op.width, columns);
  float mean = 0.0F;
  if constexpr (norm == Norm::layer) {
    float sum[1] = {};
    columns.for_each([&](int k, int first) {
      float values[size];
      x.get(k, first, values);
#pragma unroll
      for (int i = 0; i < size; ++i) sum[0] += values[i];
    });
    team_sum(sum, static_cast<unsigned>(team_warps));
    mean = sum[0] / inverse_count;
  }
  float squares[1] = {};
  columns.for_each([&](int k, int first) {
    float values[size];
    x.get(k, first, values);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      const float centered = whole || first + i < width ? values[i] - mean : 0.0F;
      squares[0] = fmaf(centered, centered, squares[0]);
    }
  });
  team_sum(squares, static_cast<unsigned>(team_warps));
  const float rstd = inverse_root(squares[0], inverse_count, op.epsilon);
  columns.for_each([&](int k, int first) {
    float values[size], weight[size];
    x.get(k, first, values);
    load_part<whole>(static_cast<const T*>(op.weight), first, width, weight);
    if constexpr (norm == Norm::layer) {
      float bias[size];
      load_part<whole>(static_cast<const T*>(op.bias), first, width, bias);
#pragma unroll
      for (int i = 0; i < size; ++i) values[i] = fmaf((values[i] - mean) * rstd, weight[i], bias[i]);
    } else {
#pragma unroll
      for (int i = 0; i < size; ++i) values[i] = values[i] * rstd * weight[i];
    }
    store_part<whole>(static_cast<T*>(op.y) + row * op.width, first, width, values);
  });
  if (!here || thread % team_threads != 0) return;
  if constexpr (norm == Norm::layer) op.mean[row] = mean;
  op.rstd[row] = rstd;
}

// A thread's sums over rows of the gradients of weight and bias, in its columns.
template <Norm norm, Access access, int size>
class GradientSums {
 public:
  static constexpr int count = sum_count<norm>;

  // What does not fit into registers stays in `memory`: (count, width), of this block alone.
  template <typename Columns>
  __device__ GradientSums(float* memory, const Columns& columns) : memory_(memory), width_(columns.width) {
    if constexpr (access == Access::wide) {
      const float zeros[count][size] = {};
      columns.for_each([&](int, int first) { put(0, first, zeros); });
    }
  }
  __device__ void get(int k, int first, float (&sums)[count][size]) const {
#pragma unroll
    for (int s = 0; s < count; ++s) {
      if constexpr (access == Access::wide) {
        load_part<false>(memory_ + static_cast<std::int64_t>(s) * width_, first, width_, sums[s]);
      } else {
#pragma unroll
        for (int i = 0; i < size; ++i) sums[s][i] = held_[s][k][i];
      }
    }
  }
  __device__ void put(int k, int first, const float (&sums)[count][size]) {
#pragma unroll
    for (int s = 0; s < count; ++s) {
      if constexpr (access == Access::wide) {
        store_part<false>(memory_ + static_cast<std::int64_t>(s) * width_, first, width_, sums[s]);
      } else {
#pragma unroll
        for (int i = 0; i < size; ++i) held_[s][k][i] = sums[s][i];
      }
    }
  }
  // Adds those of the block's teams in order, in shared memory, and writes them. All threads call.
  template <typename Columns>
  __device__ void finish(const Columns& columns, int team, int teams) {
    if constexpr (access != Access::wide) {
      constexpr bool whole = access == Access::packs;
      float* const target = teams > 1 ? reinterpret_cast<float*>(dynamic_shared()) : memory_;
      for (int turn = 0; turn < teams; ++turn) {
        __syncthreads();
        if (turn != team) continue;
        columns.for_each([&](int k, int first) {
#pragma unroll
          for (int s = 0; s < count; ++s) {
            float sums[size] = {};
            if (turn > 0) load_part<whole>(target + s * width_, first, width_, sums);
#pragma unroll
            for (int i = 0; i < size; ++i) sums[i] += held_[s][k][i];
            store_part<whole>(target + s * width_, first, width_, sums);
          }
        });
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); teams > 1 && i < count * width_;
           i += static_cast<int>(blockDim.x))
        memory_[i] = target[i];
    }
  }

 private:
  float* memory_;
  int width_;
  float held_[count][access == Access::wide ? 1 : backward_packs<norm>][size] = {};
};

// normal = the normalized row, g = dy * weight:
//   dx = rstd * (g - mean(g) - normal * mean(g * normal)) + dresidual        (RMSNorm: without mean(g))
template <Norm norm, typename T, Access access, typename Op>
__global__ void __launch_bounds__(backward_threads_max<norm>,
                                  access == Access::packs ? 512 / backward_threads_max<norm> : 1)
    norm_backward(Op op, int team_threads, float* partials) {
  constexpr int size = pack_size<T>, packs = backward_packs<norm>;
  constexpr bool whole = access == Access::packs;
  using Sums = GradientSums<norm, access, size>;
  const int thread = static_cast<int>(threadIdx.x) % team_threads, width = static_cast<int>(op.width);
  const int team = static_cast<int>(threadIdx.x) / team_threads;
  const int teams = static_cast<int>(blockDim.x) / team_threads;
  const Columns<access, packs, size> all_columns{thread, team_threads, width};
  Sums gradients(partials + static_cast<std::int64_t>(blockIdx.x) * Sums::count * op.width, all_columns);
  const T* const weight = static_cast<const T*>(op.weight);
  for (std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * teams; first_row < op.rows;
       first_row += static_cast<std::int64_t>(gridDim.x) * teams) {
    const std::int64_t row = first_row + team, offset = row * op.width;
    const bool here = row < op.rows;
    const Columns<access, packs, size> columns{thread, team_threads, here ? width : 0};
    const Row<T, access, packs> x(static_cast<const T*>(op.x) + offset, columns);
    const Row<T, access, packs> dy(static_cast<const T*>(op.dy) + offset, columns);
    float mean = 0.0F;
    if constexpr (norm == Norm::layer) mean = here ? op.mean[row] : 0.0F;
    const float rstd = here ? op.rstd[row] : 0.0F;
    float means[2] = {};  // of g * normal and of g
    columns.for_each([&](int k, int first) {
      float x_k[size], dy_k[size], weight_k[size], sums[Sums::count][size];
      x.get(k, first, x_k);
      dy.get(k, first, dy_k);
      load_part<whole>(weight, first, width, weight_k);
      gradients.get(k, first, sums);
#pragma unroll
      for (int i = 0; i < size; ++i) {
        const float normal = (x_k[i] - mean) * rstd, g = dy_k[i] * weight_k[i];
        means[0] = fmaf(g, normal, means[0]);
        means[1] = __fadd_rn(means[1], g);
        sums[0][i] = fmaf(dy_k[i], normal, sums[0][i]);
        if constexpr (norm == Norm::layer) sums[1][i] += dy_k[i];
      }
      gradients.put(k, first, sums);
    });
    team_sum(means, static_cast<unsigned>(team_threads / 32));
    const float minus_g_normal = -means[0] / static_cast<float>(width);
    const float minus_g = norm == Norm::layer ? -means[1] / static_cast<float>(width) : 0.0F;
    columns.for_each([&](int k, int first) {
      float x_k[size], dy_k[size], weight_k[size], residual[size] = {};
      x.get(k, first, x_k);
      dy.get(k, first, dy_k);
      load_part<whole>(weight, first, width, weight_k);
      if (op.dresidual != nullptr)
        load_part<whole>(static_cast<const T*>(op.dresidual) + offset, first, width, residual);
#pragma unroll
      for (int i = 0; i < size; ++i) {
        const float centered = fmaf(dy_k[i], weight_k[i], minus_g);
        x_k[i] = fmaf(fmaf((x_k[i] - mean) * rstd, minus_g_normal, centered), rstd, residual[i]);
      }
      store_part<whole>(static_cast<T*>(op.dx) + offset, first, width, x_k);
    });
  }
  gradients.finish(all_columns, team, teams);
}

template <Norm norm, typename Op>
void forward(Context& context, const Op& op, const void* bias) {
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const Teams teams = teams_of(op.width, forward_packs, pack_size<T>, forward_threads_max);
    with_access<T>(
        teams, op.width,
        [&](auto access) {
          launch(context, norm_forward<norm, T, access, Op>,
                 {.blocks = blocks_for(op.rows, teams.per_block), .threads = teams.threads * teams.per_block},
                 op, teams.threads);
        },
        op.x, op.weight, bias, op.y);
  });
}

template <Norm norm, typename Op>
Teams backward_teams(const Op& op) {
  return teams_of(op.width, backward_packs<norm>, 16 / static_cast<int>(bytes_of(op.dtype)),
                  backward_threads_max<norm>);
}
std::int64_t backward_blocks(std::int64_t rows, const Teams& teams) {
  const std::int64_t blocks = blocks_for(rows, backward_rows_min * teams.per_block);
  return std::min(std::max<std::int64_t>(blocks, 1), backward_blocks_max);
}

template <Norm norm, typename Op>
void prepare_backward(Context& context, const Op& op) {
  const std::int64_t blocks = backward_blocks(op.rows, backward_teams<norm>(op));
  context.request_workspace(static_cast<std::size_t>(blocks * sum_count<norm> * op.width) * sizeof(float));
}

template <Norm norm, typename Op>
void backward(Context& context, const Op& op, float* bias_gradient) {
  const Teams teams = backward_teams<norm>(op);
  const std::int64_t blocks = backward_blocks(op.rows, teams);
  float* const partials = reinterpret_cast<float*>(context.workspace());
  const std::size_t sum_bytes = static_cast<std::size_t>(sum_count<norm> * op.width) * sizeof(float);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    with_access<T>(
        teams, op.width,
        [&](auto access) {
          launch(context, norm_backward<norm, T, access, Op>,
                 {.blocks = blocks_for(blocks, 1),
                  .threads = teams.threads * teams.per_block,
                  .shared_bytes = teams.per_block > 1 ? sum_bytes : 0},
                 op, teams.threads, partials);
        },
        op.x, op.weight, op.dy, op.dresidual, op.dx);
  });
  add_column_sums(context, {.partials = partials,
                            .groups = blocks,
                            .columns = op.width,
                            .targets = {op.weight_gradient, bias_gradient},
                            .target_count = sum_count<norm>,
                            .accumulate = op.accumulate});
}

}  // namespace

void run_layernorm_forward(Context& context, const void* arguments) {
  const LayerNormForward& op = *static_cast<const LayerNormForward*>(arguments);
  forward<Norm::layer>(context, op, op.bias);
}
void run_rmsnorm_forward(Context& context, const void* arguments) {
  forward<Norm::rms>(context, *static_cast<const RmsNormForward*>(arguments), nullptr);
}

void prepare_layernorm_backward(Context& context, const void* arguments) {
  prepare_backward<Norm::layer>(context, *static_cast<const LayerNormBackward*>(arguments));
}
void run_layernorm_backward(Context& context, const void* arguments) {
  const LayerNormBackward& op = *static_cast<const LayerNormBackward*>(arguments);
  backward<Norm::layer>(context, op, op.bias_gradient);
}

void prepare_rmsnorm_backward(Context& context, const void* arguments) {
  prepare_backward<Norm::rms>(context, *static_cast<const RmsNormBackward*>(arguments));
}
void run_rmsnorm_backward(Context& context, const void* arguments) {
  backward<Norm::rms>(context, *static_cast<const RmsNormBackward*>(arguments), nullptr);
}

}  // namespace holdfast::cuda
