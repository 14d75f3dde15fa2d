#include "runtime/interop/checkpoint_diff.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

namespace holdfast::interop {
namespace {

constexpr std::uint64_t compared_at_once = std::uint64_t{4} << 20;  // much more than a file's chunk

double value_of(DType dtype, const std::byte* element) {
  const auto load = [element]<typename T>(T value) {
    std::memcpy(&value, element, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::fp32:
      return load(float{});
    case DType::bf16:
      return to_float(load(BFloat16{}));
    case DType::int32:
      return load(std::int32_t{});
    case DType::fp64:
      return load(double{});
  }
  return 0.0;
}

std::vector<std::uint64_t> index_of(std::uint64_t element, const std::vector<std::uint64_t>& shape) {
  std::vector<std::uint64_t> index(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    index[i] = element % shape[i];
    element /= shape[i];
  }
  return index;
}

std::string mismatch_of(const ShardSpec* a, const ShardSpec* b) {
  if (a == nullptr) return "only in B";
  if (b == nullptr) return "only in A";
  if (a->global_shape == b->global_shape && a->dtype == b->dtype) return {};
  return fmt::format("{} [{}] in A, {} [{}] in B", name_of(a->dtype), fmt::join(a->global_shape, ", "),
                     name_of(b->dtype), fmt::join(b->global_shape, ", "));
}

const ShardSpec* find(const TensorReader& reader, const std::pair<std::string, std::string>& key) {
  const auto found = reader.tensors().find(key);
  return found == reader.tensors().end() ? nullptr : &found->second;
}

}  // namespace

void compare_elements(const ShardSpec& tensor, std::uint64_t first, std::span<const std::byte> a,
                      std::span<const std::byte> b, TensorDiff& diff) {
  HF_CHECK(a.size() == b.size());
  const std::size_t width = bytes_of(tensor.dtype);
  for (std::size_t at = 0; at < a.size(); at += width) {
    if (std::memcmp(a.data() + at, b.data() + at, width) == 0) continue;
    const double value_a = value_of(tensor.dtype, a.data() + at);
    const double value_b = value_of(tensor.dtype, b.data() + at);
    ++diff.differing;
    if (!diff.first.has_value()) {
      diff.first = {.index = index_of(first + at / width, tensor.global_shape), .a = value_a, .b = value_b};
    }
    const double infinity = std::numeric_limits<double>::infinity();
    const bool is_finite = std::isfinite(value_a) && std::isfinite(value_b);
    const double absolute = is_finite ? std::abs(value_a - value_b) : infinity;
    const double scale = std::max(std::abs(value_a), std::abs(value_b));
    const double relative = !is_finite ? infinity : (absolute > 0.0 ? absolute / scale : 0.0);
    diff.max_absolute = std::max(diff.max_absolute, absolute);
    diff.max_relative = std::max(diff.max_relative, relative);
  }
}

Result<std::vector<TensorDiff>> diff_checkpoints(TensorReader& a, TensorReader& b, DiffKinds kinds) {
  std::set<std::pair<std::string, std::string>> keys;
  for (const auto& [key, whole] : a.tensors()) keys.insert(key);
  for (const auto& [key, whole] : b.tensors()) keys.insert(key);
  if (kinds == DiffKinds::weights)
    std::erase_if(keys, [](const auto& key) { return key.second != "weight"; });
  std::vector<TensorDiff> diffs;
  std::vector<std::byte> of_a, of_b;
  for (const auto& key : keys) {
    const ShardSpec* const in_a = find(a, key);
    const ShardSpec* const in_b = find(b, key);
    const ShardSpec& tensor = in_a != nullptr ? *in_a : *in_b;
    TensorDiff& diff = diffs.emplace_back(TensorDiff{.tensor = key.first,
                                                     .kind = key.second,
                                                     .elements = tensor.tensor_elements(),
                                                     .mismatch = mismatch_of(in_a, in_b)});
    if (!diff.mismatch.empty()) continue;
    for (std::uint64_t first = 0; first < diff.elements; first += compared_at_once) {
      const std::uint64_t count = std::min(compared_at_once, diff.elements - first);
      of_a.resize(count * bytes_of(tensor.dtype));
      of_b.resize(of_a.size());
      HF_TRY_VOID(a.read(key.first, key.second, first, of_a));
      HF_TRY_VOID(b.read(key.first, key.second, first, of_b));
      if (std::memcmp(of_a.data(), of_b.data(), of_a.size()) == 0) continue;
      compare_elements(tensor, first, of_a, of_b, diff);
    }
  }
  HF_TRY_VOID(a.verify_rest());
  HF_TRY_VOID(b.verify_rest());
  return diffs;
}

}  // namespace holdfast::interop
