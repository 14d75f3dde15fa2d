// A matrix product of our own: how a call is cut into blocks that stay in the caches, and tiles of them that
// stay in registers. After Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication".
//
//   row block, depth block   A of these is packed once, by all threads, and stays in L2
//   item                     columns (and rows, when there are few columns) handed out to one thread
//   chunk                    B of an item and a chunk is packed by the thread that uses it
//   tile                     rows x columns sums in registers
//
// Only the chunk decides bits, and it follows from the depth alone: blocks and items may depend on the number
// of threads. Row blocks and depth blocks are a budget of memory.
#pragma once

#include "kernels/cpu/context.h"
#include "kernels/cpu/gemm/bias.h"
#include "kernels/cpu/gemm/vector_tile.h"
#include "kernels/cpu/team.h"
#include "kernels/matmul.h"

namespace holdfast::cpu::HF_ISA {

template <typename Tile>
class Gemm {
 public:
  using Element = typename Tile::Element;

  Gemm(const Context& context, const Matmul& op);

  void request_scratch() const;
  void run() const;

 private:
  struct Item {
    std::int64_t row = 0, rows = 0;  // inside the row block
    std::int64_t column = 0, columns = 0;
  };
  struct Block {  // what is packed of A
    std::int64_t row = 0, rows = 0;
    std::int64_t depth = 0, depths = 0;
  };

  void cut_items();
  std::int64_t words_of(std::int64_t depth) const {
    return padded(depth, Tile::depth_unit) / Tile::Words::depth_per_word;
  }
  // Sums wait in fp32 for the next chunk where C itself cannot hold them.
  bool keeps_sums() const { return op_.dtype_c == DType::bf16 && op_.k > chunk_; }
  bool shares_sums() const { return keeps_sums() && op_.k > depth_block_; }
  std::int64_t packed_rows(std::int64_t rows) const {
    return padded(rows, larger(Tile::rows, Tile::row_step));
  }

  void pack_rows(const Block& block) const;
  void run_item(const Block& block, std::int64_t index, int thread) const;
  template <typename C>
  void run_chunk(const Block& block, const Item& item, std::int64_t depth, std::int64_t depths,
                 const float* a_panels, const float* b_panels, const float* bias, float* sums, C* c) const;
  const float* load_bias(const Item& item, int thread) const;

  const Context& context_;
  const Matmul op_;
  std::int64_t chunk_ = 0;
  std::int64_t row_block_ = 0, depth_block_ = 0;
  std::int64_t item_rows_ = 0, item_columns_ = 0;
  std::size_t b_bytes_ = 0, bias_bytes_ = 0, sums_bytes_ = 0, a_bytes_ = 0;
};

template <typename Tile>
Gemm<Tile>::Gemm(const Context& context, const Matmul& op) : context_(context), op_(op) {
  constexpr std::int64_t most_rows = 512;
  constexpr std::int64_t most_words = 192 * 1024;  // 768 KiB of packed A
  const std::int64_t chunks = ceil_divide(op.k, Tile::chunk);
  chunk_ = padded(ceil_divide(op.k, chunks), 32);
  row_block_ = smaller(padded(ceil_divide(op.m, ceil_divide(op.m, most_rows)), Tile::row_step), op.m);
  const std::int64_t words_per_chunk = row_block_ * words_of(chunk_);
  depth_block_ = larger(1, most_words / words_per_chunk) * chunk_;
  cut_items();

  const auto floats = [](std::int64_t count) {
    return static_cast<std::size_t>(padded(count, 16)) * sizeof(float);
  };
  const std::int64_t columns = padded(item_columns_, Tile::columns);
  a_bytes_ = floats(packed_rows(row_block_) * words_of(smaller(depth_block_, padded(op.k, chunk_))));
  b_bytes_ = floats(columns * words_of(chunk_));
  bias_bytes_ = op.bias != nullptr ? floats(columns) : 0;
  if (keeps_sums()) sums_bytes_ = floats(shares_sums() ? row_block_ * op.n : item_rows_ * columns);
}

// A few items for every thread, as long as each is worth its packing.
template <typename Tile>
void Gemm<Tile>::cut_items() {
  constexpr std::int64_t items_per_thread = 4;
  constexpr std::int64_t most_words = 96 * 1024;  // 384 KiB of packed B
  constexpr std::int64_t fewest_rows = 64;
  const std::int64_t wanted = context_.team().threads() * items_per_thread;
  const std::int64_t panels = ceil_divide(op_.n, Tile::columns);
  const std::int64_t most_panels = larger(1, most_words / (words_of(chunk_) * Tile::columns));
  const std::int64_t step = smaller(most_panels, larger(1, panels / wanted));
  item_columns_ = step * Tile::columns;
  const std::int64_t row_parts =
      smaller(ceil_divide(wanted, ceil_divide(panels, step)), larger(1, row_block_ / fewest_rows));
  item_rows_ = padded(ceil_divide(row_block_, row_parts), Tile::rows);
}

template <typename Tile>
void Gemm<Tile>::request_scratch() const {
  context_.request_scratch(b_bytes_ + bias_bytes_ + (shares_sums() ? 0 : sums_bytes_));
  context_.request_shared_scratch(a_bytes_ + (shares_sums() ? sums_bytes_ : 0));
}

template <typename Tile>
void Gemm<Tile>::run() const {
  Block block;
  for (block.row = 0; block.row < op_.m; block.row += row_block_) {
    block.rows = smaller(row_block_, op_.m - block.row);
    const std::int64_t items = ceil_divide(block.rows, item_rows_) * ceil_divide(op_.n, item_columns_);
    for (block.depth = 0; block.depth < op_.k; block.depth += depth_block_) {
      block.depths = smaller(depth_block_, op_.k - block.depth);
      pack_rows(block);
      context_.parallel_for(items, [&](std::int64_t index, int thread) { run_item(block, index, thread); });
    }
  }
}

// Chunk by chunk, and panels of Tile::rows inside.
template <typename Tile>
void Gemm<Tile>::pack_rows(const Block& block) const {
  constexpr std::int64_t step = 64;
  static_assert(step % Tile::rows == 0 && step % Tile::row_step == 0);
  const Operand<Element> a{static_cast<const Element*>(op_.a), op_.lda, !op_.transpose_a};
  float* packed = reinterpret_cast<float*>(context_.shared_scratch());
  const std::int64_t rows = packed_rows(block.rows);
  context_.parallel_for(ceil_divide(rows, step), [&](std::int64_t index, int) {
    const std::int64_t row = index * step;
    for (std::int64_t depth = 0; depth < block.depths; depth += chunk_) {
      const std::int64_t depths = smaller(chunk_, block.depths - depth);
      float* chunk = packed + rows * words_of(depth);
      Tile::pack_rows(a, block.row + row, smaller(step, block.rows - row), block.depth + depth, depths,
                      words_of(depths), chunk + row * words_of(depths));
    }
  });
}

// The bias of an item's columns as fp32, or null.
template <typename Tile>
const float* Gemm<Tile>::load_bias(const Item& item, int thread) const {
  if (op_.bias == nullptr) return nullptr;
  float* bias = reinterpret_cast<float*>(context_.scratch(thread) + b_bytes_);
  for_lanes(item.columns, [&](std::int64_t i, auto some) {
    store(bias + i, load(static_cast<const Element*>(op_.bias) + item.column + i, some), some);
  });
  return bias;
}

template <typename Tile>
void Gemm<Tile>::run_item(const Block& block, std::int64_t index, int thread) const {
  const std::int64_t row_parts = ceil_divide(block.rows, item_rows_);
  Item item;
  item.row = index % row_parts * item_rows_;
  item.rows = smaller(item_rows_, block.rows - item.row);
  item.column = index / row_parts * item_columns_;
  item.columns = smaller(item_columns_, op_.n - item.column);

  const Operand<Element> b{static_cast<const Element*>(op_.b), op_.ldb, op_.transpose_b};
  std::byte* scratch = context_.scratch(thread);
  float* b_panels = reinterpret_cast<float*>(scratch);
  const float* bias = load_bias(item, thread);
  const float* a_panels = reinterpret_cast<const float*>(context_.shared_scratch());
  float* sums = nullptr;
  if (shares_sums()) {
    sums = reinterpret_cast<float*>(context_.shared_scratch() + a_bytes_) + item.row * op_.n +
           item.column * item.rows;
  } else if (keeps_sums()) {
    sums = reinterpret_cast<float*>(scratch + b_bytes_ + bias_bytes_);
  }
  Tile::enter();
  for (std::int64_t depth = 0; depth < block.depths; depth += chunk_) {
    const std::int64_t depths = smaller(chunk_, block.depths - depth);
    Tile::pack_columns(b, item.column, item.columns, block.depth + depth, depths, words_of(depths), b_panels);
    const float* a = a_panels + packed_rows(block.rows) * words_of(depth) + item.row * words_of(depths);
    const std::int64_t first = (block.row + item.row) * op_.ldc + item.column;
    if (op_.dtype_c == DType::bf16) {
      run_chunk(block, item, depth, depths, a, b_panels, bias, sums, static_cast<BFloat16*>(op_.c) + first);
    } else {
      run_chunk(block, item, depth, depths, a, b_panels, bias, sums, static_cast<float*>(op_.c) + first);
    }
  }
  Tile::leave();
}

template <typename Tile>
template <typename C>
void Gemm<Tile>::run_chunk(const Block& block, const Item& item, std::int64_t depth, std::int64_t depths,
                           const float* a_panels, const float* b_panels, const float* bias, float* sums,
                           C* c) const {
  const std::int64_t words = words_of(depths);
  const bool first = block.depth + depth == 0;
  const bool last = block.depth + depth + depths == op_.k;
  constexpr bool float_target = sizeof(C) == sizeof(float);
  const auto run_tile = [&](std::int64_t row, std::int64_t column, auto* target, std::int64_t stride,
                            const float* running, std::int64_t running_stride) {
    using T = std::remove_pointer_t<decltype(target)>;
    TileOutput<T> output;
    output.c = target + row * stride + column;
    output.c_stride = stride;
    output.rows = smaller(Tile::rows, item.rows - row);
    output.columns = smaller(Tile::columns, item.columns - column);
    if (running != nullptr) {
      output.base = running + row * running_stride + column;
      output.base_stride = running_stride;
    } else if (bias != nullptr) {
      output.base = bias + column;
    }
    Tile::run(words, a_panels + row * words, b_panels + column * words, output);
  };
  for (std::int64_t row = 0; row < item.rows; row += Tile::rows) {
    for (std::int64_t column = 0; column < item.columns; column += Tile::columns) {
      if constexpr (float_target) {
        run_tile(row, column, c, op_.ldc, first && !op_.accumulate ? nullptr : c, op_.ldc);
      } else if (last) {
        run_tile(row, column, c, op_.ldc, first ? nullptr : sums, item.columns);
      } else {
        run_tile(row, column, sums, item.columns, first ? nullptr : sums, item.columns);
      }
    }
  }
}

template <typename Tile>
void run_gemm(const Context& context, const Matmul& op) {
  if (op.m == 0 || op.n == 0) return;
  Matmul product = op;
  if (op.k == 0 || (op.accumulate && op.bias != nullptr)) {
    add_bias_alone(op);
    if (op.k == 0) return;
    product.bias = nullptr;
  }
  Gemm<Tile>(context, product).run();
}

template <typename Tile>
void prepare_gemm(const Context& context, const Matmul& op) {
  if (op.m == 0 || op.n == 0 || op.k == 0) return;
  Gemm<Tile>(context, op).request_scratch();
}

}  // namespace holdfast::cpu::HF_ISA
