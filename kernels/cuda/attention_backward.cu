// Attention backward for every head size and type, in fp32 between load and store (attention_tiles.h).
// Without atomics: one kernel goes over the queries of a tile of keys, of every query head that shares them,
// for the gradients of keys and values; another goes over the keys of a tile of queries. Both compute the
// probabilities again, from the log-sum-exp that forward kept.
#include "kernels/attention.h"

#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/ops.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int delta_threads = 256;
constexpr int delta_lanes = 8;  // of a row
constexpr int delta_pack = 8;   // neighbouring elements of a lane, however they are loaded

template <typename T, bool packed>
__device__ void load_pack(const T* row, int first, int head_size, float (&values)[delta_pack]) {
  if constexpr (packed) {
    load<delta_pack>(row + first, values);
  } else {
#pragma unroll
    for (int i = 0; i < delta_pack; ++i) values[i] = first + i < head_size ? as_float(row[first + i]) : 0.0F;
  }
}

// Processes rows in the order of memory: (batch, sequence, head).
template <typename T, bool packed>
__global__ void __launch_bounds__(delta_threads) deltas(AttentionBackward op) {
  const std::int64_t rows = op.batch * op.sequence_length * op.heads;
  const std::int64_t index =
      (static_cast<std::int64_t>(blockIdx.x) * delta_threads + threadIdx.x) / delta_lanes;
  const std::int64_t row = min(index, rows - 1);  // all lanes take part in the sum
  const int lane = static_cast<int>(threadIdx.x) % delta_lanes, head_size = static_cast<int>(op.head_size);
  const T* out = static_cast<const T*>(op.out) + row * head_size;
  const T* dout = static_cast<const T*>(op.dout) + row * head_size;
  float sum = 0;
  for (int d = lane * delta_pack; d < head_size; d += delta_lanes * delta_pack) {
    float a[delta_pack], b[delta_pack];
    load_pack<T, packed>(out, d, head_size, a);
    load_pack<T, packed>(dout, d, head_size, b);
#pragma unroll
    for (int i = 0; i < delta_pack; ++i) sum = fmaf(a[i], b[i], sum);
  }
#pragma unroll
  for (int flip = delta_lanes / 2; flip > 0; flip /= 2) sum += __shfl_xor_sync(all_lanes, sum, flip);
  const std::int64_t head = row % op.heads, token = row / op.heads;
  const std::int64_t b = token / op.sequence_length, t = token % op.sequence_length;
  if (lane == 0 && index < rows) op.delta[(b * op.heads + head) * op.sequence_length + t] = sum;
}

// The tensors of one query head.
template <typename T>
struct Head {
  HeadPlace place;
  const T *qkv, *dout;
  const float *lse, *delta;

  __device__ Head(const AttentionBackward& op, int b, int head)
      : place(place_of(op, b, head)),
        qkv(static_cast<const T*>(op.qkv)),
        dout(static_cast<const T*>(op.dout) + place.out),
        lse(op.lse + place.statistics),
        delta(op.delta + place.statistics) {}
  __device__ HeadRows<T> queries(int first, int end) const {
    return {qkv + place.query, place.qkv_stride, first, end};
  }
  __device__ HeadRows<T> keys(int first, int end) const {
    return {qkv + place.key, place.qkv_stride, first, end};
  }
  __device__ HeadRows<T> values(int first, int end) const {
    return {qkv + place.value, place.qkv_stride, first, end};
  }
  __device__ HeadRows<T> douts(int first, int end) const { return {dout, place.out_stride, first, end}; }
};

// State of one query of a tile.
struct Query {
  int number, document;
  float lse = 0, delta = 0;  // lse in units of log 2
  bool exists;

  template <typename T>
  __device__ Query(const Head<T>& head, const VisibleKeys& visible, int query)
      : number(query), document(visible.first_of(query)), exists(query < visible.length) {
    if (!exists) return;
    lse = head.lse[query] * log2_e;
    delta = head.delta[query];
  }
  __device__ float probability(float product, float scale, int key, const VisibleKeys& visible) const {
    const bool sees = exists && visible.sees(number, document, key);
    return sees ? exp2f(fmaf(product * scale, log2_e, -lse)) : 0.0F;
  }
};

// One block on a multiprocessor is enough: for two of them the compiler spills registers.
template <typename T, int columns>
__global__ void __launch_bounds__(tile_threads, 1) key_gradients(AttentionBackward op) {
  TileMemory& memory = tile_memory();
  const TileThread thread;
  const TilePlace at(op.batch, op.kv_heads);
  const VisibleKeys visible = visible_keys(op, at.b);
  const int length = visible.length, head_size = static_cast<int>(op.head_size);
  const int first_column = static_cast<int>(blockIdx.y) * columns;
  const int group = static_cast<int>(op.heads / op.kv_heads);
  const int first_key = at.tile * tile_rows;  // the first are seen by most
  const int end_key = min(first_key + tile_rows, length);
  const int end_tile = visible.end_of_windows(end_key - 1, tile_rows);
  const float scale = 1.0F / sqrtf(static_cast<float>(head_size));
  float dkeys[4][columns / 16] = {}, dvalues[4][columns / 16] = {};
  for (int member = 0; member < group; ++member) {
    const Head<T> head(op, at.b, at.head * group + member);
    for (int tile = at.tile; tile < end_tile; ++tile) {
      const int first_query = tile * tile_rows;
      if (visible.are_in_gap(first_query, first_query + tile_rows - 1, first_key, end_key - 1)) continue;
      float weights[4][4], dweights[4][4];  // of a key and a query
      multiply_rows(head.keys(first_key, end_key), head.queries(first_query, length), head_size, memory,
                    weights);
      multiply_rows(head.values(first_key, end_key), head.douts(first_query, length), head_size, memory,
                    dweights);
      for (int j = 0; j < 4; ++j) {
        const Query query(head, visible, first_query + thread.x + 16 * j);
        for (int i = 0; i < 4; ++i) {
          weights[i][j] = query.probability(weights[i][j], scale, first_key + thread.y + 16 * i, visible);
          dweights[i][j] = weights[i][j] * (dweights[i][j] - query.delta);
        }
      }
      put_weights(weights, memory);
      add_weighted_rows<columns>(head.douts(first_query, length), first_column, head_size, memory, dvalues);
      put_weights(dweights, memory);
      add_weighted_rows<columns>(head.queries(first_query, length), first_column, head_size, memory, dkeys);
    }
  }
  const HeadPlace place = place_of(op, at.b, at.head * group);
  T* dqkv = static_cast<T*>(op.dqkv);
  const float scales[4] = {scale, scale, scale, scale}, ones[4] = {1, 1, 1, 1};
  store_rows<columns>(dkeys, scales, dqkv + place.key, place.qkv_stride, first_key, end_key, first_column,
                      head_size);
  store_rows<columns>(dvalues, ones, dqkv + place.value, place.qkv_stride, first_key, end_key, first_column,
                      head_size);
}

template <typename T, int columns>
__global__ void __launch_bounds__(tile_threads) query_gradients(AttentionBackward op) {
  TileMemory& memory = tile_memory();
  const TileThread thread;
  const TilePlace at(op.batch, op.heads);
  const VisibleKeys visible = visible_keys(op, at.b);
  const int length = visible.length, head_size = static_cast<int>(op.head_size);
  const int first_column = static_cast<int>(blockIdx.y) * columns;
  const int first_query = ((length - 1) / tile_rows - at.tile) * tile_rows;  // the longest first
  const int end = min(length, first_query + tile_rows);
  const float scale = 1.0F / sqrtf(static_cast<float>(head_size));
  const Head<T> head(op, at.b, at.head);
  const int query0 = first_query + thread.y;
  const Query queries[4] = {{head, visible, query0},
                            {head, visible, query0 + 16},
                            {head, visible, query0 + 32},
                            {head, visible, query0 + 48}};
  float dqueries[4][columns / 16] = {};
  for (int first_key = first_tile_of(visible, first_query); first_key < end; first_key += tile_rows) {
    if (visible.are_in_gap(first_query, end - 1, first_key, first_key + tile_rows - 1)) continue;
    float weights[4][4], dweights[4][4];
    multiply_rows(head.queries(first_query, end), head.keys(first_key, end), head_size, memory, weights);
    multiply_rows(head.douts(first_query, end), head.values(first_key, end), head_size, memory, dweights);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float p = queries[i].probability(weights[i][j], scale, first_key + thread.x + 16 * j, visible);
        dweights[i][j] = p * (dweights[i][j] - queries[i].delta);
      }
    }
    put_weights(dweights, memory);
    add_weighted_rows<columns>(head.keys(first_key, end), first_column, head_size, memory, dqueries);
  }
  const float scales[4] = {scale, scale, scale, scale};
  store_rows<columns>(dqueries, scales, static_cast<T*>(op.dqkv) + head.place.query, head.place.qkv_stride,
                      first_query, end, first_column, head_size);
}

}  // namespace

void run_attention_delta(Context& context, const AttentionBackward& op) {
  const Grid grid = {
      .blocks = blocks_for(op.batch * op.sequence_length * op.heads, delta_threads / delta_lanes),
      .threads = delta_threads};
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const bool packed = op.head_size % delta_pack == 0 && packs_fit<T>(op.head_size, op.out, op.dout);
    launch(context, packed ? deltas<T, true> : deltas<T, false>, grid, op);
  });
}

void run_attention_backward(Context& context, const void* arguments) {
  const auto op = for_kernel<AttentionBackward>(arguments);
  run_attention_delta(context, op);
  for_tile_kernel(op.dtype, op.head_size, [&](auto element, auto columns) {
    using T = decltype(element);
    launch(context, key_gradients<T, columns>,
           tile_grid(op.batch * op.kv_heads, op.sequence_length, op.head_size, columns), op);
    launch(context, query_gradients<T, columns>,
           tile_grid(op.batch * op.heads, op.sequence_length, op.head_size, columns), op);
  });
}

}  // namespace holdfast::kernels::cuda
