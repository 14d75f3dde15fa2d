// A model folder of Hugging Face: config.json up to the first zero byte, model.safetensors behind it.
#include <algorithm>

#include "runtime/config/loader.h"
#include "runtime/interop/foreign_tensors.h"
#include "runtime/interop/hugging_face_config.h"
#include "runtime/interop/safetensors.h"
#include "tests/fuzz/targets/import_input.h"

namespace holdfast::fuzz {
namespace {

bool run_hugging_face(Input input) {
  const auto end = std::ranges::find(input, std::byte{0});
  const auto config_bytes = static_cast<std::size_t>(end - input.begin());
  const Input weights = end == input.end() ? Input() : input.subspan(config_bytes + 1);
  const std::string text = text_of(input.first(config_bytes));
  const Result<ForeignShape> shape =
      parse_hugging_face_config(text, "/config.json", {.drop_rope_scaling = true});
  if (!shape.ok()) require_sentence(shape.error(), {ExitCode::data});
  FuzzEnv env;
  env.put("/model/config.json", input.first(config_bytes));
  env.put("/model/model.safetensors", weights);
  return import_model(env, "/model");
}

std::vector<std::byte> folder_of(const std::string& style, std::int64_t kv_heads) {
  Config config;
  config.model.style = style;
  config.model.layers = 1;
  config.model.heads = 2;
  config.model.kv_heads = kv_heads;
  config.model.width = 4;
  config.model.feed_forward = 6;
  config.model.vocabulary = 8;
  if (style == "gpt2") config.model.positions = 8;
  config.training.sequence_length = 8;
  require(resolve_config(config, 8).ok(), "no model");
  std::vector<SafetensorsTensor> tensors;
  std::uint64_t bytes = 0;
  for (const ForeignTensor& each : hugging_face_tensors(make_model_spec(config))) {
    tensors.push_back({.name = each.name, .type = "BF16", .shape = each.shape()});
    bytes += each.elements() * 2;
  }
  std::vector<std::byte> folder = bytes_of_text(hugging_face_config(config, WeightType::bf16).value());
  folder.push_back(std::byte{0});
  const std::vector<std::byte> header = bytes_of_text(safetensors_header(tensors, {{"format", "pt"}}));
  folder.insert(folder.end(), header.begin(), header.end());
  folder.resize(folder.size() + bytes, std::byte{0x3c});
  return folder;
}

std::vector<Seed> hugging_face_seeds() {
  return {{"llama", folder_of("llama", 1)}, {"gpt2", folder_of("gpt2", 2)}};
}

constexpr std::string_view hugging_face_words[] = {"null",
                                                   "true",
                                                   "false",
                                                   "\"llama\"",
                                                   "\"gpt2\"",
                                                   "[",
                                                   "{",
                                                   "\"rope_scaling\":{\"type\":\"linear\"},",
                                                   "\"quantization_config\":{},",
                                                   "\"head_dim\":0,",
                                                   "\"num_hidden_layers\":4096,",
                                                   "1e-7,",
                                                   "\"F16\"",
                                                   "\"F32\""};

}  // namespace

extern const Target hugging_face_target;
const Target hugging_face_target{.name = "hugging_face",
                                 .run = run_hugging_face,
                                 .seeds = hugging_face_seeds,
                                 .memory_per_byte = import_memory_per_byte,
                                 .memory_beside = import_memory_beside,
                                 .words = hugging_face_words};

}  // namespace holdfast::fuzz
