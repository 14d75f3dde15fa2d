// TensorReader reads the tensors of a checkpoint by the elements of the whole tensor, whatever number of
// slices (tensor lanes) it was saved in. Comparing, exporting, and starting from a checkpoint of a run of
// another shape use it.
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

namespace holdfast::interop {

// StoredTensors is the source that a TensorReader reads from: a checkpoint, or a RAM snapshot.
struct StoredTensors {
  std::string place;               // name of the source, for messages
  std::vector<ShardSpec> tensors;  // whole tensors, all slices of each
  std::function<Result<void>(std::span<const Checkpoint::Wanted>)> read;
};

// TensorReader is used by one thread at a time. Its source verifies every byte that it reads.
class TensorReader {
 public:
  TensorReader(StoredTensors source, std::vector<ParameterSpec> parameters);
  // Reads from a checkpoint, which outlives it. `parameters` say how the model's tensors are cut into slices.
  // Chunks are read on `threads` threads.
  TensorReader(Checkpoint& checkpoint, std::vector<ParameterSpec> parameters, int threads = 1);

  // Returns slice 0 of every (tensor, kind) that the checkpoint holds, whole, by name and kind.
  const std::map<std::pair<std::string, std::string>, ShardSpec>& tensors() const { return stored_; }

  // Reads elements [first, first + target bytes / element size) of the whole tensor, row by row. Fails with
  // ExitCode::checkpoint when they are missing or damaged.
  Result<void> read(const std::string& tensor, const std::string& kind, std::uint64_t first,
                    std::span<std::byte> target);
  // Reads a piece as another run needs it, which may cut the tensor into another number of slices, or keep it in fp32
  // where it is stored in bf16, or the other way round: then it is rounded to nearest. Fails with
  // ExitCode::checkpoint when the tensor is of another shape, or of another type than these two.
  Result<void> read_piece(const ShardSpec& wanted, std::span<std::byte> target);
  // Verifies the part of the checkpoint that was not read: every byte against its checksum, and that nothing
  // is missing. Only for a reader of a checkpoint.
  Result<void> verify_rest() { return checkpoint_->verify(threads_); }

 private:
  Result<const ShardSpec*> find(const std::string& tensor, const std::string& kind) const;
  Result<const ParameterSpec*> parameter_of(const ShardSpec& stored) const;
  Result<void> check_shape(const ShardSpec& stored, const ShardSpec& wanted) const;
  Result<void> read_as_stored(const ShardSpec& stored, const ShardSpec& wanted, std::span<std::byte> target);

  StoredTensors source_;
  Checkpoint* checkpoint_ = nullptr;  // null: the source is no checkpoint
  int threads_ = 1;
  std::map<std::string, ParameterSpec> parameters_;
  std::map<std::pair<std::string, std::string>, ShardSpec> stored_;
  std::vector<std::vector<std::byte>> of_slices_;  // whole blocks around the wanted elements
  std::vector<std::byte> rows_;  // rows of the whole tensor around a piece of another number of slices
  std::vector<std::byte> of_stored_type_;
};

// Returns the pieces of a state stored in `stored_slices` slices that hold the pieces wanted by a run with
// another number of slices: whole blocks, each once. Pure.
std::vector<ShardSpec> pieces_in_slices(const std::vector<ParameterSpec>& parameters,
                                        const std::vector<ShardSpec>& wanted, std::uint32_t stored_slices);

// runs_of_tensor() finds the elements of a whole tensor in the slices that tensor lanes cut it into: the
// inverse of runs_of_slice (spec.h).
struct TensorRun {
  int slice = 0;
  SliceRun run;
};

// Returns elements [first, first + count) of the whole tensor, as runs in their order, each inside one slice.
std::vector<TensorRun> runs_of_tensor(const ParameterSpec& parameter, int slices, std::uint64_t first,
                                      std::uint64_t count);

}  // namespace holdfast::interop
