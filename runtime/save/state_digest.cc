#include "runtime/save/state_digest.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "runtime/save/run_state.h"

namespace holdfast::save {
namespace {

// Number of blocks read at once: 16 MiB of fp32, much more than a file's chunk, so that few chunks are read
// twice.
constexpr std::uint64_t blocks_at_once = 1024;

// Adds a text, preceded by its length like every value of variable length, so that no two states have the
// same byte sequence.
void add_text(DigestStream& stream, const std::string& text) {
  stream.add(std::uint64_t{text.size()});
  stream.add(std::string_view(text));
}

void add_description(const ShardSpec& whole, DigestStream& stream) {
  add_text(stream, whole.kind);
  add_text(stream, whole.tensor);
  stream.add(std::uint64_t{whole.global_shape.size()});
  for (const std::uint64_t extent : whole.global_shape) stream.add(extent);
  if (whole.slices > 1) stream.add((std::uint64_t{whole.slice} << 32) | whole.slices);
  add_text(stream, std::string(name_of(whole.dtype)));
}

// TensorStream adds tensors to a digest in their order. Each read plans for all pieces of the checkpoint, so
// it takes as many tensors as there is room for.
class TensorStream {
 public:
  TensorStream(Checkpoint& checkpoint, DigestStream& stream) : checkpoint_(&checkpoint), stream_(&stream) {}

  Result<void> add(const ShardSpec& whole) {
    ShardSpec part = whole;
    do {  // runs also for a tensor without elements, which has a description
      if (blocks_ == blocks_at_once) HF_TRY_VOID(flush());
      part.block_count = std::min(blocks_at_once - blocks_, whole.block_count - part.first_block);
      parts_.push_back(part);
      blocks_ += part.block_count;
      part.first_block += part.block_count;
    } while (part.first_block < whole.block_count);
    return {};
  }
  Result<void> flush() {
    std::uint64_t bytes = 0;
    for (const ShardSpec& part : parts_) bytes += part.byte_count();
    buffer_.resize(bytes);
    std::vector<Checkpoint::Wanted> wanted;
    std::span<std::byte> rest = buffer_;
    for (const ShardSpec& part : parts_) {
      wanted.push_back({.spec = part, .target = rest.first(part.byte_count())});
      rest = rest.subspan(part.byte_count());
    }
    HF_TRY_VOID(checkpoint_->read(wanted));
    for (const Checkpoint::Wanted& each : wanted) {
      if (each.spec.first_block == 0) add_description(each.spec, *stream_);
      stream_->add(std::span<const std::byte>(each.target));
    }
    parts_.clear();
    blocks_ = 0;
    return {};
  }

 private:
  Checkpoint* checkpoint_;
  DigestStream* stream_;
  std::vector<ShardSpec> parts_;  // parts still to be read
  std::uint64_t blocks_ = 0;      // blocks of these parts
  std::vector<std::byte> buffer_;
};

// Returns the whole tensors of one kind, or their slices, by name.
std::map<std::pair<std::string, std::uint32_t>, ShardSpec> tensors_of_kind(
    const std::vector<ShardSpec>& pieces, const std::string& kind) {
  std::map<std::pair<std::string, std::uint32_t>, ShardSpec> tensors;
  for (ShardSpec& whole : whole_slices(pieces)) {
    if (whole.kind == kind) tensors.emplace(std::pair(whole.tensor, whole.slice), std::move(whole));
  }
  return tensors;
}

Result<Digest> digest_kinds(Checkpoint& checkpoint, const std::vector<std::string>& kinds) {
  const std::vector<ShardSpec> pieces = checkpoint.pieces();
  DigestStream stream;
  TensorStream values(checkpoint, stream);
  for (const std::string& kind : kinds) {
    const auto tensors = tensors_of_kind(pieces, kind);
    stream.add(std::uint64_t{tensors.size()});
    for (const auto& [name, whole] : tensors) HF_TRY_VOID(values.add(whole));
    HF_TRY_VOID(values.flush());
  }
  return stream.finish();
}

}  // namespace

Result<StateDigest> digest_checkpoint(Checkpoint& checkpoint) {
  HF_TRY(const RunState state, take_state(checkpoint.manifest(), checkpoint.directory()));
  StateDigest digest{.step = state.step};
  HF_TRY(digest.weights, digest_kinds(checkpoint, {"weight"}));
  std::vector<std::string> kinds = {"moment1", "moment2"};
  // A state without averages has the digest that it always had.
  if (!tensors_of_kind(checkpoint.pieces(), "ema").empty()) kinds.emplace_back("ema");
  HF_TRY(digest.optimizer, digest_kinds(checkpoint, kinds));
  DigestStream data;
  data.add(state.data_digest.high);
  data.add(state.data_digest.low);
  data.add(state.data_cursor);
  digest.data = data.finish();
  digest.loss = state.loss_digest;
  return digest;
}

std::string to_text(const StateDigest& digest) {
  return fmt::format("step {}\nweights {}\noptimizer {}\ndata {}\nloss {}\n", digest.step,
                     to_hex(digest.weights), to_hex(digest.optimizer), to_hex(digest.data),
                     to_hex(digest.loss));
}

}  // namespace holdfast::save
