#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace holdfast::kernels {

namespace {

double element(const void* data, std::int64_t index, DType dtype) {
  if (dtype == DType::bf16) return static_cast<double>(to_float(static_cast<const BFloat16*>(data)[index]));
  return static_cast<double>(static_cast<const float*>(data)[index]);
}

void set_element(void* data, std::int64_t index, DType dtype, double value) {
  if (dtype == DType::bf16) {
    static_cast<BFloat16*>(data)[index] = to_bfloat16(static_cast<float>(value));
  } else {
    static_cast<float*>(data)[index] = static_cast<float>(value);
  }
}

// Locates the elements of one head; used for both ops.
template <typename Op>
struct Head {
  const Op& op;
  std::int64_t b;
  std::int64_t head;

  std::int64_t kv_head() const { return head / (op.heads / op.kv_heads); }
  std::int64_t qkv(std::int64_t t, std::int64_t slot) const {
    const std::int64_t slots = op.heads + 2 * op.kv_heads;
    return ((b * op.sequence_length + t) * slots + slot) * op.head_size;
  }
  std::int64_t query(std::int64_t t) const { return qkv(t, head); }
  std::int64_t key(std::int64_t t) const { return qkv(t, op.heads + kv_head()); }
  std::int64_t value(std::int64_t t) const { return qkv(t, op.heads + op.kv_heads + kv_head()); }
  // Return offsets in keys_values(), of token s of the sequence.
  std::int64_t seen_key(std::int64_t s) const {
    if (op.cache == nullptr) return key(s);
    return ((b * (op.first_position + op.sequence_length) + s) * 2 * op.kv_heads + kv_head()) * op.head_size;
  }
  std::int64_t seen_value(std::int64_t s) const {
    return op.cache == nullptr ? value(s) : seen_key(s) + op.kv_heads * op.head_size;
  }
  const void* keys_values() const { return op.cache == nullptr ? op.qkv : op.cache; }
  std::int64_t out(std::int64_t t) const {
    return ((b * op.sequence_length + t) * op.heads + head) * op.head_size;
  }
  std::int64_t row(std::int64_t t) const { return (b * op.heads + head) * op.sequence_length + t; }
  std::int64_t first_key(std::int64_t t) const {
    return op.first_key == nullptr ? 0 : op.first_key[b * op.sequence_length + t];
  }
  // Returns whether the query at position `query` of its sequence sees key s, from first_key(t) to its own.
  bool sees(std::int64_t t, std::int64_t query, std::int64_t s) const {
    return op.window == 0 || s > query - op.window || s < first_key(t) + op.sinks;
  }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(op.head_size)); }
  double dot(const void* x, std::int64_t i, const void* y, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t d = 0; d < op.head_size; ++d)
      sum += element(x, i + d, op.dtype) * element(y, j + d, op.dtype);
    return sum;
  }
};

void forward_head(const Head<AttentionForward>& at) {
  const AttentionForward& op = at.op;
  std::vector<double> p(static_cast<std::size_t>(op.first_position + op.sequence_length));
  for (std::int64_t t = 0; t < op.sequence_length; ++t) {
    const std::int64_t last_key = op.first_position + t;
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t s = at.first_key(t); s <= last_key; ++s) {
      if (!at.sees(t, last_key, s)) continue;
      p[static_cast<std::size_t>(s)] =
          at.scale() * at.dot(op.qkv, at.query(t), at.keys_values(), at.seen_key(s));
      largest = std::max(largest, p[static_cast<std::size_t>(s)]);
    }
    double sum = 0;
    for (std::int64_t s = at.first_key(t); s <= last_key; ++s) {
      double& p_s = p[static_cast<std::size_t>(s)];
      p_s = at.sees(t, last_key, s) ? std::exp(p_s - largest) : 0.0;
      sum += p_s;
    }
    op.lse[at.row(t)] = static_cast<float>(largest + std::log(sum));
    for (std::int64_t d = 0; d < op.head_size; ++d) {
      double out = 0;
      for (std::int64_t s = at.first_key(t); s <= last_key; ++s) {
        if (!at.sees(t, last_key, s)) continue;
        out += p[static_cast<std::size_t>(s)] * element(at.keys_values(), at.seen_value(s) + d, op.dtype);
      }
      set_element(op.out, at.out(t) + d, op.dtype, out / sum);
    }
  }
}

// Adds the head's part of the gradient to `dqkv`, which has the layout of qkv.
void backward_head(const Head<AttentionBackward>& at, std::vector<double>& dqkv) {
  const AttentionBackward& op = at.op;
  const auto gradient = [&](std::int64_t index) -> double& { return dqkv[static_cast<std::size_t>(index)]; };
  for (std::int64_t t = 0; t < op.sequence_length; ++t) {
    const double delta = at.dot(op.out, at.out(t), op.dout, at.out(t));
    op.delta[at.row(t)] = static_cast<float>(delta);
    for (std::int64_t s = at.first_key(t); s <= t; ++s) {
      if (!at.sees(t, t, s)) continue;
      const double score = at.scale() * at.dot(op.qkv, at.query(t), op.qkv, at.key(s));
      const double p = std::exp(score - static_cast<double>(op.lse[at.row(t)]));
      const double ds = p * (at.dot(op.dout, at.out(t), op.qkv, at.value(s)) - delta) * at.scale();
      for (std::int64_t d = 0; d < op.head_size; ++d) {
        gradient(at.value(s) + d) += p * element(op.dout, at.out(t) + d, op.dtype);
        gradient(at.query(t) + d) += ds * element(op.qkv, at.key(s) + d, op.dtype);
        gradient(at.key(s) + d) += ds * element(op.qkv, at.query(t) + d, op.dtype);
      }
    }
  }
}

}  // namespace

void reference(const AttentionForward& op) {
  for (std::int64_t b = 0; b < op.batch; ++b) {
    for (std::int64_t head = 0; head < op.heads; ++head) forward_head({op, b, head});
  }
}

void reference(const AttentionBackward& op) {
  const std::int64_t rows = op.batch * op.sequence_length;
  std::vector<double> dqkv(static_cast<std::size_t>(rows * (op.heads + 2 * op.kv_heads) * op.head_size));
  for (std::int64_t b = 0; b < op.batch; ++b) {
    for (std::int64_t head = 0; head < op.heads; ++head) backward_head({op, b, head}, dqkv);
  }
  for (std::size_t i = 0; i < dqkv.size(); ++i)
    set_element(op.dqkv, static_cast<std::int64_t>(i), op.dtype, dqkv[i]);
}

}  // namespace holdfast::kernels
