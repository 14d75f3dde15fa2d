#include "kernels/cuda/slow_paths.h"

#include <fmt/core.h>

#include <string_view>

#include "kernels/attention.h"
#include "kernels/cost.h"
#include "kernels/cuda/ops.h"
#include "kernels/matmul.h"

namespace holdfast::kernels::cuda {
namespace {

// Returns whether the op is one of those that have FLOPs. The cost of others may be in a table in the GPU's
// memory (AdamW), which the host must not touch.
bool has_slow_path(OpId id) {
  return id == OpId::matmul || id == OpId::attention_forward || id == OpId::attention_backward;
}

bool is(const Implementation& implementation, std::string_view name) {
  return implementation.name == name;
}

// Returns why a product is not the library's, or nothing.
std::string why_not_cublaslt(const Matmul& op, const MatmulCache& matmuls) {
  if (op.m == 0 || op.n == 0 || op.k == 0) return {};
  const Product* product = matmuls.find(product_shape(op));
  if (product == nullptr) return {};
  if (!product->found()) return product->why_not();
  return product->takes(op) ? "" : "its operands start at addresses that cuBLASLt's algorithm does not take";
}

// Says why no tensor-core kernel computes an attention in bf16.
struct WithoutMma {
  std::int64_t head_size = 0;  // 0 = that is no reason
  std::int64_t window = 0;
};
template <typename Op>
WithoutMma without_mma(const void* arguments, bool (*supports)(const void*)) {
  Op op = *static_cast<const Op*>(arguments);
  if (op.dtype != DType::bf16 || supports(arguments)) return {};
  const std::int64_t window = op.window;
  op.window = 0;
  return supports(&op) ? WithoutMma{.window = window} : WithoutMma{.head_size = op.head_size};
}

}  // namespace

void SlowPaths::see(OpId id, const Implementation& chosen, const void* arguments,
                    const MatmulCache& matmuls) {
  if (!has_slow_path(id)) return;
  const double flops = cost_of(id, arguments).flops;
  flops_ += flops;
  std::string shape, reason;
  Path path;
  WithoutMma missing;
  if (id == OpId::matmul && is(chosen, "cublaslt")) {
    const Matmul& op = *static_cast<const Matmul*>(arguments);
    reason = why_not_cublaslt(op, matmuls);
    shape = fmt::format("{} x {} x {} {}", op.m, op.n, op.k, core::name_of(op.dtype));
    path = {
        .min_times = 15.0, .max_times = 40.0, .remedy = "choose sizes of the model that are multiples of 8"};
  } else if (id == OpId::attention_forward && is(chosen, "cuda")) {
    missing = without_mma<AttentionForward>(arguments, supports_attention_forward_mma);
  } else if (id == OpId::attention_backward && is(chosen, "cuda")) {
    missing = without_mma<AttentionBackward>(arguments, supports_attention_backward_mma);
  }
  if (missing.window > 0) {
    reason = "the tensor-core kernels have no sliding window";
    shape = fmt::format("window {}, bf16", missing.window);
    path = {.min_times = 15.0,
            .max_times = 20.0,
            .remedy = "train on sequences that are no longer than model.attention_window"};
  } else if (missing.head_size > 0) {
    reason = "the tensor-core kernels are for heads of 64 and 128";
    shape = fmt::format("head size {}, bf16", missing.head_size);
    path = {.min_times = 15.0,
            .max_times = 20.0,
            .remedy = "choose model.heads so that model.width / model.heads is 64 or 128"};
  }
  if (reason.empty()) return;
  const std::string key = fmt::format("{}: {}", kernels::name_of(id), reason);
  Path& found = paths_.try_emplace(key, path).first->second;
  found.flops += flops;
  found.shapes.insert(shape);
}

std::vector<std::string> SlowPaths::sentences() const {
  std::vector<std::string> sentences;
  for (const auto& [what, path] : paths_) {
    const double share = flops_ > 0.0 ? path.flops / flops_ : 0.0;
    const auto times = [&](double slower) { return 1.0 - share + share * slower; };
    const std::string more =
        path.shapes.size() == 1 ? "" : fmt::format(" and {} other shapes", path.shapes.size() - 1);
    sentences.push_back(fmt::format(
        "slow path of {} ({}{}): expect {:.0f} to {:.0f} times its time; it has {:.1f} % of the FLOP of this "
        "rank, so expect steps of {:.2f} to {:.2f} times the time; {}",
        what, *path.shapes.begin(), more, path.min_times, path.max_times, 100.0 * share,
        times(path.min_times), times(path.max_times), path.remedy));
  }
  return sentences;
}

}  // namespace holdfast::kernels::cuda
