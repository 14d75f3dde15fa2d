// ShardSpec: describes a piece of saved or live state. Tensors have global names; a piece is a range of
// blocks of one tensor, or of one slice of a tensor that the run's tensor lanes cut into equal slices. RAM
// snapshots, files and live state all describe themselves as lists of ShardSpecs, so that "what exists where"
// and "what is wanted where" are the same kind of list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/block.h"
#include "runtime/core/result.h"
#include "runtime/core/tensor.h"

namespace holdfast::core {

struct ShardSpec {
  std::string tensor;  // e.g. "layers.3.attention.qkv.weight"
  std::string kind;    // "weight", "moment1", "moment2"
  DType dtype = DType::fp32;
  std::vector<std::uint64_t> global_shape;  // of the whole tensor
  std::uint32_t slice = 0, slices = 1;      // elements and blocks are numbered within the slice
  std::uint64_t first_block = 0;
  std::uint64_t block_count = 0;  // blocks [first_block, first_block + block_count)

  std::uint64_t tensor_elements() const;
  std::uint64_t slice_elements() const;
  std::uint64_t slice_blocks() const;
  std::uint64_t first_element() const { return first_block * block_elements; }
  std::uint64_t element_count() const;  // the last block of a slice may be short
  std::uint64_t byte_count() const { return element_count() * bytes_of(dtype); }
  bool operator==(const ShardSpec&) const = default;
};

// Describes one copy of a reshard plan: `element_count` elements of `wanted[wanted_index]`, starting
// `wanted_offset` elements into it, come from `existing[existing_index]` at `existing_offset`.
struct ShardCopy {
  std::size_t wanted_index = 0;
  std::uint64_t wanted_offset = 0;
  std::size_t existing_index = 0;
  std::uint64_t existing_offset = 0;
  std::uint64_t element_count = 0;
};

// Returns all slices of every (tensor, kind) that occurs in `pieces`, whole: what must exist where these
// pieces do.
std::vector<ShardSpec> whole_slices(const std::vector<ShardSpec>& pieces);

// Plans the copies from what exists where to what is wanted where. Pure. Fails (ExitCode::checkpoint) naming
// the first tensor whose wanted elements do not all exist, or whose dtype, shape or number of slices differ.
Result<std::vector<ShardCopy>> plan_copies(const std::vector<ShardSpec>& existing,
                                           const std::vector<ShardSpec>& wanted);

}  // namespace holdfast::core
