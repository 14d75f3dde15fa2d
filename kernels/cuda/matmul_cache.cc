#include "kernels/cuda/matmul_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace holdfast::kernels::cuda {

namespace {

// Workspace limit that NVIDIA recommends for sm_90. It is a constant: another value may mean another
// algorithm.
constexpr std::uint64_t workspace_limit_bytes = std::uint64_t{32} << 20;
// Minimum alignment of tensors (MemoryPlan and the buckets of parameters give more).
constexpr std::uint32_t address_alignment_bytes = 16;

// Number of algorithms that are requested from the heuristic, the best first.
constexpr int candidates_max = 8;

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// Returns the alignment of the rows of a matrix that begins at that alignment.
std::uint32_t row_alignment_bytes(std::int64_t leading, DType dtype) {
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(leading) * bytes_of(dtype);
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(row_bytes & (~row_bytes + 1), address_alignment_bytes));
}

bool aligned(const void* address, std::uint32_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

struct Preference {
  Preference() : status(cublasLtMatmulPreferenceCreate(&handle)) {}
  ~Preference() {
    if (handle != nullptr) cublasLtMatmulPreferenceDestroy(handle);
  }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <typename T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof(value));
  }
  cublasLtMatmulPreference_t handle = nullptr;
  cublasStatus_t status;  // the first refusal
};

template <typename T>
cublasStatus_t set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value));
}

// Returns nothing when the library does not tell.
template <typename T>
std::optional<T> read(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value = 0;
  std::size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  if (status != CUBLAS_STATUS_SUCCESS || written != sizeof(value)) return {};
  return value;
}

// Returns whether parts of a sum, if there are any, are known to be added in order.
bool has_ordered_sums(const cublasLtMatmulAlgo_t& algorithm) {
  const auto scheme = read<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  return scheme == std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} ||
         scheme == std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE};
}

}  // namespace

std::string matmul_library() {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// The library's matrices are column-major, so it sees the transposed of ours and computes C' = B' A': its
// first operand is our B, and the bias, which it adds to each row of C', is added to our columns.
//
// fp32 is "pedantic": neither the environment nor a later version of the library may make TF32 or a sum of
// bf16 products of it. GELU stays an op of its own: fused, its bits would be others than those of the kernel
// that computes it again in the backward pass. So does the bias gradient: the library would overwrite it, and
// it is a sum over microbatches.
Product::Operation Product::operation_of(const ProductShape& shape) {
  cublasLtMatmulDesc_t made = nullptr;
  const auto compute = shape.dtype == DType::fp32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
  if (!accepted(cublasLtMatmulDescCreate(&made, compute, CUDA_R_32F), "a product")) return {};
  Operation operation(made);
  const auto set_attribute = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    accepted(set(made, attribute, value), "an attribute of a product");
  };
  set_attribute(CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set_attribute(CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (shape.bias) {
    set_attribute(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set_attribute(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(shape.dtype)));
    // The heuristic reads the alignment from the address; nothing is read from there.
    set_attribute(CUBLASLT_MATMUL_DESC_BIAS_POINTER, std::uintptr_t{address_alignment_bytes});
  }
  return operation;
}

Product::Layout Product::layout_of(std::int64_t rows, std::int64_t row_length, std::int64_t leading,
                                   DType dtype) {
  cublasLtMatrixLayout_t made = nullptr;
  accepted(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<std::uint64_t>(row_length),
                                      static_cast<std::uint64_t>(rows), leading),
           "a matrix");
  return Layout(made);
}

bool Product::accepted(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  if (why_not_.empty()) {
    why_not_ = fmt::format("{} refused {}: {}", matmul_library(), what, cublasLtGetStatusName(status));
  }
  return false;
}

Product::Product(cublasLtHandle_t library, const ProductShape& shape)
    : operation_(operation_of(shape)),
      a_(layout_of(shape.transpose_a ? shape.k : shape.m, shape.transpose_a ? shape.m : shape.k, shape.lda,
                   shape.dtype)),
      b_(layout_of(shape.transpose_b ? shape.n : shape.k, shape.transpose_b ? shape.k : shape.n, shape.ldb,
                   shape.dtype)),
      c_(layout_of(shape.m, shape.n, shape.ldc, shape.dtype_c)),
      alignment_a_bytes_(row_alignment_bytes(shape.lda, shape.dtype)),
      alignment_b_bytes_(row_alignment_bytes(shape.ldb, shape.dtype)),
      alignment_c_bytes_(row_alignment_bytes(shape.ldc, shape.dtype_c)) {
  if (found()) choose(library);
}

// The library's A is our B.
void Product::choose(cublasLtHandle_t library) {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_limit_bytes);
  // Parts of a sum, if any, are kept in fp32 and added in order.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_b_bytes_);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_a_bytes_);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_c_bytes_);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_c_bytes_);
  if (!accepted(preference.status, "a preference")) return;
  std::array<cublasLtMatmulHeuristicResult_t, candidates_max> candidates = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                     preference.handle, candidates_max, candidates.data(), &count);
  why_not_ = "cuBLASLt has no algorithm for it";
  if (status != CUBLAS_STATUS_SUCCESS) return;
  for (const cublasLtMatmulHeuristicResult_t& candidate :
       std::span(candidates).first(static_cast<std::size_t>(std::clamp(count, 0, candidates_max)))) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS || candidate.workspaceSize > workspace_limit_bytes) continue;
    why_not_ = "cuBLASLt adds parts of its sums in an order that is not known";
    if (!has_ordered_sums(candidate.algo)) continue;
    choice_ = candidate;
    why_not_.clear();
    return;
  }
}

bool Product::takes(const Matmul& op) const {
  return aligned(op.a, alignment_a_bytes_) && aligned(op.b, alignment_b_bytes_) &&
         aligned(op.c, alignment_c_bytes_) && aligned(op.residual, alignment_c_bytes_) &&
         aligned(op.bias, address_alignment_bytes);
}

cublasStatus_t Product::run(cublasLtHandle_t library, const Matmul& op, std::byte* workspace,
                            cudaStream_t stream) const {
  if (op.bias != nullptr) {
    const cublasStatus_t status = set(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, op.bias);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  const float alpha = 1.0F;
  const void* const added = op.residual != nullptr ? op.residual : op.c;
  const float beta = op.residual != nullptr || op.accumulate ? 1.0F : 0.0F;
  return cublasLtMatmul(library, operation_.get(), &alpha, op.b, b_.get(), op.a, a_.get(), &beta, added,
                        c_.get(), op.c, c_.get(), &choice_.algo, workspace, choice_.workspaceSize, stream);
}

namespace {

template <typename T>
std::string number(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  const std::optional<T> value = read<T>(algorithm, attribute);
  return value.has_value() ? fmt::format("{}", *value) : "?";
}

}  // namespace

std::string Product::algorithm() const {
  if (!found()) return "none";
  const auto word = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
    return number<std::uint32_t>(choice_.algo, attribute);
  };
  const auto short_word = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
    return number<std::uint16_t>(choice_.algo, attribute);
  };
  return fmt::format(
      "algorithm {} tile {} stages {} splits {} reduction {} swizzle {} custom {} inner {} cluster {}",
      word(CUBLASLT_ALGO_CONFIG_ID), word(CUBLASLT_ALGO_CONFIG_TILE_ID), word(CUBLASLT_ALGO_CONFIG_STAGES_ID),
      word(CUBLASLT_ALGO_CONFIG_SPLITK_NUM), word(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
      word(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING), word(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
      short_word(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID), short_word(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
}

Result<std::unique_ptr<MatmulCache>> MatmulCache::make() {
  cublasLtHandle_t library = nullptr;
  const cublasStatus_t status = cublasLtCreate(&library);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return fail(ExitCode::config,
                "cuBLASLt does not start on this GPU: {} ({}); expected a driver for {} and free memory",
                cublasLtGetStatusString(status), cublasLtGetStatusName(status), matmul_library());
  }
  return std::unique_ptr<MatmulCache>(new MatmulCache(library));
}

MatmulCache::~MatmulCache() {
  products_.clear();
  cublasLtDestroy(library_);
}

const Product& MatmulCache::product(const ProductShape& shape) {
  return products_.try_emplace(shape, library_, shape).first->second;
}

const Product* MatmulCache::find(const ProductShape& shape) const {
  const auto found = products_.find(shape);
  return found == products_.end() ? nullptr : &found->second;
}

std::string MatmulCache::description() const {
  std::vector<std::string> lines;
  for (const auto& [s, product] : products_) {
    lines.push_back(fmt::format("m {} n {} k {} lda {} ldb {} ldc {} {}{}{}{} {} -> {}: {}", s.m, s.n, s.k,
                                s.lda, s.ldb, s.ldc, s.transpose_a ? "T" : "N", s.transpose_b ? "T" : "N",
                                s.accumulate ? " accumulate" : "", s.bias ? " bias" : "", name_of(s.dtype),
                                name_of(s.dtype_c), product.algorithm()));
  }
  std::ranges::sort(lines);
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace holdfast::kernels::cuda
