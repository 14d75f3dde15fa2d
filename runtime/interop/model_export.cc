#include "runtime/interop/model_export.h"

#include <algorithm>
#include <vector>

#include "runtime/interop/adapter_merge.h"
#include "runtime/interop/foreign_tensors.h"
#include "runtime/interop/hugging_face_config.h"
#include "runtime/interop/hugging_face_folder.h"
#include "runtime/interop/llmc_model.h"
#include "runtime/interop/peft_adapter.h"
#include "runtime/interop/safetensors.h"

namespace holdfast::interop {
namespace {

constexpr std::uint64_t exported_at_once = std::uint64_t{4} << 20;
constexpr const char* partial_suffix = ".partial";

Result<void> check_free(Env& env, const std::string& target) {
  for (const std::string& path : {target, target + partial_suffix}) {
    HF_TRY(const FileStatus status, env.status(path));
    if (!status.exists) continue;
    return fail(ExitCode::config, "{} exists; nothing is overwritten: remove it, or give another target",
                path);
  }
  return {};
}

// Returns the parent directory of a path that has no slash at its end.
std::string parent_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string without_last_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

// Makes `target` by way of a partial file or folder, which is removed when make() fails or the checkpoint is
// damaged.
template <typename Make>
Result<void> make_whole(Env& env, TensorReader& weights, const std::string& target, const Make& make) {
  HF_TRY_VOID(check_free(env, target));
  const std::string partial = target + partial_suffix;
  Result<void> made = make(partial);
  if (made.ok()) made = weights.verify_rest();
  if (made.ok()) made = env.rename(partial, target);
  if (!made.ok()) {
    static_cast<void>(env.remove_tree(partial).ok());  // the first error is reported
    return Error{made.error().code == ExitCode::data ? ExitCode::checkpoint : made.error().code,
                 made.error().message};
  }
  return env.sync_directory(parent_of(target));
}

// ExportedWeights reads weights, or the averages of some, as they are written: with their adapters merged into them.
class ExportedWeights {
 public:
  ExportedWeights(TensorReader& tensors, const ModelSpec& spec, const std::set<std::string>& averaged)
      : read_([&tensors, &averaged](const std::string& parameter, std::uint64_t first,
                                    std::span<float> values) {
          const char* const kind = averaged.contains(parameter) ? "ema" : "weight";
          return tensors.read(parameter, kind, first, std::as_writable_bytes(values));
        }),
        merge_(spec, read_) {}
  Result<void> read(const std::string& parameter, std::uint64_t first, std::span<float> values) {
    HF_TRY_VOID(read_(parameter, first, values));
    return merge_.add(parameter, first, values);
  }

 private:
  ReadParameter read_;
  AdapterMerge merge_;
};

Result<void> append_rows(ExportedWeights& weights, const ForeignTensor& tensor, WeightType type,
                         WeightFileWriter& writer, std::vector<float>& values) {
  const std::uint64_t begin = tensor.first_row * tensor.row_elements();
  const std::uint64_t count = tensor.rows * tensor.row_elements();
  for (std::uint64_t first = 0; first < count; first += exported_at_once) {
    values.resize(std::min(exported_at_once, count - first));
    HF_TRY_VOID(weights.read(tensor.parameter, begin + first, values));
    HF_TRY_VOID(writer.append(values, type));
  }
  values.assign(tensor.padding_rows * tensor.row_elements(), 0.0F);
  return writer.append(values, type);
}

// Appends [in, out] of our [out, in]. The tensor is held whole in memory, because every row of one layout has
// an element of every row of the other.
Result<void> append_transposed(ExportedWeights& weights, const ForeignTensor& tensor, WeightType type,
                               WeightFileWriter& writer, std::vector<float>& values) {
  std::vector<float> stored(tensor.rows * tensor.columns);
  HF_TRY_VOID(weights.read(tensor.parameter, tensor.first_row * tensor.columns, stored));
  values.resize(stored.size());
  for (std::uint64_t column = 0; column < tensor.columns; ++column) {
    for (std::uint64_t row = 0; row < tensor.rows; ++row)
      values[column * tensor.rows + row] = stored[row * tensor.columns + column];
  }
  return writer.append(values, type);
}

Result<void> write_weights(Env& env, ExportedWeights& weights, const std::vector<ForeignTensor>& tensors,
                           const std::string& path, const std::string& prologue, WeightType type) {
  std::uint64_t bytes = prologue.size();
  for (const ForeignTensor& tensor : tensors) bytes += tensor.elements() * bytes_of(type);
  HF_TRY(WeightFileWriter writer, WeightFileWriter::create(env, path, prologue, bytes));
  std::vector<float> values;
  for (const ForeignTensor& tensor : tensors) {
    HF_TRY_VOID(tensor.is_transposed ? append_transposed(weights, tensor, type, writer, values)
                                     : append_rows(weights, tensor, type, writer, values));
  }
  return writer.finish();
}

std::string safetensors_prologue(const std::vector<ForeignTensor>& tensors, WeightType type) {
  std::vector<SafetensorsTensor> entries;
  for (const ForeignTensor& tensor : tensors)
    entries.push_back(
        {.name = tensor.name, .type = type == WeightType::fp32 ? "F32" : "BF16", .shape = tensor.shape()});
  return safetensors_header(entries, {{"format", "pt"}});
}

}  // namespace

Result<void> export_hugging_face(Env& env, TensorReader& weights, const Config& config,
                                 const std::string& target, const ExportOptions& options) {
  HF_TRY(const std::string description, hugging_face_config(config, options.precision));
  const ModelSpec spec = make_model_spec(config);
  const FolderPlan plan = plan_folder(hugging_face_tensors(spec), options.precision, options.file_bytes_max);
  ExportedWeights exported(weights, spec, options.averaged);
  return make_whole(env, weights, without_last_slash(target), [&](const std::string& folder) -> Result<void> {
    HF_TRY_VOID(env.make_directories(folder));
    for (const FolderPlan::FileOfTensors& file : plan.files) {
      HF_TRY_VOID(write_weights(env, exported, file.tensors, folder + "/" + file.name,
                                safetensors_prologue(file.tensors, options.precision), options.precision));
    }
    if (!plan.index.empty())
      HF_TRY_VOID(env.replace_text(folder + "/model.safetensors.index.json", plan.index));
    HF_TRY_VOID(env.replace_text(folder + "/generation_config.json", hugging_face_generation_config(config)));
    if (!options.tokenizer.empty()) {
      HF_TRY_VOID(env.replace_text(folder + "/tokenizer.json", options.tokenizer));
      HF_TRY_VOID(env.replace_text(folder + "/tokenizer_config.json", options.tokenizer_config));
    }
    HF_TRY_VOID(env.replace_text(folder + "/config.json", description));
    return env.sync_directory(folder);
  });
}

Result<void> export_llmc(Env& env, TensorReader& weights, const Config& config, const std::string& target,
                         const ExportOptions& options) {
  HF_TRY(const std::string header, llmc_header(config, options.precision));
  const ModelSpec spec = make_model_spec(config);
  ExportedWeights exported(weights, spec, options.averaged);
  return make_whole(env, weights, target, [&](const std::string& path) {
    return write_weights(env, exported, llmc_tensors(spec), path, header, options.precision);
  });
}

Result<void> export_adapters(Env& env, TensorReader& weights, const Config& config, const std::string& target,
                             const ExportOptions& options) {
  HF_CHECK(config.lora.is_on());
  const std::vector<ForeignTensor> tensors = peft_tensors(config);
  ExportedWeights exported(weights, make_model_spec(config), options.averaged);
  return make_whole(env, weights, without_last_slash(target), [&](const std::string& folder) -> Result<void> {
    HF_TRY_VOID(env.make_directories(folder));
    HF_TRY_VOID(write_weights(env, exported, tensors, folder + "/" + peft_weights_file,
                              safetensors_prologue(tensors, options.precision), options.precision));
    HF_TRY_VOID(env.replace_text(folder + "/" + peft_config_file, peft_config(config)));
    return env.sync_directory(folder);
  });
}

}  // namespace holdfast::interop
