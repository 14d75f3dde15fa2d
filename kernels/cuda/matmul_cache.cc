#include "kernels/cuda/matmul_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
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
constexpr int answers_max = 8;

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

cublasComputeType_t compute_of(DType dtype) {
  return dtype == DType::fp32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
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

// Attribute is a part of what makes an algorithm, with its word in a plan.
struct Attribute {
  std::string_view word;
  cublasLtMatmulAlgoConfigAttributes_t id;
  std::size_t bytes;
};
constexpr std::array attributes = {Attribute{"algorithm", CUBLASLT_ALGO_CONFIG_ID, 4},
                                   Attribute{"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                                   Attribute{"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                                   Attribute{"splits", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
                                   Attribute{"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
                                   Attribute{"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
                                   Attribute{"custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                                   Attribute{"inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                                   Attribute{"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
using AttributeValues = std::array<std::uint32_t, attributes.size()>;
constexpr std::size_t index_of_splits = 3, index_of_reduction = 4;

// Returns nothing when the library does not tell.
std::optional<std::uint32_t> read(const cublasLtMatmulAlgo_t& algorithm, const Attribute& attribute) {
  std::uint32_t value = 0;  // of which the library writes the lower bytes
  std::size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute.id, &value, attribute.bytes, &written);
  if (status != CUBLAS_STATUS_SUCCESS || written != attribute.bytes) return {};
  return value;
}

// Returns whether parts of a sum, if there are any, are known to be added in order.
bool has_ordered_sums(const cublasLtMatmulAlgo_t& algorithm) {
  const auto scheme = read(algorithm, attributes[index_of_reduction]);
  return scheme == std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} ||
         scheme == std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE};
}

std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::vector<std::string> words;
  for (const Attribute& each : attributes) {
    const std::optional<std::uint32_t> value = read(algorithm, each);
    words.push_back(fmt::format("{} {}", each.word, value.has_value() ? fmt::to_string(*value) : "?"));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string text_of(const AttributeValues& values) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < attributes.size(); ++i)
    words.push_back(fmt::format("{} {}", attributes[i].word, values[i]));
  return fmt::format("{}", fmt::join(words, " "));
}

// Reads text_of(); nothing when a value is not known or a word another.
std::optional<AttributeValues> values_in(std::string_view text) {
  AttributeValues values = {};
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    const std::string_view word = attributes[i].word;
    if (!text.starts_with(word) || text.size() <= word.size() + 1) return {};
    text.remove_prefix(word.size() + 1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), values[i]);
    if (error != std::errc{}) return {};
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.starts_with(' ')) text.remove_prefix(1);
  }
  return text.empty() ? std::optional(values) : std::nullopt;
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
// that computes it again in the backward pass. Its derivative is computed once, so the library may: in fp32, from
// the tanh form. The bias gradient stays an op: the library would overwrite it, and it is a sum over microbatches.
Product::Operation Product::operation_of(const ProductShape& shape) {
  cublasLtMatmulDesc_t made = nullptr;
  if (!accepted(cublasLtMatmulDescCreate(&made, compute_of(shape.dtype), CUDA_R_32F), "a product")) return {};
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
  } else if (shape.gelu && ends_with_gelu_slope(shape.dtype_c)) {
    set_attribute(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DGELU);
    set_attribute(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.ldc);
    set_attribute(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, std::uintptr_t{address_alignment_bytes});
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

Product::Product(cublasLtHandle_t library, const ProductShape& shape, std::string_view preferred)
    : dtype_(shape.dtype),
      dtype_c_(shape.dtype_c),
      operation_(operation_of(shape)),
      a_(layout_of(shape.transpose_a ? shape.k : shape.m, shape.transpose_a ? shape.m : shape.k, shape.lda,
                   shape.dtype)),
      b_(layout_of(shape.transpose_b ? shape.n : shape.k, shape.transpose_b ? shape.k : shape.n, shape.ldb,
                   shape.dtype)),
      c_(layout_of(shape.m, shape.n, shape.ldc, shape.dtype_c)),
      alignment_a_bytes_(row_alignment_bytes(shape.lda, shape.dtype)),
      alignment_b_bytes_(row_alignment_bytes(shape.ldb, shape.dtype)),
      alignment_c_bytes_(row_alignment_bytes(shape.ldc, shape.dtype_c)) {
  if (found() && !take(library, preferred)) choose(library);
}

// The library's A is our B.
std::vector<cublasLtMatmulHeuristicResult_t> Product::ask(cublasLtHandle_t library, int most) {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_limit_bytes);
  // Parts of a sum, if any, are kept in fp32 and added in order.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_b_bytes_);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_a_bytes_);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_c_bytes_);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_c_bytes_);
  if (!accepted(preference.status, "a preference")) return {};
  std::vector<cublasLtMatmulHeuristicResult_t> answers(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                     preference.handle, most, answers.data(), &count);
  answers.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(std::clamp(count, 0, most)) : 0);
  std::erase_if(answers, [](const cublasLtMatmulHeuristicResult_t& answer) {
    return answer.state != CUBLAS_STATUS_SUCCESS || answer.workspaceSize > workspace_limit_bytes;
  });
  why_not_ = answers.empty() ? "cuBLASLt has no algorithm for it"
                             : "cuBLASLt adds parts of its sums in an order that is not known";
  std::erase_if(answers,
                [](const cublasLtMatmulHeuristicResult_t& answer) { return !has_ordered_sums(answer.algo); });
  if (!answers.empty()) why_not_.clear();
  return answers;
}

void Product::choose(cublasLtHandle_t library) {
  const std::vector<cublasLtMatmulHeuristicResult_t> answers = ask(library, answers_max);
  if (!answers.empty()) choice_ = answers.front();
}

// Addresses are aligned as they were for the heuristic, whose answer the text was once.
bool Product::take(cublasLtHandle_t library, std::string_view text) {
  if (text == "none") {
    why_not_ = "the plan that the run goes by has no algorithm for it";
    return true;
  }
  const std::optional<AttributeValues> values = values_in(text);
  if (!values.has_value()) return false;
  const auto compute = compute_of(dtype_);
  const cudaDataType_t type = type_of(dtype_), type_c = type_of(dtype_c_);
  cublasLtMatmulHeuristicResult_t made = {};
  if (cublasLtMatmulAlgoInit(library, compute, CUDA_R_32F, type, type, type_c, type_c,
                             static_cast<int>(values->front()), &made.algo) != CUBLAS_STATUS_SUCCESS)
    return false;
  for (std::size_t i = 1; i < attributes.size(); ++i) {
    const std::uint32_t& value = (*values)[i];
    // An algorithm refuses an attribute that it does not have, and reports that as zero.
    if (read(made.algo, attributes[i]) == value) continue;
    if (cublasLtMatmulAlgoConfigSetAttribute(&made.algo, attributes[i].id, &value, attributes[i].bytes) !=
        CUBLAS_STATUS_SUCCESS)
      return false;
  }
  cublasLtMatmulHeuristicResult_t checked = {};
  if (cublasLtMatmulAlgoCheck(library, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(), &made.algo,
                              &checked) != CUBLAS_STATUS_SUCCESS ||
      checked.workspaceSize > workspace_limit_bytes || !has_ordered_sums(made.algo))
    return false;
  made.workspaceSize = checked.workspaceSize;
  choice_ = made;
  return true;
}

std::vector<std::string> Product::alternatives(cublasLtHandle_t library) {
  constexpr int most = 32;
  constexpr std::array splits = {2, 3, 4, 6, 8, 12, 16};
  if (!found()) return {};
  const cublasLtMatmulHeuristicResult_t chosen = choice_;
  std::vector<std::string> texts = {algorithm()};
  const auto add = [&] {
    if (std::ranges::find(texts, algorithm()) == texts.end()) texts.push_back(algorithm());
  };
  for (const cublasLtMatmulHeuristicResult_t& answer : ask(library, most)) {
    choice_ = answer;
    add();
    std::optional<AttributeValues> values = values_in(algorithm());
    if (!values.has_value()) continue;
    for (const int parts : splits) {
      (*values)[index_of_splits] = static_cast<std::uint32_t>(parts);
      (*values)[index_of_reduction] = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
      if (take(library, text_of(*values))) add();
    }
  }
  choice_ = chosen;
  why_not_.clear();
  return texts;
}

bool Product::takes(const Matmul& op) const {
  return aligned(op.a, alignment_a_bytes_) && aligned(op.b, alignment_b_bytes_) &&
         aligned(op.c, alignment_c_bytes_) && aligned(op.residual, alignment_c_bytes_) &&
         aligned(op.bias, address_alignment_bytes) &&
         (!ends_with_gelu_slope(op.dtype_c) || aligned(op.gelu_of, address_alignment_bytes));
}

cublasStatus_t Product::run(cublasLtHandle_t library, const Matmul& op, std::byte* workspace,
                            cudaStream_t stream) const {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (op.bias != nullptr) {
    status = set(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, op.bias);
  } else if (op.gelu_of != nullptr && ends_with_gelu_slope(op.dtype_c)) {
    status = set(operation_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, op.gelu_of);
  }
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const float alpha = 1.0F;
  const void* const added = op.residual != nullptr ? op.residual : op.c;
  const float beta = op.residual != nullptr || op.accumulate ? 1.0F : 0.0F;
  return cublasLtMatmul(library, operation_.get(), &alpha, op.b, b_.get(), op.a, a_.get(), &beta, added,
                        c_.get(), op.c, c_.get(), &choice_.algo, workspace, choice_.workspaceSize, stream);
}

std::string Product::algorithm() const {
  return found() ? text_of(choice_.algo) : "none";
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
  if (const auto found = products_.find(shape); found != products_.end()) return found->second;
  const auto preferred = preferred_.find(plan_shape(shape));
  return products_.try_emplace(shape, library_, shape, preferred == preferred_.end() ? "" : preferred->second)
      .first->second;
}

const Product* MatmulCache::find(const ProductShape& shape) const {
  const auto found = products_.find(shape);
  return found == products_.end() ? nullptr : &found->second;
}

void MatmulCache::prefer(const ProductAlgorithms& plan) {
  preferred_.insert(plan.begin(), plan.end());
}

std::string MatmulCache::description() const {
  std::vector<std::string> lines;
  for (const auto& [shape, product] : products_)
    lines.push_back(plan_shape(shape) + ": " + product.algorithm());
  std::ranges::sort(lines);
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace holdfast::kernels::cuda
