#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.h"
#include "kernels/norm.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int held_packs = 4, threads_max = 512;  // of a thread; of a team

template <NormKind norm, typename T, Access access, typename Op>
__global__ void __launch_bounds__(threads_max, 1) norm_forward(Op op, TeamShape shape) {
  constexpr int size = pack_size<T>;
  constexpr bool whole = access == Access::packs;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * shape.teams() + shape.team();
  const bool here = row < op.rows;
  const int width = static_cast<int>(op.width);
  const Columns<access, held_packs, size> columns{shape.thread(), shape.threads(), here ? width : 0};
  const Row<T, access, held_packs> x(static_cast<const T*>(op.x) + row * op.width, columns);
  float mean = 0.0F;
  if constexpr (norm == NormKind::layer) {
    float sum[1] = {};
    columns.for_each([&](int k, int first) {
      float values[size];
      x.get(k, first, values);
#pragma unroll
      for (int i = 0; i < size; ++i) sum[0] += values[i];
    });
    team_sum(sum, shape.warps());
    mean = sum[0] * shape.inverse_width;
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
  team_sum(squares, shape.warps());
  const float rstd = 1.0F / sqrtf(fmaf(squares[0], shape.inverse_width, op.epsilon));
  columns.for_each([&](int k, int first) {
    float values[size], weight[size];
    x.get(k, first, values);
    load_part<whole>(static_cast<const T*>(op.weight), first, width, weight);
    if constexpr (norm == NormKind::layer) {
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
  if (!here || shape.thread() != 0) return;
  if constexpr (norm == NormKind::layer) op.mean[row] = mean;
  op.rstd[row] = rstd;
}

template <NormKind norm, typename Op>
void forward(Context& context, const Op& op, const void* bias) {
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const Teams teams = teams_of(op.width, held_packs, pack_size<T>, threads_max);
    with_access<T>(
        teams, op.width,
        [&](auto access) {
          launch(context, norm_forward<norm, T, access, Op>,
                 {.blocks = blocks_for(op.rows, teams.per_block), .threads = teams.threads * teams.per_block},
                 op, shape_of(teams, op.width));
        },
        op.x, op.weight, bias, op.y);
  });
}

}  // namespace

void run_layernorm_forward(Context& context, const void* arguments) {
  const LayerNormForward& op = *static_cast<const LayerNormForward*>(arguments);
  forward<NormKind::layer>(context, op, op.bias);
}
void run_rmsnorm_forward(Context& context, const void* arguments) {
  forward<NormKind::rms>(context, *static_cast<const RmsNormForward*>(arguments), nullptr);
}

}  // namespace holdfast::kernels::cuda
