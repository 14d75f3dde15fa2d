// The emulated cuBLASLt (include/cublasLt.h). Its heuristic knows algorithms that differ in what they need
// and do, so that tests see whether a caller's preferences were heard:
//   1  addresses and leading dimensions of 16 bytes
//   2  of 4 bytes; there is none for less
//   11, 12  the same two on another GPU of the architecture (OtherGpu), which add two halves of each sum
// each of which may split long sums of small products: in place, which comes first where it is allowed and
// adds the parts in another order each time, or in fp32 in the workspace and in order.
#include <cublasLt.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/core/tensor.h"
#include "tests/cuda_emulator/emulator.h"

using namespace holdfast::core;
namespace cuda_emulator = holdfast::cuda_emulator;

struct cublasLtContext {};

namespace {

constexpr int splits_of_long_sums = 4;
constexpr std::uint64_t long_sum = 1024, small_product = 128 * 128;

[[noreturn]] void stop(const char* sentence) {
  std::fprintf(stderr, "cuBLASLt emulator: %s\n", sentence);
  std::abort();
}

template <typename T>
cublasStatus_t take(T& field, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// GPU of the same architecture for which the library prefers other algorithms, and which may lack those that it
// prefers elsewhere. Set by EMULATED_GPU_OTHER_ALGORITHMS = prefers or lacks.
enum class OtherGpu { no, prefers, lacks };
OtherGpu other_gpu() {
  static const OtherGpu found = [] {
    const char* const text = std::getenv("EMULATED_GPU_OTHER_ALGORITHMS");
    if (text == nullptr) return OtherGpu::no;
    return std::strcmp(text, "lacks") == 0 ? OtherGpu::lacks : OtherGpu::prefers;
  }();
  return found;
}
constexpr std::uint64_t first_of_other = 11;

// Algorithm holds the fields of cublasLtMatmulAlgo_t. `problem` is 0 where a caller made it.
struct Algorithm {
  std::uint64_t id, splits, reduction, alignment_bytes, workspace_bytes, problem;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
Algorithm algorithm_in(const cublasLtMatmulAlgo_t& bytes) {
  Algorithm algorithm;
  std::memcpy(&algorithm, &bytes, sizeof(algorithm));
  return algorithm;
}

struct Problem {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;

  std::uint64_t depth() const { return operation.transpose_a == CUBLAS_OP_T ? a.rows : a.columns; }
  bool has_bias() const { return operation.epilogue == CUBLASLT_EPILOGUE_BIAS; }
  bool has_gelu_slope() const { return operation.epilogue == CUBLASLT_EPILOGUE_DGELU; }
  bool fits() const {
    const bool ta = operation.transpose_a == CUBLAS_OP_T, tb = operation.transpose_b == CUBLAS_OP_T;
    const auto sound = [](const cublasLtMatrixLayoutOpaque_t& x) {
      return x.rows > 0 && x.columns > 0 && x.leading >= static_cast<std::int64_t>(x.rows);
    };
    return sound(a) && sound(b) && sound(d) && (ta ? a.columns : a.rows) == d.rows &&
           (tb ? b.rows : b.columns) == d.columns && (tb ? b.columns : b.rows) == depth();
  }
  // The combinations of cublasLtMatmul()'s table that concern fp32 and bf16.
  bool supported() const {
    const int bias_type = operation.bias_type < 0 ? d.type : operation.bias_type;
    const bool narrow = a.type == CUDA_R_16BF;
    return a.type == b.type && (d.type == CUDA_R_32F || narrow) && (!has_bias() || bias_type == d.type) &&
           !(narrow && operation.compute == CUBLAS_COMPUTE_32F_PEDANTIC) &&
           (!has_gelu_slope() || supports_gelu_slope());
  }
  // Checks what cublasLtMatmulDescAttributes_t says of the auxiliary matrix. Of other types than bf16 it says nothing.
  bool supports_gelu_slope() const {
    return d.type == CUDA_R_16BF && operation.aux_leading % 8 == 0 &&
           operation.aux_leading >= static_cast<std::int64_t>(d.rows);
  }
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 0;
    const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15U; };
    for (const cublasLtMatrixLayoutOpaque_t* x : {&a, &b, &d}) {
      add(x->rows);
      add(x->columns);
      add(static_cast<std::uint64_t>(x->leading));
      add(static_cast<std::uint64_t>(x->type));
    }
    add(static_cast<std::uint64_t>(operation.transpose_a * 2 + operation.transpose_b));
    add(operation.epilogue);
    add(static_cast<std::uint64_t>(operation.aux_leading));
    add(static_cast<std::uint64_t>(operation.compute));
    return hash;
  }
};

std::uint64_t element_bytes(cudaDataType type) {
  return type == CUDA_R_16BF ? 2 : 4;
}
float element(const void* data, std::int64_t i, cudaDataType type) {
  return type == CUDA_R_16BF ? to_float(static_cast<const BFloat16*>(data)[i])
                             : static_cast<const float*>(data)[i];
}
void set_element(void* data, std::int64_t i, cudaDataType type, float value) {
  if (type == CUDA_R_16BF) {
    static_cast<BFloat16*>(data)[i] = to_bfloat16(value);
  } else {
    static_cast<float*>(data)[i] = value;
  }
}

struct Call {
  Problem problem;
  Algorithm algorithm;
  const void *a, *b, *c;
  void* d;
  float alpha, beta;
  float* workspace;
};

// op(A) as (depth, rows) and op(B) as (columns, depth), each row of them contiguous.
std::vector<float> packed(const void* data, const cublasLtMatrixLayoutOpaque_t& layout, bool by_columns) {
  std::vector<float> result(layout.rows * layout.columns);
  for (std::uint64_t column = 0; column < layout.columns; ++column) {
    for (std::uint64_t row = 0; row < layout.rows; ++row) {
      const std::int64_t from =
          static_cast<std::int64_t>(row) + static_cast<std::int64_t>(column) * layout.leading;
      result[by_columns ? column * layout.rows + row : row * layout.columns + column] =
          element(data, from, layout.type);
    }
  }
  return result;
}

// Sums over depths [begin, end) to parts[column * rows + row].
void multiply_part(const Problem& problem, const std::vector<float>& a, const std::vector<float>& b,
                   std::uint64_t begin, std::uint64_t end, float* parts) {
  const std::uint64_t rows = problem.d.rows, depth = problem.depth();
  std::vector<double> sums(rows);
  for (std::uint64_t column = 0; column < problem.d.columns; ++column) {
    std::ranges::fill(sums, 0.0);
    for (std::uint64_t i = begin; i < end; ++i) {
      const double factor = static_cast<double>(b[column * depth + i]);
      const float* from = a.data() + i * rows;
      for (std::uint64_t row = 0; row < rows; ++row) sums[row] += factor * static_cast<double>(from[row]);
    }
    for (std::uint64_t row = 0; row < rows; ++row) parts[column * rows + row] = static_cast<float>(sums[row]);
  }
}

// The derivative of x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
float gelu_slope(float x) {
  const float scale = 0.7978845608F, cubic = 0.044715F;
  const float t = std::tanh(scale * (x + cubic * x * x * x));
  return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * scale * (1.0F + 3.0F * cubic * x * x);
}

void run(const Call& call) {
  static std::atomic<std::uint64_t> calls{0};
  const Problem& problem = call.problem;
  const std::vector<float> a = packed(call.a, problem.a, problem.operation.transpose_a == CUBLAS_OP_N);
  const std::vector<float> b = packed(call.b, problem.b, problem.operation.transpose_b == CUBLAS_OP_N);
  const std::uint64_t size = problem.d.rows * problem.d.columns;
  const bool in_halves = call.algorithm.id >= first_of_other && call.algorithm.splits == 1;
  const std::uint64_t splits = in_halves ? 2 : call.algorithm.splits;
  const bool in_workspace = call.algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  std::vector<float> own(in_workspace ? 0 : size * splits);
  float* parts = in_workspace ? call.workspace : own.data();
  for (std::uint64_t s = 0; s < splits; ++s) {
    multiply_part(problem, a, b, problem.depth() * s / splits, problem.depth() * (s + 1) / splits,
                  parts + s * size);
  }
  const std::uint64_t first = in_workspace || in_halves ? 0 : calls++ % splits;
  for (std::uint64_t i = 0; i < size; ++i) {
    float sum = 0.0F;
    for (std::uint64_t s = 0; s < splits; ++s) sum += parts[(first + s) % splits * size + i];
    sum *= call.alpha;
    const auto row = static_cast<std::int64_t>(i % problem.d.rows);
    const std::int64_t at = row + static_cast<std::int64_t>(i / problem.d.rows) * problem.d.leading;
    if (std::abs(call.beta) > 0.0F) sum += call.beta * element(call.c, at, problem.d.type);
    if (problem.has_bias()) sum += element(problem.operation.bias, row, problem.d.type);
    if (problem.has_gelu_slope()) {
      const std::int64_t column = static_cast<std::int64_t>(i / problem.d.rows);
      const std::int64_t of = row + column * problem.operation.aux_leading;
      sum *= gelu_slope(element(problem.operation.aux, of, problem.d.type));
    }
    set_element(call.d, at, problem.d.type, sum);
  }
}

std::uint64_t leading_alignment_bytes(const cublasLtMatrixLayoutOpaque_t& layout) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(layout.leading) * element_bytes(layout.type);
  return bytes & (~bytes + 1);
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() {
  return 130100;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t leading) {
  ++cuda_emulator::made().descriptors;
  *layout = new cublasLtMatrixLayoutOpaque_t{type, rows, columns, leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  ++cuda_emulator::made().descriptors;
  *operation = new cublasLtMatmulDescOpaque_t{.compute = compute};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(operation->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(operation->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(operation->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(operation->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(operation->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(operation->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(operation->aux_leading, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  ++cuda_emulator::made().descriptors;
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  if (cuda_emulator::library_quirks().refuses_preferences) return CUBLAS_STATUS_NOT_SUPPORTED;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(preference->workspace_bytes_max, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(preference->reduction_mask, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(preference->alignment_bytes[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                  bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

namespace holdfast::cuda_emulator {
using namespace core;

LibraryQuirks& library_quirks() {
  static LibraryQuirks quirks;
  return quirks;
}

}  // namespace holdfast::cuda_emulator

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  ++cuda_emulator::made().heuristics;
  *count = 0;
  const Problem problem{*operation, *a, *b, *d};
  if (wanted <= 0 || c != d || !problem.fits()) return CUBLAS_STATUS_INVALID_VALUE;
  if (!problem.supported()) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::uint64_t alignment = 16;
  for (const std::uint32_t bytes : preference->alignment_bytes)
    alignment = std::min<std::uint64_t>(alignment, bytes);
  for (const cublasLtMatrixLayoutOpaque_t* x : {a, b, d})
    alignment = std::min(alignment, leading_alignment_bytes(*x));
  if (alignment < 4) return CUBLAS_STATUS_NOT_SUPPORTED;
  const std::uint64_t id_before_first = other_gpu() == OtherGpu::no ? 0 : first_of_other - 1;
  Algorithm algorithm{.id = id_before_first + (alignment >= 16 ? 1U : 2U),
                      .splits = 1,
                      .reduction = CUBLASLT_REDUCTION_SCHEME_NONE,
                      .alignment_bytes = alignment >= 16 ? 16U : 4U,
                      .workspace_bytes = 0,
                      .problem = problem.fingerprint()};
  const std::uint64_t size = d->rows * d->columns, parts_bytes = splits_of_long_sums * size * sizeof(float);
  if (problem.depth() >= long_sum && size <= small_product) {
    if ((preference->reduction_mask & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) {
      algorithm.splits = splits_of_long_sums;
      algorithm.reduction = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    } else if ((preference->reduction_mask & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0 &&
               parts_bytes <= preference->workspace_bytes_max) {
      algorithm.splits = splits_of_long_sums;
      algorithm.reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
      algorithm.workspace_bytes = parts_bytes;
    }
  }
  const auto answer = [&](const Algorithm& found) {
    if (*count == wanted) return;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    std::memcpy(&result.algo, &found, sizeof(found));
    result.workspaceSize = found.workspace_bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
  };
  const cuda_emulator::LibraryQuirks& quirks = cuda_emulator::library_quirks();
  if (quirks.in_place_sums_first || quirks.in_place_sums_alone) {
    Algorithm in_place = algorithm;
    in_place.reduction = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    answer(in_place);
  }
  if (!quirks.in_place_sums_alone) answer(algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* bytes_of_algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes, std::size_t* written) {
  const cuda_emulator::LibraryQuirks& quirks = cuda_emulator::library_quirks();
  const bool about_sums = attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME;
  if (quirks.reports_nothing || (quirks.reports_sums_alone && !about_sums))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const Algorithm algorithm = algorithm_in(*bytes_of_algorithm);
  const bool is_short =
      attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  if (attribute < CUBLASLT_ALGO_CONFIG_ID || attribute > CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ||
      bytes != (is_short ? 2 : 4))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::uint64_t result = 0;
  if (attribute == CUBLASLT_ALGO_CONFIG_ID) result = algorithm.id;
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) result = algorithm.splits;
  if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) result = algorithm.reduction;
  std::memcpy(value, &result, bytes);  // little-endian
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t scale,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t, int id,
                                      cublasLtMatmulAlgo_t* algorithm) {
  const bool known = id == 1 || id == 2 || id == int{first_of_other} || id == int{first_of_other} + 1;
  if (scale != CUDA_R_32F || !known) return CUBLAS_STATUS_INVALID_VALUE;
  const Algorithm made{.id = static_cast<std::uint64_t>(id),
                       .splits = 1,
                       .reduction = CUBLASLT_REDUCTION_SCHEME_NONE,
                       .alignment_bytes = id % 2 == 1 ? 16U : 4U,
                       .workspace_bytes = 0,
                       .problem = 0};
  *algorithm = {};
  std::memcpy(algorithm, &made, sizeof(made));
  return CUBLAS_STATUS_SUCCESS;
}

// It has no attributes beside these two.
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* bytes_of_algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  Algorithm algorithm = algorithm_in(*bytes_of_algorithm);
  std::uint32_t given = 0;
  if (take(given, value, bytes) != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_INVALID_VALUE;
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) {
    algorithm.splits = given;
  } else if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) {
    algorithm.reduction = given;
  } else {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  std::memcpy(bytes_of_algorithm, &algorithm, sizeof(algorithm));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* bytes_of_algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Problem problem{*operation, *a, *b, *d};
  const Algorithm algorithm = algorithm_in(*bytes_of_algorithm);
  if (c != d || !problem.fits() || algorithm.splits == 0 || algorithm.splits > problem.depth())
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!problem.supported()) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const cublasLtMatrixLayoutOpaque_t* x : {a, b, d}) {
    if (leading_alignment_bytes(*x) < algorithm.alignment_bytes) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (other_gpu() == OtherGpu::lacks && algorithm.id < first_of_other) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool in_workspace = algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (in_workspace == (algorithm.splits == 1)) return CUBLAS_STATUS_INVALID_VALUE;
  *result = {};
  result->algo = *bytes_of_algorithm;
  result->workspaceSize = in_workspace ? algorithm.splits * d->rows * d->columns * sizeof(float) : 0;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* bytes_of_algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Problem problem{*operation, *a_layout, *b_layout, *d_layout};
  if (bytes_of_algorithm == nullptr) stop("a product without an algorithm: the library would choose one");
  const Algorithm algorithm = algorithm_in(*bytes_of_algorithm);
  if (c_layout != d_layout || !problem.fits()) return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.problem != 0 && algorithm.problem != problem.fingerprint())
    stop("an algorithm that was chosen for another product");
  std::uint64_t needed_bytes = algorithm.workspace_bytes;
  if (algorithm.problem == 0 && algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
    needed_bytes = algorithm.splits * d_layout->rows * d_layout->columns * sizeof(float);
  if (workspace_bytes < needed_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  const auto aligned = [](const void* address, std::uint64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
  };
  for (const void* address : {a, b, c, static_cast<const void*>(d)}) {
    if (!aligned(address, algorithm.alignment_bytes)) stop("an address is less aligned than was said");
  }
  if (problem.has_bias() && (operation->bias == nullptr || !aligned(operation->bias, 16)))
    stop("a bias of less than 16 bytes' alignment");
  if (problem.has_gelu_slope() && (operation->aux == nullptr || !aligned(operation->aux, 16)))
    stop("an auxiliary matrix of less than 16 bytes' alignment");
  if (workspace_bytes > 0 && (workspace == nullptr || !aligned(workspace, 256)))
    stop("a workspace that is missing or not aligned to 256 bytes");
  const Call call{problem,
                  algorithm,
                  a,
                  b,
                  c,
                  d,
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta),
                  static_cast<float*>(workspace)};
  cuda_emulator::enqueue(stream, [call] { run(call); });
  return CUBLAS_STATUS_SUCCESS;
}
