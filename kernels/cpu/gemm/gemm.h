// Gemm: our own matrix product. A call is cut into blocks that stay in the caches, and tiles of them that
// stay in registers. After Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication".
//
//   block    rows of A or columns of B (of the smaller operand) x depth: packed once, by all threads, and
//            stays in L2
//   item     a part of the other operand, handed out to one thread
//   chunk    depth of an item that its thread packs at a time
//   tile     rows x columns sums in registers; a thread walks along the rows of C
//
// Only the chunk decides bits, and it follows from the depth alone: blocks and items may depend on the number
// of threads. The sizes of blocks are a budget of memory.
#pragma once

#include "kernels/cpu/context.h"
#include "kernels/cpu/gemm/epilogue.h"
#include "kernels/cpu/gemm/vector_tile.h"
#include "kernels/cpu/team.h"
#include "kernels/matmul.h"

namespace holdfast::kernels::cpu::HF_ISA {

template <typename Tile>
class Gemm {
 public:
  using Element = typename Tile::Element;

  Gemm(const Context& context, const Matmul& op);

  void request_scratch() const;
  void run() const;

 private:
  struct Range {
    std::int64_t begin = 0, count = 0;
  };
  struct Block {  // of C: a part of the rows or of the columns, and all of the others
    Range rows, columns, depths;
  };
  struct Item {
    Range rows, columns;
  };

  void cut_blocks();
  void cut_items();
  std::int64_t arguments_of(std::int64_t depth) const {
    return padded(depth, Tile::depth_unit) / Tile::Words::depth_per_word;
  }
  // Returns whether sums are kept in fp32 for the next chunk, because C itself cannot hold them.
  bool keeps_sums() const { return op_.dtype_c == DType::bf16 && op_.k > chunk_; }
  bool shares_sums() const { return keeps_sums() && op_.k > depth_block_; }

  Range shared(const Block& block) const { return shares_rows_ ? block.rows : block.columns; }
  Item item_of(const Block& block, std::int64_t index) const;
  void run_block(const Block& block) const;
  void pack(bool rows, Range extent, Range depths, float* panels) const;
  void pack_shared(const Block& block) const;
  void run_item(const Block& block, const Item& item, int thread) const;
  template <typename C>
  void run_chunk(const Item& item, Range depths, const float* a_panels, const float* b_panels,
                 const float* bias, float* sums) const;
  const float* load_bias(const Item& item, int thread) const;
  float* sums_of(const Block& block, const Item& item, int thread) const;

  static constexpr std::int64_t row_unit = Tile::rows > Tile::row_step ? Tile::rows : Tile::row_step;
  static constexpr std::int64_t fewest = 64;  // rows or columns that are worth a call

  const Context& context_;
  const Matmul op_;
  // Tells which operand the threads share: they share A and are handed out columns; or they share B and are
  // handed out rows, so that each writes whole rows of a large C (a weight gradient), which is fastest in
  // memory.
  const bool shares_rows_;
  const std::int64_t shared_extent_, own_extent_;
  const std::int64_t shared_unit_, own_unit_;
  std::int64_t chunk_ = 0;
  std::int64_t shared_block_ = 0, depth_block_ = 0;
  std::int64_t shared_step_ = 0, own_step_ = 0;  // of an item
  std::size_t own_bytes_ = 0, bias_bytes_ = 0, sums_bytes_ = 0, shared_bytes_ = 0;
};

template <typename Tile>
Gemm<Tile>::Gemm(const Context& context, const Matmul& op)
    : context_(context),
      op_(op),
      shares_rows_(op.m < op.n || op.dtype_c == DType::bf16),
      shared_extent_(shares_rows_ ? op.m : op.n),
      own_extent_(shares_rows_ ? op.n : op.m),
      shared_unit_(shares_rows_ ? row_unit : Tile::columns),
      own_unit_(shares_rows_ ? Tile::columns : row_unit) {
  cut_blocks();
  cut_items();
  const auto floats = [](std::int64_t count) {
    return static_cast<std::size_t>(padded(count, 16)) * sizeof(float);
  };
  const std::int64_t depth = smaller(depth_block_, padded(op.k, chunk_));
  shared_bytes_ = floats(padded(shared_block_, shared_unit_) * arguments_of(depth));
  own_bytes_ = floats(own_step_ * arguments_of(chunk_));
  const std::int64_t columns = padded(shares_rows_ ? own_step_ : shared_step_, Tile::columns);
  if (op.bias != nullptr) bias_bytes_ = floats(columns);
  if (keeps_sums()) {
    sums_bytes_ =
        floats(shares_sums() ? shared_block_ * own_extent_ : padded(shared_step_, shared_unit_) * own_step_);
  }
}

template <typename Tile>
void Gemm<Tile>::cut_blocks() {
  constexpr std::int64_t most = 512;
  constexpr std::int64_t max_words = 192 * 1024;  // 768 KiB of the shared operand
  const std::int64_t chunks = ceil_divide(op_.k, Tile::chunk);
  chunk_ = padded(ceil_divide(op_.k, chunks), 32);
  const std::int64_t words = arguments_of(chunk_);
  const std::int64_t blocks = ceil_divide(shared_extent_, larger(most, max_words / words));
  shared_block_ = smaller(padded(ceil_divide(shared_extent_, blocks), shared_unit_), shared_extent_);
  depth_block_ = larger(1, max_words / (shared_block_ * words)) * chunk_;
}

// Cuts a few items for every thread, as long as each is worth its packing.
template <typename Tile>
void Gemm<Tile>::cut_items() {
  constexpr std::int64_t items_per_thread = 4;
  constexpr std::int64_t max_words = 96 * 1024;  // 384 KiB of a thread's own operand
  const std::int64_t wanted = context_.team().threads() * items_per_thread;
  const std::int64_t units = ceil_divide(own_extent_, own_unit_);
  const std::int64_t max_units = larger(1, max_words / (arguments_of(chunk_) * own_unit_));
  const std::int64_t step = smaller(max_units, larger(1, units / wanted));
  own_step_ = step * own_unit_;
  const std::int64_t parts =
      smaller(ceil_divide(wanted, ceil_divide(units, step)), larger(1, shared_block_ / fewest));
  shared_step_ = padded(ceil_divide(shared_block_, parts), shares_rows_ ? Tile::rows : Tile::columns);
}

template <typename Tile>
void Gemm<Tile>::request_scratch() const {
  context_.request_scratch(own_bytes_ + bias_bytes_ + (shares_sums() ? 0 : sums_bytes_));
  context_.request_shared_scratch(shared_bytes_ + (shares_sums() ? sums_bytes_ : 0));
}

template <typename Tile>
void Gemm<Tile>::run() const {
  Block block{.rows = {0, op_.m}, .columns = {0, op_.n}, .depths = {}};
  for (std::int64_t begin = 0; begin < shared_extent_; begin += shared_block_) {
    const Range part{begin, smaller(shared_block_, shared_extent_ - begin)};
    (shares_rows_ ? block.rows : block.columns) = part;
    for (std::int64_t depth = 0; depth < op_.k; depth += depth_block_) {
      block.depths = {depth, smaller(depth_block_, op_.k - depth)};
      run_block(block);
    }
  }
}

template <typename Tile>
void Gemm<Tile>::run_block(const Block& block) const {
  pack_shared(block);
  const std::int64_t items =
      ceil_divide(shared(block).count, shared_step_) * ceil_divide(own_extent_, own_step_);
  context_.parallel_for(
      items, [&](std::int64_t index, int thread) { run_item(block, item_of(block, index), thread); });
}

template <typename Tile>
auto Gemm<Tile>::item_of(const Block& block, std::int64_t index) const -> Item {
  const Range whole = shared(block);
  const std::int64_t parts = ceil_divide(whole.count, shared_step_);
  const std::int64_t skipped = index % parts * shared_step_;
  const Range part{whole.begin + skipped, smaller(shared_step_, whole.count - skipped)};
  const std::int64_t begin = index / parts * own_step_;
  const Range own{begin, smaller(own_step_, own_extent_ - begin)};
  return shares_rows_ ? Item{.rows = part, .columns = own} : Item{.rows = own, .columns = part};
}

// Packs `extent` rows of A, or columns of B, of one chunk.
template <typename Tile>
void Gemm<Tile>::pack(bool rows, Range extent, Range depths, float* panels) const {
  const std::int64_t words = arguments_of(depths.count);
  if (rows) {
    const Operand<Element> a{static_cast<const Element*>(op_.a), op_.lda, !op_.transpose_a};
    Tile::pack_rows(a, extent.begin, extent.count, depths.begin, depths.count, words, panels);
  } else {
    const Operand<Element> b{static_cast<const Element*>(op_.b), op_.ldb, op_.transpose_b};
    Tile::pack_columns(b, extent.begin, extent.count, depths.begin, depths.count, words, panels);
  }
}

// Packs the shared operand chunk by chunk, in panels.
template <typename Tile>
void Gemm<Tile>::pack_shared(const Block& block) const {
  constexpr std::int64_t row_step = 64, column_step = 96;
  static_assert(row_step % row_unit == 0 && column_step % Tile::columns == 0);
  const std::int64_t step = shares_rows_ ? row_step : column_step;
  float* packed = reinterpret_cast<float*>(context_.shared_scratch());
  const Range whole = shared(block);
  const std::int64_t extent = padded(whole.count, shared_unit_);
  context_.parallel_for(ceil_divide(whole.count, step), [&](std::int64_t index, int) {
    const Range part{whole.begin + index * step, smaller(step, whole.count - index * step)};
    for (std::int64_t depth = 0; depth < block.depths.count; depth += chunk_) {
      const Range depths{block.depths.begin + depth, smaller(chunk_, block.depths.count - depth)};
      float* chunk = packed + extent * arguments_of(depth);
      pack(shares_rows_, part, depths, chunk + index * step * arguments_of(depths.count));
    }
  });
}

// Returns the bias of an item's columns as fp32, or null.
template <typename Tile>
const float* Gemm<Tile>::load_bias(const Item& item, int thread) const {
  if (op_.bias == nullptr) return nullptr;
  float* bias = reinterpret_cast<float*>(context_.scratch(thread) + own_bytes_);
  for_lanes(item.columns.count, [&](std::int64_t i, auto some) {
    store(bias + i, load(static_cast<const Element*>(op_.bias) + item.columns.begin + i, some), some);
  });
  return bias;
}

// Returns the fp32 sums of an item that are kept between chunks, or null.
template <typename Tile>
float* Gemm<Tile>::sums_of(const Block& block, const Item& item, int thread) const {
  if (!keeps_sums()) return nullptr;
  if (!shares_sums()) {
    return reinterpret_cast<float*>(context_.scratch(thread) + own_bytes_ + bias_bytes_);
  }
  const std::int64_t row = item.rows.begin - block.rows.begin;
  const std::int64_t column = item.columns.begin - block.columns.begin;
  return reinterpret_cast<float*>(context_.shared_scratch() + shared_bytes_) + row * block.columns.count +
         column * item.rows.count;
}

template <typename Tile>
void Gemm<Tile>::run_item(const Block& block, const Item& item, int thread) const {
  const float* bias = load_bias(item, thread);
  float* sums = sums_of(block, item, thread);
  float* own = reinterpret_cast<float*>(context_.scratch(thread));
  const float* packed = reinterpret_cast<const float*>(context_.shared_scratch());
  const Range whole = shared(block);
  const std::int64_t extent = padded(whole.count, shared_unit_);
  const std::int64_t skipped = (shares_rows_ ? item.rows.begin : item.columns.begin) - whole.begin;
  Tile::enter();
  for (std::int64_t depth = 0; depth < block.depths.count; depth += chunk_) {
    const Range depths{block.depths.begin + depth, smaller(chunk_, block.depths.count - depth)};
    pack(!shares_rows_, shares_rows_ ? item.columns : item.rows, depths, own);
    const float* others = packed + extent * arguments_of(depth) + skipped * arguments_of(depths.count);
    const float* a = shares_rows_ ? others : own;
    const float* b = shares_rows_ ? own : others;
    if (op_.dtype_c == DType::bf16) {
      run_chunk<BFloat16>(item, depths, a, b, bias, sums);
    } else {
      run_chunk<float>(item, depths, a, b, bias, sums);
    }
  }
  Tile::leave();
}

template <typename Tile>
template <typename C>
void Gemm<Tile>::run_chunk(const Item& item, Range depths, const float* a_panels, const float* b_panels,
                           const float* bias, float* sums) const {
  const std::int64_t words = arguments_of(depths.count);
  const std::int64_t rows = item.rows.count, columns = item.columns.count;
  const bool first = depths.begin == 0;
  const bool last = depths.begin + depths.count == op_.k;
  constexpr bool float_target = sizeof(C) == sizeof(float);
  C* c = static_cast<C*>(op_.c) + item.rows.begin * op_.ldc + item.columns.begin;
  // Returns the item's part of a matrix that the epilogue reads, or null.
  const auto part_of = [&](const void* matrix) -> const C* {
    if (!last || matrix == nullptr) return nullptr;
    return static_cast<const C*>(matrix) + item.rows.begin * op_.ldc + item.columns.begin;
  };
  const C* const residual = part_of(op_.residual);
  const C* const gelu_of = part_of(op_.gelu_of);
  const auto run_tile = [&](std::int64_t row, std::int64_t column, auto* target, std::int64_t stride,
                            const float* running, std::int64_t running_stride) {
    using T = std::remove_pointer_t<decltype(target)>;
    TileOutput<T> output;
    if constexpr (std::is_same_v<T, C>) {
      if (residual != nullptr) output.residual = residual + row * stride + column;
      if (gelu_of != nullptr) output.gelu_of = gelu_of + row * stride + column;
    }
    output.c = target + row * stride + column;
    output.c_stride = stride;
    output.rows = smaller(Tile::rows, rows - row);
    output.columns = smaller(Tile::columns, columns - column);
    if (column + Tile::columns < columns) {
      output.c_ahead = output.c + Tile::columns;
    } else if (row + Tile::rows < rows) {
      output.c_ahead = target + (row + Tile::rows) * stride;
    }
    if (running != nullptr) {
      output.base = running + row * running_stride + column;
      output.base_stride = running_stride;
    } else if (bias != nullptr) {
      output.base = bias + column;
    }
    Tile::run(words, a_panels + row * words, b_panels + column * words, output);
  };
  for (std::int64_t row = 0; row < rows; row += Tile::rows) {
    for (std::int64_t column = 0; column < columns; column += Tile::columns) {
      if constexpr (float_target) {
        run_tile(row, column, c, op_.ldc, first && !op_.accumulate ? nullptr : c, op_.ldc);
      } else if (last) {
        run_tile(row, column, c, op_.ldc, first ? nullptr : sums, columns);
      } else {
        run_tile(row, column, sums, columns, first ? nullptr : sums, columns);
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

}  // namespace holdfast::kernels::cpu::HF_ISA
