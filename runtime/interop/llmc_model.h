// Reads and writes model files of karpathy/llm.c (gpt2_124M.bin): 256 x int32 header, then the weights of a
// GPT-2, fp32 in version 3, bf16 in version 5. The vocabulary is padded to a multiple of 128.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/interop/foreign_tensors.h"
#include "runtime/interop/hugging_face_config.h"
#include "runtime/interop/weight_files.h"
#include "runtime/os/env.h"

namespace holdfast::interop {

struct LlmcHeader {
  WeightType precision = WeightType::fp32;
  std::int64_t positions = 0, vocabulary = 0, layers = 0, heads = 0, width = 0, padded_vocabulary = 0;
};
inline constexpr std::uint64_t llmc_header_bytes = 1024;

// Reads the header. Fails with ExitCode::data on another kind of file or version, or on numbers that make no
// model.
Result<LlmcHeader> read_llmc_header(File& file);
ForeignShape shape_of(const LlmcHeader& header);
// Opens the weights that follow the header; `tensors` = llmc_tensors() of the model. Fails with
// ExitCode::data when the file has another length than they need.
Result<WeightFiles> open_llmc_weights(std::unique_ptr<File> file, const LlmcHeader& header,
                                      const std::vector<ForeignTensor>& tensors);

// Returns the header as it is written. Fails with ExitCode::config when the format cannot express the model.
Result<std::string> llmc_header(const Config& config, WeightType precision);

}  // namespace holdfast::interop
