#include "runtime/integrity/product_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>
#include <tuple>

#include "parallel/comm/device_wait.h"
#include "runtime/core/random.h"
#include "runtime/rank/watch.h"

namespace holdfast::integrity {
namespace {

constexpr std::int64_t largest_result = std::int64_t{1} << 25;  // elements; what the host reads takes time
constexpr std::int64_t largest_side = 200'000;                  // 81 times as much is exact in fp32
constexpr std::uint64_t alignment = 256;
constexpr int largest = 3;  // element of a factor

auto key_of(const Matmul& op) {
  return std::tuple(op.m, op.n, op.k, op.transpose_a, op.transpose_b, op.accumulate, op.dtype, op.dtype_c);
}

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Returns integers from -largest to largest that are not 0.
std::vector<int> small_integers(std::int64_t count, std::uint64_t stream) {
  const RandomStream random(0, stream);
  std::vector<int> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits = random.bits(i);
    const int magnitude = 1 + static_cast<int>((bits >> 1U) % largest);
    values[i] = (bits & 1U) != 0 ? magnitude : -magnitude;
  }
  return values;
}

std::uint32_t bits_of(int value, DType dtype) {
  const auto number = static_cast<float>(value);
  return dtype == DType::bf16 ? to_bfloat16(number).bits : std::bit_cast<std::uint32_t>(number);
}

// The rows of the matrix with the elements factor * row[i] * column[j], each rounded once, for each value that an
// element of `row` may have.
class OuterRows {
 public:
  OuterRows(const std::vector<int>& column, std::int64_t factor, DType dtype) {
    const std::uint64_t bytes = bytes_of(dtype);
    for (int value = -largest; value <= largest; ++value) {
      std::vector<std::byte>& row = rows_[static_cast<std::size_t>(value + largest)];
      row.resize(column.size() * bytes);
      for (std::size_t j = 0; j < column.size(); ++j) {
        const std::uint32_t bits = bits_of(static_cast<int>(factor * value * column[j]), dtype);
        std::memcpy(row.data() + j * bytes, &bits, bytes);
      }
    }
  }
  const std::vector<std::byte>& of(int value) const {
    return rows_[static_cast<std::size_t>(value + largest)];
  }

 private:
  std::array<std::vector<std::byte>, 2 * largest + 1> rows_;
};

// Calls visit(first row, part of the matrix) for parts of whole rows that fit into the buffer of the access.
template <typename Byte, typename Visit>
void for_parts(std::span<Byte> matrix, std::uint64_t row_bytes, const Visit& visit) {
  const std::uint64_t rows = matrix.size() / row_bytes, most = HostAccess::buffer_bytes / row_bytes;
  for (std::uint64_t row = 0; row < rows; row += most) {
    const std::uint64_t count = std::min(rows - row, most);
    visit(row, matrix.subspan(row * row_bytes, count * row_bytes));
  }
}

void write_outer(HostAccess& access, std::span<std::byte> matrix, const std::vector<int>& row,
                 const std::vector<int>& column, DType dtype) {
  const OuterRows rows(column, 1, dtype);
  const std::uint64_t row_bytes = column.size() * bytes_of(dtype);
  for_parts(matrix, row_bytes, [&](std::uint64_t first, std::span<std::byte> part) {
    const std::span<std::byte> host = access.to_write(part);
    for (std::uint64_t at = 0; at < host.size(); at += row_bytes)
      std::memcpy(host.data() + at, rows.of(row[first + at / row_bytes]).data(), row_bytes);
    access.flush();
  });
}

bool is_outer(HostAccess& access, std::span<const std::byte> matrix, std::int64_t factor,
              const std::vector<int>& row, const std::vector<int>& column, DType dtype) {
  const OuterRows rows(column, factor, dtype);
  const std::uint64_t row_bytes = column.size() * bytes_of(dtype);
  bool same = true;
  for_parts(matrix, row_bytes, [&](std::uint64_t first, std::span<const std::byte> part) {
    const std::span<const std::byte> host = access.to_read(part);
    for (std::uint64_t at = 0; at < host.size() && same; at += row_bytes)
      same = std::memcmp(host.data() + at, rows.of(row[first + at / row_bytes]).data(), row_bytes) == 0;
  });
  return same;
}

// Product that is tested: its operands and the factors that they are made of.
struct KnownProduct {
  Matmul op;
  std::span<std::byte> a, b, c;
  std::vector<int> u, s, t, v;
  std::int64_t factor = 0;  // s . t
};

// Returns the bytes of A, B and C.
std::array<std::uint64_t, 3> sizes_of(const Matmul& op) {
  const auto bytes = [](std::int64_t rows, std::int64_t columns, DType dtype) {
    return static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(columns) * bytes_of(dtype);
  };
  return {bytes(op.m, op.k, op.dtype), bytes(op.k, op.n, op.dtype), bytes(op.m, op.n, op.dtype_c)};
}

std::uint64_t memory_of(const Matmul& op) {
  const std::array<std::uint64_t, 3> sizes = sizes_of(op);
  return aligned(sizes[0]) + aligned(sizes[1]) + aligned(sizes[2]);
}

KnownProduct known_product(Matmul op, std::span<std::byte> scratch) {
  const std::array<std::uint64_t, 3> sizes = sizes_of(op);
  KnownProduct known{.op = op,
                     .a = scratch.first(sizes[0]),
                     .b = scratch.subspan(aligned(sizes[0]), sizes[1]),
                     .c = scratch.subspan(aligned(sizes[0]) + aligned(sizes[1]), sizes[2]),
                     .u = small_integers(op.m, 1),
                     .s = small_integers(op.k, 2),
                     .t = small_integers(op.k, 3),
                     .v = small_integers(op.n, 4)};
  for (std::size_t i = 0; i < known.s.size(); ++i) known.factor += known.s[i] * known.t[i];
  known.op.a = known.a.data();
  known.op.b = known.b.data();
  known.op.c = known.c.data();
  return known;
}

void zero(Device& device, std::span<std::byte> memory) {
  constexpr std::array<std::byte, 64> zeros{};
  fill_memory(device, memory, zeros);
}

bool comes_out_right(const KnownProduct& known, const ProductTest::Place& place) {
  HostAccess& access = place.access;
  const Matmul& op = known.op;
  if (op.transpose_a) {
    write_outer(access, known.a, known.s, known.u, op.dtype);
  } else {
    write_outer(access, known.a, known.u, known.s, op.dtype);
  }
  if (op.transpose_b) {
    write_outer(access, known.b, known.v, known.t, op.dtype);
  } else {
    write_outer(access, known.b, known.t, known.v, op.dtype);
  }
  if (op.accumulate) zero(place.device, known.c);
  place.device.launch(op);
  place.wait();
  return is_outer(access, known.c, known.factor, known.u, known.v, op.dtype_c);
}

}  // namespace

void ProductTest::launched(OpId id, const void* arguments) {
  if (id != Matmul::id) return;
  Matmul op = *static_cast<const Matmul*>(arguments);
  if (op.m * op.n > largest_result || std::max({op.m, op.n, op.k}) > largest_side) return;
  const auto is_same = [&](const Shape& each) { return key_of(each.op) == key_of(op); };
  if (std::ranges::any_of(shapes_, is_same)) return;
  op.a = op.b = op.bias = op.residual = op.gelu_of = nullptr;
  op.c = nullptr;
  op.lda = op.transpose_a ? op.m : op.k;
  op.ldb = op.transpose_b ? op.k : op.n;
  op.ldc = op.n;
  shapes_.push_back({.op = op});
}

void ProductTest::plan(Device& device) const {
  for (const Shape& shape : shapes_) device.launch(shape.op);
}

void ProductTest::run(const Place& place, std::uint64_t step, const std::function<void()>& pace) {
  finding_.reset();
  place.wait();  // what was launched may use the memory
  std::uint64_t used_bytes = 0;
  for (std::size_t i = 0; i < shapes_.size() && !finding_.has_value(); ++i) {
    const std::uint64_t bytes = memory_of(shapes_[i].op);
    if (bytes > place.scratch.size()) continue;
    used_bytes = std::max(used_bytes, bytes);
    finding_ = test(shapes_[i], place, step);
    pace();
  }
  if (used_bytes > 0) zero(place.device, place.scratch.first(used_bytes));
}

std::optional<WrongProduct> ProductTest::test(Shape& shape, const Place& place, std::uint64_t step) {
  const KnownProduct known = known_product(shape.op, place.scratch);
  std::optional<WrongProduct> found;
  if (!comes_out_right(known, place)) {
    const Matmul& op = shape.op;
    found = {.shape = fmt::format("of {} x {} by {} x {} numbers in {}", op.m, op.k, op.k, op.n,
                                  name_of(op.dtype)),
             .lasts = !comes_out_right(known, place),
             .right_step = shape.right_step};
  }
  if (!found.has_value() || !found->lasts) shape.right_step = step;
  return found;
}

Result<void> try_product(Device& device, DType dtype) {
  constexpr std::int64_t side = 128;
  const Matmul op{.m = side, .n = side, .k = side, .dtype = dtype, .dtype_c = dtype};
  ProductTest test;
  test.launched(Matmul::id, &op);
  device.begin_planning();
  test.plan(device);
  HF_TRY_VOID(device.end_planning());
  MemoryPlan plan;
  HostAccess access(device, plan);
  const MemoryPlan::Slot scratch = plan.reserve("product test", MemoryClass::workspace, memory_of(op));
  HF_TRY(const MemoryArena arena, allocate_memory(device, plan));
  access.bind(arena);
  test.run({.device = device,
            .access = access,
            .scratch = arena.bytes(scratch),
            .wait = [&] { device.synchronize(); }},
           /*step=*/0, [] {});
  HF_TRY_VOID(device.status());
  if (!test.finding().has_value()) return {};
  return with_reach(Reach::host, fail(ExitCode::config,
                                      "the device of this host ({}) computes wrong numbers: a product {} "
                                      "with a known result is wrong{}. Have it "
                                      "examined, and leave the host out until then",
                                      device.description(), test.finding()->shape,
                                      test.finding()->lasts ? ", and again when it is made again" : ""));
}

namespace {

Result<ProductRecords> gather_products(const StepAccess& step) {
  TestedProducts tested;
  std::uint64_t verified_step = 0;
  if (const std::optional<WrongProduct>& found = step.products.finding()) {
    tested = {.shape = found->shape, .lasts = found->lasts};
    verified_step = std::max(step.verified_step, found->right_step);
  }
  step.products.forget();
  return gather_records(step.rank, verified_step, tested);
}

// Returns the ranks whose finding lasts; none where they are of more than one copy of the model.
std::vector<int> lasting_ranks(const ProductRecords& records) {
  std::set<int> copies;
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (!records[rank].found.lasts) continue;
    copies.insert(records[rank].data);
    ranks.push_back(static_cast<int>(rank));
  }
  return copies.size() == 1 ? ranks : std::vector<int>();
}

}  // namespace

Finding attribute(const ProductRecords& records, std::uint64_t verified_step) {
  Finding finding{.verified_step = verified_step,
                  .kept = "nothing was computed with that product",
                  .stopped = std::string(replace_hardware_clause)};
  const std::vector<int> lasting = lasting_ranks(records);
  std::vector<std::string> names;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const CheckRecord<TestedProducts>& record = records[rank];
    if (!record.found.is_wrong()) continue;
    names.push_back(fmt::format("{} computed a product {} wrong", record.name(), record.found.shape));
    finding.suspects.push_back({.index = static_cast<int>(rank),
                                .record = record,
                                .kind = record.found.lasts ? finding_kinds::lasts : finding_kinds::once,
                                .may_leave = std::ranges::binary_search(lasting, static_cast<int>(rank))});
    if (!record.found.lasts) continue;
    finding.hardware = HardwareState::lasts;
    finding.verified_step = std::min(finding.verified_step, record.verified_step);
  }
  if (finding.suspects.size() == 1) finding.suspects[0].may_leave = true;
  finding.report.differing_ranks = static_cast<int>(names.size());
  finding.report.op = name_of(OpId::matmul);
  finding.report.reason =
      fmt::format("{}, whose result is known{}", fmt::join(names, ", "),
                  finding.hardware == HardwareState::lasts
                      ? fmt::format(", and again when it was made again; weights may be wrong since step {}",
                                    finding.verified_step)
                      : ", but right when it was made again");
  return finding;
}

void test_products(const StepAccess& step) {
  const RankContext& rank = step.rank;
  step.products.run({.device = rank.device,
                     .access = rank.host_access,
                     .scratch = step.gradients,
                     .wait = [&rank] { wait_for_device(rank.device, rank.communicator); }},
                    step.step, [&rank] { mark(rank.watch); });
}

Result<CheckedStep> check_products(const StepAccess& step, const Attempt& attempt) {
  if (attempt.votes.wrong_products == 0) return CheckedStep{.attempt = attempt};
  HF_TRY(const ProductRecords records, gather_products(step));
  Finding finding = attribute(records, step.step);
  finding.report.step = step.step + 1;
  finding.report.value = attempt.numbers.grad_norm;
  finding.report.reason = fmt::format("step {}: {}", finding.report.step, finding.report.reason);
  return follow(step.rank, attempt, std::move(finding));
}

Result<Finding> lasting_products(const StepAccess& step) {
  test_products(step);
  HF_TRY(const ProductRecords records, gather_products(step));
  Finding finding = attribute(records, step.step);
  return finding.hardware == HardwareState::lasts ? std::move(finding) : Finding();
}

}  // namespace holdfast::integrity
