#include "runtime/interop/llmc_model.h"

#include <fmt/core.h>

#include <array>
#include <cstring>

namespace holdfast::interop {
namespace {

using HeaderWords = std::array<std::int32_t, 256>;
static_assert(sizeof(HeaderWords) == llmc_header_bytes);

constexpr std::int32_t model_magic = 20240326;
constexpr std::int32_t fp32_version = 3, bf16_version = 5;

constexpr std::int64_t padded(std::int64_t vocabulary) {
  return (vocabulary + llmc_vocabulary_multiple - 1) / llmc_vocabulary_multiple * llmc_vocabulary_multiple;
}

Error not_expressible(const std::string& what) {
  return fail(ExitCode::config,
              "llm.c's model files hold GPT-2 as OpenAI published it, and this model has {}; export it with "
              "--format safetensors",
              what);
}

}  // namespace

Result<LlmcHeader> read_llmc_header(File& file) {
  HF_TRY(const std::uint64_t size, file.size());
  if (size < llmc_header_bytes) {
    return fail(ExitCode::data,
                "{} is {} bytes long, too short for the {}-byte header of an llm.c model; copy it again",
                file.path(), size, llmc_header_bytes);
  }
  HeaderWords words{};
  HF_TRY_VOID(file.read_at(0, std::as_writable_bytes(std::span(words))));
  if (words[0] != model_magic) {
    return fail(ExitCode::data,
                "{} is not an llm.c model: it starts with {}, expected {}; give a model file of llm.c or a "
                "Hugging Face folder",
                file.path(), words[0], model_magic);
  }
  if (words[1] != fp32_version && words[1] != bf16_version) {
    return fail(ExitCode::data,
                "{} is an llm.c model of version {}, expected {} (fp32) or {} (bf16); write it again",
                file.path(), words[1], fp32_version, bf16_version);
  }
  const LlmcHeader header{.precision = words[1] == fp32_version ? WeightType::fp32 : WeightType::bf16,
                          .positions = words[2],
                          .vocabulary = words[3],
                          .layers = words[4],
                          .heads = words[5],
                          .width = words[6],
                          .padded_vocabulary = words[7]};
  for (std::size_t i = 2; i <= 7; ++i) {
    if (words[i] >= 1) continue;
    return fail(ExitCode::data, "{}: word {} of its header is {}, expected at least 1; copy the file again",
                file.path(), i, words[i]);
  }
  if (header.padded_vocabulary == padded(header.vocabulary)) return header;
  return fail(ExitCode::data,
              "{}: its header says a vocabulary of {} in {} rows, expected {} rows; copy the file again",
              file.path(), header.vocabulary, header.padded_vocabulary, padded(header.vocabulary));
}

ForeignShape shape_of(const LlmcHeader& header) {
  ForeignShape shape;
  shape.longest_sequence = header.positions;
  shape.model = {.preset = "",
                 .style = "gpt2",
                 .layers = header.layers,
                 .heads = header.heads,
                 .kv_heads = header.heads,
                 .width = header.width,
                 .feed_forward = 4 * header.width,
                 .vocabulary = header.vocabulary,
                 .head = "tied",
                 .positions = header.positions};
  return shape;
}

Result<WeightFiles> open_llmc_weights(std::unique_ptr<File> file, const LlmcHeader& header,
                                      const std::vector<ForeignTensor>& tensors) {
  HF_TRY(const std::uint64_t size, file->size());
  const std::string path = file->path();
  WeightFiles weights;
  const std::size_t index = weights.add_file(std::move(file));
  std::uint64_t next = llmc_header_bytes;
  for (const ForeignTensor& tensor : tensors) {
    weights.add(tensor.name,
                {.file = index, .offset_bytes = next, .type = header.precision, .shape = tensor.shape()});
    next += tensor.elements() * bytes_of(header.precision);
  }
  if (next == size) return weights;
  return fail(ExitCode::data,
              "{}: a model of its header's shape has {} bytes, but the file has {}; copy it again", path,
              next, size);
}

Result<std::string> llmc_header(const Config& config, WeightType precision) {
  const ModelSpec spec = make_model_spec(config);
  if (spec.positions == 0) return not_expressible("rotary positions");
  if (!spec.tied_head) return not_expressible("an untied head");
  if (spec.kv_heads != spec.heads) return not_expressible("grouped queries");
  if (spec.feed_forward != 4 * spec.width) {
    return not_expressible(
        fmt::format("a feed-forward width of {}, not of 4 x {}", spec.feed_forward, spec.width));
  }
  constexpr float epsilon = 1e-5F;
  if (spec.norm_epsilon < epsilon || spec.norm_epsilon > epsilon) {
    return not_expressible(fmt::format("model.norm_epsilon = {}, not 1e-5", config.model.norm_epsilon));
  }
  if (spec.attention_window > 0) {
    return fail(
        ExitCode::config,
        "model.attention_window = {}: llm.c's model files hold GPT-2 as OpenAI published it, which has no "
        "sliding window, so this model has no form of llm.c",
        spec.attention_window);
  }
  HeaderWords words{};
  words[0] = model_magic;
  words[1] = precision == WeightType::fp32 ? fp32_version : bf16_version;
  std::size_t next = 2;
  for (const std::int64_t value :
       {spec.positions, spec.vocabulary, spec.layers, spec.heads, spec.width, padded(spec.vocabulary)})
    words[next++] = static_cast<std::int32_t>(value);
  std::string text(llmc_header_bytes, '\0');
  std::memcpy(text.data(), words.data(), text.size());
  return text;
}

}  // namespace holdfast::interop
