// Matrix products by oneDNN: how a call is cut into one-thread products, which follows from its shape alone.
//
//   rows x columns   output tiles, handed out to the team
//   parts            a long sum over few tiles is cut too; parts are fp32 and are added in order
//   chunks           inside one tile and part, one after another into the same C
#include "kernels/matmul.h"

#include <cstring>

#include "kernels/cpu/gemm/epilogue.h"
#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"
#include "runtime/core/check.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

// Cuts [0, extent) into equal steps, the last one shorter.
struct Cut {
  std::int64_t extent = 0;
  std::int64_t step = 0;
  std::int64_t count() const { return ceil_divide(extent, step); }
  std::int64_t begin(std::int64_t index) const { return index * step; }
  std::int64_t size(std::int64_t index) const { return smaller(step, extent - begin(index)); }
};

// Steps of about equal size, at most `most`, multiples of `unit` (vector width, so that only the edge has
// tails).
Cut equal_cut(std::int64_t extent, std::int64_t most, std::int64_t unit) {
  const std::int64_t step = ceil_divide(extent, ceil_divide(extent, most));
  return {extent, ceil_divide(step, unit) * unit};
}

struct Plan {
  Cut rows, columns, parts;
  std::int64_t chunk = 0;
  bool widen = false;  // bf16 on a processor whose library cannot multiply it: operands are widened to fp32
  std::int64_t tiles() const { return rows.count() * columns.count(); }
};

constexpr std::int64_t unit = 16;
constexpr std::int64_t widened_chunk = 512;

// Largest tiles, measured: wide tiles pay for packing B, and with A transposed oneDNN packs A too.
struct TileLimit {
  std::int64_t rows = 0, columns = 0;
};
TileLimit tile_limit(const Matmul& op) {
  if (op.dtype == DType::bf16) return {512, 768};
  return op.transpose_a ? TileLimit{128, 768} : TileLimit{512, 384};
}

// Makes tiles smaller until there are enough for a team, as long as each is worth handing out.
bool wants_more_tiles(std::int64_t tiles, std::int64_t half_tile_work) {
  constexpr std::int64_t million = 1 << 20;  // multiply-adds: 10 microseconds of a core
  return (tiles < 2 && half_tile_work >= million) || (tiles < 4 && half_tile_work >= 4 * million) ||
         (tiles < 8 && half_tile_work >= 32 * million);
}

void cut_output(const Matmul& op, Plan& plan) {
  TileLimit limit = tile_limit(op);
  for (;;) {
    plan.rows = equal_cut(op.m, limit.rows, unit);
    plan.columns = equal_cut(op.n, limit.columns, unit);
    const std::int64_t work = smaller(plan.rows.step, op.m) * smaller(plan.columns.step, op.n) * op.k;
    const bool wide = plan.columns.step > 64, tall = plan.rows.step > 64;
    if (!wants_more_tiles(plan.tiles(), work / 2) || (!wide && !tall)) return;
    if (tall && (plan.rows.step >= plan.columns.step || !wide)) {
      limit.rows = plan.rows.step / 2;
    } else {
      limit.columns = plan.columns.step / 2;
    }
  }
}

Plan plan_of(const Context& context, const Matmul& op) {
  constexpr std::int64_t shortest_part = 2048;
  constexpr std::int64_t max_parts = 16;
  constexpr std::int64_t max_partial_elements = std::int64_t{1} << 22;
  Plan plan;
  plan.widen = !context.matmuls().supports(op.dtype);
  cut_output(op, plan);
  std::int64_t parts = 1;
  if (plan.tiles() < 4) {
    parts = smaller(smaller(max_parts, op.k / shortest_part), max_partial_elements / (op.m * op.n));
  }
  plan.parts = equal_cut(op.k, ceil_divide(op.k, larger(parts, 1)), unit);
  plan.chunk = plan.widen ? widened_chunk : plan.parts.step;
  return plan;
}

// One call: its plan and the distinct products of it (edges differ), looked up before the team starts.
class TiledMatmul {
 public:
  TiledMatmul(const Context& context, const Matmul& op);
  void request_scratch() const;
  void run() const;

 private:
  struct Entry {
    std::int64_t rows = 0, columns = 0, depth = 0;
    bool first = false;
    const Product* product = nullptr;
  };
  struct Tile {
    std::int64_t row = 0, rows = 0, column = 0, columns = 0, part = 0;
  };
  struct Layout {  // of one thread's scratch
    std::size_t product = 0, a = 0, b = 0, bias = 0, c = 0, bytes = 0;
  };

  bool partial() const { return plan_.parts.count() > 1; }
  // Returns whether a tile's sums are kept in fp32 until they are complete, because C cannot hold them.
  bool into_scratch() const {
    return (plan_.widen || op_.gelu_of != nullptr) && !partial() && op_.dtype_c != DType::fp32;
  }
  // Returns whether the library finds the residual in C, where run_tile() puts it.
  bool starts_from_residual() const { return op_.residual != nullptr && !partial() && !into_scratch(); }
  ProductShape shape_of(const Entry& entry) const;
  void add(Entry entry);
  const Product& product(std::int64_t rows, std::int64_t columns, std::int64_t depth, bool first) const;
  void set_layout();
  Tile tile_of(std::int64_t index) const;
  void run_tile(std::int64_t index, int thread) const;
  void write_tile(const Tile& tile, const float* sums, std::int64_t stride) const;
  void run_widened(const Tile& tile, std::int64_t begin, std::int64_t depth, bool first, void* c,
                   int thread) const;
  void add_parts() const;

  const Context& context_;
  const Matmul op_;
  const Plan plan_;
  // Per dimension the full step and the edge; depths: chunk, the edge of a part and the edge of the last
  // part.
  static constexpr int max_entries = 2 * 2 * 3 * 2;
  Entry entries_[max_entries];
  int entry_count_ = 0;
  Layout layout_;
};

const std::byte* offset(const void* base, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(base) + static_cast<std::size_t>(elements) * bytes_of(dtype);
}
std::byte* offset(void* base, std::int64_t elements, DType dtype) {
  return static_cast<std::byte*>(base) + static_cast<std::size_t>(elements) * bytes_of(dtype);
}

TiledMatmul::TiledMatmul(const Context& context, const Matmul& op)
    : context_(context), op_(op), plan_(plan_of(context, op)) {
  const auto sizes = [](const Cut& cut, auto&& use) {
    use(cut.size(0));
    if (cut.size(cut.count() - 1) != cut.step) use(cut.size(cut.count() - 1));
  };
  sizes(plan_.rows, [&](std::int64_t rows) {
    sizes(plan_.columns, [&](std::int64_t columns) {
      sizes(plan_.parts, [&](std::int64_t part) {
        const Cut chunks{part, plan_.chunk};
        add({rows, columns, chunks.size(0), true, nullptr});
        if (chunks.count() > 2) add({rows, columns, chunks.step, false, nullptr});
        if (chunks.count() > 1) add({rows, columns, chunks.size(chunks.count() - 1), false, nullptr});
      });
    });
  });
  set_layout();
}

// Partial sums, and those that C cannot hold, start in fp32 memory of our own.
ProductShape TiledMatmul::shape_of(const Entry& entry) const {
  ProductShape shape{.m = entry.rows, .n = entry.columns, .k = entry.depth};
  shape.lda = op_.lda;
  shape.ldb = op_.ldb;
  shape.ldc = partial() ? op_.n : op_.ldc;
  shape.transpose_a = op_.transpose_a;
  shape.transpose_b = op_.transpose_b;
  shape.accumulate = !entry.first || (op_.accumulate && !partial()) || starts_from_residual();
  shape.bias = entry.first && op_.bias != nullptr && !partial();
  shape.dtype = op_.dtype;
  shape.dtype_c = partial() || into_scratch() ? DType::fp32 : op_.dtype_c;
  if (into_scratch()) shape.ldc = entry.columns;
  if (plan_.widen) {
    shape.lda = op_.transpose_a ? entry.rows : entry.depth;
    shape.ldb = op_.transpose_b ? entry.depth : entry.columns;
    shape.dtype = DType::fp32;
    shape.dtype_c = DType::fp32;
  }
  return shape;
}

void TiledMatmul::add(Entry entry) {
  for (int i = 0; i < entry_count_; ++i) {
    const Entry& known = entries_[i];
    if (known.rows == entry.rows && known.columns == entry.columns && known.depth == entry.depth &&
        known.first == entry.first) {
      return;
    }
  }
  HF_CHECK(entry_count_ < max_entries);
  entry.product = &context_.matmuls().product(shape_of(entry));
  entries_[entry_count_++] = entry;
}

const Product& TiledMatmul::product(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                    bool first) const {
  for (int i = 0; i < entry_count_; ++i) {
    const Entry& entry = entries_[i];
    if (entry.rows == rows && entry.columns == columns && entry.depth == depth && entry.first == first) {
      return *entry.product;
    }
  }
  HF_CHECK(false);  // the constructor enumerates every size that a tile can have
  return *entries_[0].product;
}

void TiledMatmul::set_layout() {
  const auto take = [this](std::size_t bytes) {
    const std::size_t begin = layout_.bytes;
    layout_.bytes += (bytes + 63) / 64 * 64;
    return begin;
  };
  std::size_t product_bytes = 0;
  for (int i = 0; i < entry_count_; ++i) {
    const std::size_t bytes = entries_[i].product->scratch_bytes();
    if (bytes > product_bytes) product_bytes = bytes;
  }
  layout_.product = take(product_bytes);
  const auto floats = [](std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); };
  if (into_scratch()) layout_.c = take(floats(plan_.rows.step * plan_.columns.step));
  if (!plan_.widen) return;
  layout_.a = take(floats(plan_.rows.step * plan_.chunk));
  layout_.b = take(floats(plan_.columns.step * plan_.chunk));
  layout_.bias = take(floats(plan_.columns.step));
}

void TiledMatmul::request_scratch() const {
  context_.request_scratch(layout_.bytes);
  if (partial()) {
    context_.request_shared_scratch(static_cast<std::size_t>(plan_.parts.count() * op_.m * op_.n) *
                                    sizeof(float));
  }
}

void TiledMatmul::run() const {
  context_.parallel_for(plan_.tiles() * plan_.parts.count(),
                        [this](std::int64_t index, int thread) { run_tile(index, thread); });
  if (partial()) add_parts();
}

// Down the columns first: neighbours share the columns of B, which are the larger operand.
TiledMatmul::Tile TiledMatmul::tile_of(std::int64_t index) const {
  const std::int64_t row = index % plan_.rows.count();
  const std::int64_t column = index / plan_.rows.count() % plan_.columns.count();
  return {plan_.rows.begin(row), plan_.rows.size(row), plan_.columns.begin(column),
          plan_.columns.size(column), index / plan_.tiles()};
}

void TiledMatmul::run_tile(std::int64_t index, int thread) const {
  const Tile tile = tile_of(index);
  std::byte* scratch = context_.scratch(thread);
  const std::int64_t first = tile.row * op_.ldc + tile.column;
  void* c = offset(op_.c, first, op_.dtype_c);
  if (partial()) {
    c = offset(context_.shared_scratch(), (tile.part * op_.m + tile.row) * op_.n + tile.column, DType::fp32);
  } else if (into_scratch()) {
    c = scratch + layout_.c;
  }
  if (starts_from_residual()) {
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      std::memcpy(offset(c, row * op_.ldc, op_.dtype_c),
                  offset(op_.residual, first + row * op_.ldc, op_.dtype_c),
                  static_cast<std::size_t>(tile.columns) * bytes_of(op_.dtype_c));
    }
  }
  const std::int64_t begin = plan_.parts.begin(tile.part);
  const std::int64_t depth = plan_.parts.size(tile.part);
  if (plan_.widen) {
    const Cut chunks{depth, plan_.chunk};
    for (std::int64_t i = 0; i < chunks.count(); ++i) {
      run_widened(tile, begin + chunks.begin(i), chunks.size(i), i == 0, c, thread);
    }
  } else {
    const std::int64_t a = op_.transpose_a ? begin * op_.lda + tile.row : tile.row * op_.lda + begin;
    const std::int64_t b = op_.transpose_b ? tile.column * op_.ldb + begin : begin * op_.ldb + tile.column;
    const void* bias = op_.bias == nullptr ? nullptr : offset(op_.bias, tile.column, op_.dtype);
    product(tile.rows, tile.columns, depth, true)
        .run(thread, offset(op_.a, a, op_.dtype), offset(op_.b, b, op_.dtype), bias, c,
             scratch + layout_.product);
  }
  if (into_scratch()) {
    write_tile(tile, static_cast<const float*>(c), tile.columns);
  } else if (op_.gelu_of != nullptr && !partial()) {
    write_tile(tile, static_cast<const float*>(c), op_.ldc);
  }
}

// Writes a tile of C from its sums, which may lie in C.
void TiledMatmul::write_tile(const Tile& tile, const float* sums, std::int64_t stride) const {
  for_dtype(op_.dtype_c, [&](auto c_element) {
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      const float* const of_row = sums + row * stride;
      write_row<decltype(c_element)>(op_, (tile.row + row) * op_.ldc + tile.column, tile.columns,
                                     [&](std::int64_t i, auto lanes) { return load(of_row + i, lanes); });
    }
  });
}

void widen(const BFloat16* source, std::int64_t stride, std::int64_t rows, std::int64_t columns,
           float* target) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const BFloat16* from = source + row * stride;
    float* to = target + row * columns;
    for_lanes(columns, [&](std::int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
  }
}

void TiledMatmul::run_widened(const Tile& tile, std::int64_t begin, std::int64_t depth, bool first, void* c,
                              int thread) const {
  std::byte* scratch = context_.scratch(thread);
  float* a = reinterpret_cast<float*>(scratch + layout_.a);
  float* b = reinterpret_cast<float*>(scratch + layout_.b);
  float* bias = reinterpret_cast<float*>(scratch + layout_.bias);
  const BFloat16* source_a = static_cast<const BFloat16*>(op_.a);
  const BFloat16* source_b = static_cast<const BFloat16*>(op_.b);
  if (op_.transpose_a) {
    widen(source_a + begin * op_.lda + tile.row, op_.lda, depth, tile.rows, a);
  } else {
    widen(source_a + tile.row * op_.lda + begin, op_.lda, tile.rows, depth, a);
  }
  if (op_.transpose_b) {
    widen(source_b + tile.column * op_.ldb + begin, op_.ldb, tile.columns, depth, b);
  } else {
    widen(source_b + begin * op_.ldb + tile.column, op_.ldb, depth, tile.columns, b);
  }
  if (op_.bias != nullptr)
    widen(static_cast<const BFloat16*>(op_.bias) + tile.column, 0, 1, tile.columns, bias);
  product(tile.rows, tile.columns, depth, first).run(thread, a, b, bias, c, scratch + layout_.product);
}

// Computes C from ((part 0 + part 1) + ...) + bias, rounded once.
void TiledMatmul::add_parts() const {
  constexpr std::int64_t elements_per_index = 8192;
  const float* parts = reinterpret_cast<const float*>(context_.shared_scratch());
  const Cut rows{op_.m, larger(1, elements_per_index / op_.n)};
  const auto add_rows = [&](std::int64_t index, auto c_element, auto bias_element) {
    using C = decltype(c_element);
    using Bias = decltype(bias_element);
    const Bias* bias = static_cast<const Bias*>(op_.bias);
    for (std::int64_t row = rows.begin(index); row < rows.begin(index) + rows.size(index); ++row) {
      write_row<C>(op_, row * op_.ldc, op_.n, [&](std::int64_t i, auto lanes) {
        f32x16 sum = load(parts + row * op_.n + i, lanes);
        for (std::int64_t part = 1; part < plan_.parts.count(); ++part) {
          sum = sum + load(parts + (part * op_.m + row) * op_.n + i, lanes);
        }
        return bias != nullptr ? sum + load(bias + i, lanes) : sum;
      });
    }
  };
  context_.parallel_for(rows.count(), [&](std::int64_t index, int) {
    for_dtype(op_.dtype_c, [&](auto c_element) {
      for_dtype(op_.dtype, [&](auto bias_element) { add_rows(index, c_element, bias_element); });
    });
  });
}

}  // namespace

void prepare_onednn_matmul(const Context& context, const void* arguments) {
  const Matmul& op = *static_cast<const Matmul*>(arguments);
  check_matmul(op);
  if (op.m == 0 || op.n == 0 || op.k == 0) return;
  TiledMatmul(context, op).request_scratch();
}

void run_onednn_matmul(const Context& context, const void* arguments) {
  const Matmul& op = *static_cast<const Matmul*>(arguments);
  if (op.m == 0 || op.n == 0) return;
  if (op.k == 0) return add_bias_alone(op);
  TiledMatmul(context, op).run();
}

}  // namespace holdfast::kernels::cpu::HF_ISA
