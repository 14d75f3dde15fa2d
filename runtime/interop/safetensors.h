// safetensors (huggingface/safetensors): u64 length N, N bytes of JSON that say name, type, shape and place
// of every tensor, then the tensors, row by row, little-endian. What is read is anybody's file: every number
// is checked against the length of the file before something is allocated or read for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::inline interop {

struct SafetensorsTensor {
  std::string name;
  std::string type;  // "F32", "BF16", "F16", "I64", ...
  std::vector<std::uint64_t> shape;
  std::uint64_t offset_bytes = 0;  // in the file
  std::uint64_t bytes = 0;         // elements x size of the type
};

// In the order of their places. ExitCode::data: not the format, a header that contradicts itself (unknown
// type, sizes that do not fit, a hole or an overlap, a name twice, text that is not UTF-8) or the file.
Result<std::vector<SafetensorsTensor>> read_safetensors_header(File& file);

// What stands before the tensors of a file that holds `tensors` (name, type and shape) one after another:
// length and header, a multiple of 8 bytes long. `metadata`: a reader of Hugging Face's wants "format".
std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata);

}  // namespace holdfast::inline interop
