// Reads and writes headers of the safetensors format (huggingface/safetensors): u64 length N, N bytes of JSON
// that give the name, type, shape and place of every tensor, then the tensors, row by row, little-endian. A
// file that is read may come from anywhere, so every number is checked against the length of the file before
// anything is allocated or read for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::interop {

struct SafetensorsTensor {
  std::string name;
  std::string type;  // "F32", "BF16", "F16", "I64", ...
  std::vector<std::uint64_t> shape;
  std::uint64_t offset_bytes = 0;  // offset in the file
  std::uint64_t bytes = 0;         // elements x size of the type
};

// Returns the tensors in the order of their places. Fails with ExitCode::data on a file of another format, or
// a header that contradicts itself (unknown type, sizes that do not fit, a hole or an overlap, a name twice,
// text that is not UTF-8) or the file.
Result<std::vector<SafetensorsTensor>> read_safetensors_header(File& file);

// Returns the bytes before the tensors of a file that holds `tensors` (name, type and shape) one after
// another: length and header, a multiple of 8 bytes long. `metadata`: one reader of Hugging Face's requires
// "format".
std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata);

}  // namespace holdfast::interop
