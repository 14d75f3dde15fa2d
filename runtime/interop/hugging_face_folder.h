// Reads and plans the safetensors files of a model folder: model.safetensors, or model.safetensors.index.json
// and the files that it names.
#pragma once

#include <string>
#include <vector>

#include "runtime/interop/foreign_tensors.h"
#include "runtime/interop/weight_files.h"

namespace holdfast::interop {

// Reads a text of at most `bytes_max` bytes. Fails with ExitCode::data.
Result<std::string> read_small_text(Env& env, const std::string& path, std::uint64_t bytes_max);

// Opens the files with all their tensors except those that are no weights: masks, tables, and the head where
// it is tied. Fails with ExitCode::data on a file that is missing or damaged, a tensor that appears twice or
// is not fp32, bf16 or fp16, or an index that does not fit its files.
Result<WeightFiles> open_hugging_face_weights(Env& env, const std::string& folder, bool has_tied_head);

// Opens one file and adds its tensors, but for those that are no weights. Fails as the function above.
Result<void> add_safetensors(Env& env, const std::string& path, bool has_tied_head, WeightFiles& weights);

// Checks that all `tensors` are in the files, as numbers and in the right shape, and nothing else that the
// model would need. Replaces their names by those in the files. Fails with ExitCode::data.
Result<void> match_tensors(const WeightFiles& weights, const std::string& source,
                           std::vector<ForeignTensor>& tensors);

// FolderPlan says which tensors of a model go into which file, and holds the text of the index, which is
// empty when there is one file. No file is larger than `file_bytes_max` unless a single tensor is.
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

}  // namespace holdfast::interop
