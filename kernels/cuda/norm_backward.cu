// Teams (norm_rows.h) walk over the rows with the sums of the weight gradients of their columns in registers,
// and those of dresidual, for which no registers are left, in shared memory; blocks write these as partial
// sums, which a second pass adds.
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.h"
#include "kernels/norm.h"

namespace holdfast::kernels::cuda {

namespace {

// Two blocks on each multiprocessor of an H100; as many on every other GPU, because the bits depend on it.
constexpr std::int64_t blocks_max = 264;
constexpr std::int64_t team_rows_min = 2;  // when there are few rows

// Packs of a thread and threads of a team. Registers limit both: LayerNorm has two sums for each column.
template <NormKind norm>
constexpr int held_packs = norm == NormKind::layer ? 3 : 4;
template <NormKind norm>
constexpr int threads_max = norm == NormKind::layer ? 256 : 512;
template <NormKind norm>
constexpr int sum_count = norm == NormKind::layer ? 2 : 1;  // of weight, bias

// A thread's sums over rows of the gradients of weight and bias, in its columns.
template <NormKind norm, Access access, int size>
class GradientSums {
 public:
  static constexpr int count = sum_count<norm>;
  using Mine = Columns<access, held_packs<norm>, size>;

  // Columns that do not fit into registers are kept in `memory`: (count, width), for this block alone.
  __device__ GradientSums(float* memory, const Mine& columns) : memory_(memory), width_(columns.width) {
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
  __device__ void finish(const Mine& columns, int team, int teams) {
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
  float held_[count][access == Access::wide ? 1 : held_packs<norm>][size] = {};
};

// A team's sums over rows of dresidual, for which no registers are left: in shared memory, or, where a row is
// wide and a block is one team, in `target`, where the block's sums belong: (width).
template <Access access, int size>
class ResidualSums {
 public:
  static constexpr bool whole = access == Access::packs;
  __device__ ResidualSums(float* target, int team, int width)
      : target_(target),
        width_(width),
        mine_(access == Access::wide ? target : reinterpret_cast<float*>(dynamic_shared()) + team * width) {}
  __device__ void set_zero(int first) {
    const float zeros[size] = {};
    store_part<whole>(mine_, first, width_, zeros);
  }
  __device__ void add(int first, const float (&values)[size]) {
    float sums[size];
    load_part<whole>(mine_, first, width_, sums);
#pragma unroll
    for (int i = 0; i < size; ++i) sums[i] += values[i];
    store_part<whole>(mine_, first, width_, sums);
  }
  // Adds those of the block's teams in order. All threads call.
  __device__ void finish(int teams) {
    if constexpr (access == Access::wide) return;
    __syncthreads();
    const float* const of_teams = reinterpret_cast<const float*>(dynamic_shared());
    for (int i = static_cast<int>(threadIdx.x); i < width_; i += static_cast<int>(blockDim.x)) {
      float sum = of_teams[i];
      for (int other = 1; other < teams; ++other) sum += of_teams[other * width_ + i];
      target_[i] = sum;
    }
  }

 private:
  float* target_;
  int width_;
  float* mine_;
};

// normal = the normalized row, g = dy * weight:
//   dx = rstd * (g - mean(g) - normal * mean(g * normal)) + dresidual        (RMSNorm: without mean(g))
template <NormKind norm, typename T, Access access, typename Op>
__global__ void __launch_bounds__(threads_max<norm>, access == Access::packs ? 512 / threads_max<norm> : 1)
    norm_backward(Op op, TeamShape shape, float* partials, bool sums_residual) {
  constexpr int size = pack_size<T>, packs = held_packs<norm>;
  constexpr bool whole = access == Access::packs;
  using Sums = GradientSums<norm, access, size>;
  const int thread = shape.thread(), team_threads = shape.threads(), width = static_cast<int>(op.width);
  const int team = shape.team(), teams = shape.teams();
  const Columns<access, packs, size> all_columns{thread, team_threads, width};
  sums_residual = sums_residual && norm == NormKind::layer;
  partials += static_cast<std::int64_t>(blockIdx.x) * (Sums::count + (sums_residual ? 1 : 0)) * op.width;
  Sums gradients(partials, all_columns);
  ResidualSums<access, size> residuals(partials + Sums::count * op.width, team, width);
  if (sums_residual) all_columns.for_each([&](int, int first) { residuals.set_zero(first); });
  const T* const weight = static_cast<const T*>(op.weight);
  for (std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * teams; first_row < op.rows;
       first_row += static_cast<std::int64_t>(gridDim.x) * teams) {
    const std::int64_t row = first_row + team, offset = row * op.width;
    const bool here = row < op.rows;
    const Columns<access, packs, size> columns{thread, team_threads, here ? width : 0};
    const Row<T, access, packs> x(static_cast<const T*>(op.x) + offset, columns);
    const Row<T, access, packs> dy(static_cast<const T*>(op.dy) + offset, columns);
    // Asked for here, though it is needed last: it is on its way while the row's sums are made.
    const bool adds = op.dresidual != nullptr;
    const Row<T, access, packs> residual(adds ? static_cast<const T*>(op.dresidual) + offset : nullptr,
                                         {thread, team_threads, adds ? columns.width : 0});
    float mean = 0.0F;
    if constexpr (norm == NormKind::layer) mean = here ? op.mean[row] : 0.0F;
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
        means[1] += g;
        sums[0][i] = fmaf(dy_k[i], normal, sums[0][i]);
        if constexpr (norm == NormKind::layer) sums[1][i] += dy_k[i];
      }
      gradients.put(k, first, sums);
    });
    team_sum(means, shape.warps());
    const float minus_g_normal = -means[0] * shape.inverse_width;
    const float minus_g = norm == NormKind::layer ? -means[1] * shape.inverse_width : 0.0F;
    columns.for_each([&](int k, int first) {
      float x_k[size], dy_k[size], weight_k[size], residual_k[size] = {};
      x.get(k, first, x_k);
      dy.get(k, first, dy_k);
      load_part<whole>(weight, first, width, weight_k);
      if (adds) residual.get(k, first, residual_k);
      if (sums_residual) residuals.add(first, residual_k);
#pragma unroll
      for (int i = 0; i < size; ++i) {
        const float centered = fmaf(dy_k[i], weight_k[i], minus_g);
        x_k[i] = fmaf(fmaf((x_k[i] - mean) * rstd, minus_g_normal, centered), rstd, residual_k[i]);
      }
      store_part<whole>(static_cast<T*>(op.dx) + offset, first, width, x_k);
    });
  }
  if (sums_residual) residuals.finish(teams);
  gradients.finish(all_columns, team, teams);  // in the same shared memory
}

template <NormKind norm, typename Op>
Teams backward_teams(const Op& op) {
  return teams_of(op.width, held_packs<norm>, 16 / static_cast<int>(bytes_of(op.dtype)), threads_max<norm>);
}
std::int64_t backward_blocks(std::int64_t rows, const Teams& teams) {
  const std::int64_t blocks = blocks_for(rows, team_rows_min * teams.per_block);
  return std::min(std::max<std::int64_t>(blocks, 1), blocks_max);
}

template <NormKind norm, typename Op>
void prepare_backward(Context& context, const Op& op, bool sums_residual) {
  const std::int64_t blocks = backward_blocks(op.rows, backward_teams<norm>(op));
  const int sums = sum_count<norm> + (sums_residual ? 1 : 0);
  context.request_workspace(static_cast<std::size_t>(blocks * sums * op.width) * sizeof(float));
}

template <NormKind norm, typename Op>
void backward(Context& context, const Op& op, float* bias_gradient, float* dresidual_sum) {
  const bool sums_residual = dresidual_sum != nullptr;
  const Teams teams = backward_teams<norm>(op);
  const std::int64_t blocks = backward_blocks(op.rows, teams);
  float* const partials = reinterpret_cast<float*>(context.workspace());
  // The teams' sums of dresidual make way for the gradients' of the block.
  const std::int64_t shared_sums =
      std::max(sums_residual ? teams.per_block : 0, teams.per_block > 1 ? sum_count<norm> : 0);
  const std::size_t shared_bytes = static_cast<std::size_t>(shared_sums * op.width) * sizeof(float);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    with_access<T>(
        teams, op.width,
        [&](auto access) {
          launch(context, norm_backward<norm, T, access, Op>,
                 {.blocks = blocks_for(blocks, 1),
                  .threads = teams.threads * teams.per_block,
                  .shared_bytes = teams.holds ? shared_bytes : 0},
                 op, shape_of(teams, op.width), partials, sums_residual);
        },
        op.x, op.weight, op.dy, op.dresidual, op.dx);
  });
  add_column_sums(context, {.partials = partials,
                            .groups = blocks,
                            .columns = op.width,
                            .targets = {op.weight_gradient, bias_gradient, dresidual_sum},
                            .target_count = sum_count<norm> + (sums_residual ? 1 : 0),
                            .accumulate = op.accumulate});
}

}  // namespace

void prepare_layernorm_backward(Context& context, const void* arguments) {
  const LayerNormBackward& op = *static_cast<const LayerNormBackward*>(arguments);
  prepare_backward<NormKind::layer>(context, op, op.dresidual_sum != nullptr);
}
void run_layernorm_backward(Context& context, const void* arguments) {
  const LayerNormBackward& op = *static_cast<const LayerNormBackward*>(arguments);
  backward<NormKind::layer>(context, op, op.bias_gradient, op.dresidual_sum);
}

void prepare_rmsnorm_backward(Context& context, const void* arguments) {
  prepare_backward<NormKind::rms>(context, *static_cast<const RmsNormBackward*>(arguments), false);
}
void run_rmsnorm_backward(Context& context, const void* arguments) {
  backward<NormKind::rms>(context, *static_cast<const RmsNormBackward*>(arguments), nullptr, nullptr);
}

}  // namespace holdfast::kernels::cuda
