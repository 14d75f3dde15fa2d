// TensorReader: the tensors of a checkpoint by the elements of the whole tensor, whatever number of slices
// (tensor lanes) it was saved in. What compares, exports or starts from a checkpoint of another shape of run
// reads through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/core/shard_spec.h"
#include "runtime/model/spec.h"

namespace holdfast::inline interop {

// Source that a TensorReader reads from: a checkpoint, or a RAM snapshot.
struct StoredTensors {
  std::string place;               // for sentences
  std::vector<ShardSpec> tensors;  // whole, all slices
  std::function<Result<void>(std::span<const Checkpoint::Wanted>)> read;
};

// Threads: one at a time. Every byte read was verified by what it is read from.
class TensorReader {
 public:
  TensorReader(StoredTensors source, std::vector<ParameterSpec> parameters);
  // `checkpoint` outlives it; `parameters` say how the model's tensors are cut into slices. Chunks are read
  // on `threads` threads.
  TensorReader(Checkpoint& checkpoint, std::vector<ParameterSpec> parameters, int threads = 1);

  // Slice 0 of every (tensor, kind) that the checkpoint holds, whole, by name and kind.
  const std::map<std::pair<std::string, std::string>, ShardSpec>& tensors() const { return stored_; }

  // Elements [first, first + target bytes / element size) of the whole tensor, row by row.
  // ExitCode::checkpoint when they are not there or damaged.
  Result<void> read(const std::string& tensor, const std::string& kind, std::uint64_t first,
                    std::span<std::byte> target);
  // A piece as another run wants it, cut into another number of slices perhaps. ExitCode::checkpoint when the
  // tensor is of another shape or type.
  Result<void> read_piece(const ShardSpec& wanted, std::span<std::byte> target);
  // What of the checkpoint was not read: every byte against its checksum, and that nothing is missing.
  // For a checkpoint.
  Result<void> verify_rest() { return checkpoint_->verify(threads_); }
  // Whether it is stored in as many slices.
  bool has_slices_of(const ShardSpec& wanted) const;

 private:
  Result<const ShardSpec*> find(const std::string& tensor, const std::string& kind) const;
  Result<const ParameterSpec*> parameter_of(const ShardSpec& stored) const;
  Result<void> check_shape(const ShardSpec& stored, const ShardSpec& wanted) const;

  StoredTensors source_;
  Checkpoint* checkpoint_ = nullptr;  // null: it reads from something else
  int threads_ = 1;
  std::map<std::string, ParameterSpec> parameters_;
  std::map<std::pair<std::string, std::string>, ShardSpec> stored_;
  std::vector<std::vector<std::byte>> of_slices_;  // whole blocks around what is wanted
  std::vector<std::byte> rows_;                    // of the whole tensor, around a piece of another cut
};

// What of a state that is stored in `stored_slices` slices holds the pieces that a run with another number of
// them wants: whole blocks, each once. Pure.
std::vector<ShardSpec> pieces_in_slices(const std::vector<ParameterSpec>& parameters,
                                        const std::vector<ShardSpec>& wanted, std::uint32_t stored_slices);

}  // namespace holdfast::inline interop
