#include "runtime/interop/hugging_face_folder.h"

#include <fmt/ranges.h>

#include <set>

#include "runtime/core/json.h"
#include "runtime/interop/safetensors.h"

namespace holdfast::interop {
namespace {

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr std::uint64_t index_bytes_max = std::uint64_t{64} << 20;

// Returns whether the name is that of a mask or table that follows from the shape, which older files hold
// beside the weights, or of a tied head.
bool is_no_weight(const std::string& name, bool has_tied_head) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq") || (has_tied_head && name == "lm_head.weight");
}

// Returns the files that the index names. Each name must be a file of the folder and nothing else.
Result<std::map<std::string, std::string>> read_index(Env& env, const std::string& folder) {
  const std::string path = folder + "/" + index_file;
  HF_TRY(const std::string text, read_small_text(env, path, index_bytes_max));
  const Json json = Json::parse_any(text);
  const auto damaged = [&](const std::string& what) {
    return fail(ExitCode::data, "{}: {}; copy the folder again", path, what);
  };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return damaged("expected a JSON object with a weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string()) return damaged(fmt::format("the file of \"{}\" is no text", tensor));
    const auto& name = file.text();
    if (name.empty() || name.find('/') != std::string::npos || name.starts_with('.'))
      return damaged(fmt::format("\"{}\" is no name of a file beside it", name));
    files.emplace(tensor, name);
  }
  if (files.empty()) return damaged("its weight_map is empty");
  return files;
}

Result<WeightType> type_of(const SafetensorsTensor& tensor, const std::string& path) {
  if (tensor.type == "F32") return WeightType::fp32;
  if (tensor.type == "BF16") return WeightType::bf16;
  if (tensor.type == "F16") return WeightType::fp16;
  return fail(ExitCode::data, "{}: tensor \"{}\" is {}, expected F32, BF16 or F16; convert the model first",
              path, tensor.name, tensor.type);
}

}  // namespace

Result<void> add_safetensors(Env& env, const std::string& path, bool has_tied_head, WeightFiles& weights) {
  HF_TRY(std::unique_ptr<File> file, env.open(path, OpenMode::read));
  HF_TRY(const std::vector<SafetensorsTensor> tensors, read_safetensors_header(*file));
  const std::size_t index = weights.add_file(std::move(file));
  for (const SafetensorsTensor& tensor : tensors) {
    if (is_no_weight(tensor.name, has_tied_head)) continue;
    HF_TRY(const WeightType type, type_of(tensor, path));
    if (weights.add(
            tensor.name,
            {.file = index, .offset_bytes = tensor.offset_bytes, .type = type, .shape = tensor.shape}))
      continue;
    return fail(ExitCode::data, "{}: tensor \"{}\" is in another file, too; copy the folder again", path,
                tensor.name);
  }
  return {};
}

Result<std::string> read_small_text(Env& env, const std::string& path, std::uint64_t bytes_max) {
  HF_TRY(const FileStatus status, env.status(path));
  if (status.bytes > bytes_max) {
    return fail(ExitCode::data, "{} has {} bytes, expected at most {}; it is no description of a model", path,
                status.bytes, bytes_max);
  }
  return env.read_text_within(path, bytes_max);
}

Result<WeightFiles> open_hugging_face_weights(Env& env, const std::string& folder, bool has_tied_head) {
  WeightFiles weights;
  HF_TRY(const FileStatus single, env.status(folder + "/" + single_file));
  HF_TRY(const FileStatus index, env.status(folder + "/" + index_file));
  if (single.exists) {
    HF_TRY_VOID(add_safetensors(env, folder + "/" + single_file, has_tied_head, weights));
    return weights;
  }
  if (!index.exists) {
    return fail(ExitCode::data,
                "{} holds neither {} nor {}; weights of another kind (pytorch_model.bin) are saved as "
                "safetensors by transformers: model.save_pretrained(FOLDER)",
                folder, single_file, index_file);
  }
  HF_TRY(const auto files, read_index(env, folder));
  std::set<std::string> opened;
  for (const auto& [tensor, file] : files) {
    if (opened.insert(file).second)
      HF_TRY_VOID(add_safetensors(env, folder + "/" + file, has_tied_head, weights));
  }
  for (const auto& [tensor, file] : files) {
    const StoredWeight* const weight = weights.find(tensor);
    if (is_no_weight(tensor, has_tied_head)) continue;
    if (weight != nullptr && weights.path_of(*weight) == folder + "/" + file) continue;
    return fail(ExitCode::data, "{}/{} says that \"{}\" is in {}, but it is not; copy the folder again",
                folder, index_file, tensor, file);
  }
  return weights;
}

Result<void> match_tensors(const WeightFiles& weights, const std::string& source,
                           std::vector<ForeignTensor>& tensors) {
  // Names in a model that was saved without its head's class lack this first part.
  const std::string& first = tensors.front().name;
  const std::string prefix = first.substr(0, first.find('.') + 1);
  const bool is_bare = weights.find(first) == nullptr && weights.find(first.substr(prefix.size())) != nullptr;
  std::set<std::string> known;
  for (ForeignTensor& tensor : tensors) {
    if (is_bare && tensor.name.starts_with(prefix)) tensor.name.erase(0, prefix.size());
    const StoredWeight* const weight = weights.find(tensor.name);
    if (weight == nullptr) {
      return fail(ExitCode::data, "{} has no tensor \"{}\", which a model of this shape needs; copy it again",
                  source, tensor.name);
    }
    if (weight->shape != tensor.shape()) {
      return fail(ExitCode::data, "{}: tensor \"{}\" has shape [{}], but a model of this shape needs [{}]",
                  weights.path_of(*weight), tensor.name, fmt::join(weight->shape, ", "),
                  fmt::join(tensor.shape(), ", "));
    }
    known.insert(tensor.name);
  }
  for (const auto& [name, weight] : weights.tensors()) {
    if (known.contains(name)) continue;
    return fail(
        ExitCode::data,
        "{} has a tensor \"{}\" that this runtime's model does not have: it would compute something else "
        "than the model it was",
        weights.path_of(weight), name);
  }
  return {};
}

FolderPlan plan_folder(const std::vector<ForeignTensor>& tensors, WeightType type,
                       std::uint64_t file_bytes_max) {
  FolderPlan plan;
  std::uint64_t total_bytes = 0, bytes_of_file = 0;
  for (const ForeignTensor& tensor : tensors) {
    const std::uint64_t bytes = tensor.elements() * bytes_of(type);
    if (plan.files.empty() || bytes_of_file + bytes > file_bytes_max) {
      plan.files.emplace_back();
      bytes_of_file = 0;
    }
    plan.files.back().tensors.push_back(tensor);
    bytes_of_file += bytes;
    total_bytes += bytes;
  }
  if (plan.files.size() == 1) {
    plan.files.front().name = single_file;
    return plan;
  }
  Json map = Json::object();
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    plan.files[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, plan.files.size());
    for (const ForeignTensor& tensor : plan.files[i].tensors) map[tensor.name] = plan.files[i].name;
  }
  plan.index =
      Json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(map)}}.dump(2) + "\n";
  return plan;
}

}  // namespace holdfast::interop
