// The safetensors files of a model folder: model.safetensors, or model.safetensors.index.json and the files
// that it names.
#pragma once

#include <string>
#include <vector>

#include "runtime/interop/foreign_tensors.h"
#include "runtime/interop/weight_files.h"

namespace holdfast::inline interop {

// A text of bounded size. ExitCode::data.
Result<std::string> read_small_text(Env& env, const std::string& path, std::uint64_t bytes_max);

// All their tensors, but those that `is_needed` says are not; ExitCode::data: a file that is missing or
// damaged, a tensor twice, one that is no fp32, bf16 or fp16, an index that does not fit its files.
Result<WeightFiles> open_hugging_face_weights(Env& env, const std::string& folder, bool has_tied_head);

// Which tensors of a model go into which file, none of them larger than `file_bytes_max` unless one tensor
// is: their names and the text of the index, empty when there is one file.
struct FolderPlan {
  struct FileOfTensors {
    std::string name;
    std::vector<ForeignTensor> tensors;
  };
  std::vector<FileOfTensors> files;
  std::string index;
};
FolderPlan plan_folder(const std::vector<ForeignTensor>& tensors, WeightType type,
                       std::uint64_t file_bytes_max);

}  // namespace holdfast::inline interop
