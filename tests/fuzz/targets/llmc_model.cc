// A model file of llm.c.
#include <cstring>

#include "runtime/config/loader.h"
#include "runtime/interop/llmc_model.h"
#include "runtime/interop/model_import.h"
#include "tests/fuzz/targets/import_input.h"

namespace holdfast::fuzz {
namespace {

bool run_llmc_model(Input input) {
  FuzzEnv env;
  env.put("/model.bin", input);
  const bool accepted = import_model(env, "/model.bin");
  if (!accepted) return false;
  const std::unique_ptr<File> file = env.open("/model.bin", OpenMode::read).value();
  const LlmcHeader header = read_llmc_header(*file).value();
  const Result<ModelImport> model = ModelImport::open(env, "/model.bin", {});
  const std::string written = llmc_header(model.value().config(), header.precision).value();
  constexpr std::size_t words = 8;  // the others are not read
  require(std::memcmp(written.data(), input.data(), words * sizeof(std::int32_t)) == 0,
          "the header is written as another one");
  return true;
}

std::vector<std::byte> model_of(WeightType precision) {
  Config config;
  config.model.style = "gpt2";
  config.model.layers = 1;
  config.model.heads = 1;
  config.model.kv_heads = 1;
  config.model.width = 2;
  config.model.feed_forward = 8;
  config.model.vocabulary = 5;
  config.model.positions = 3;
  config.model.head = "tied";
  config.training.sequence_length = 3;
  require(resolve_config(config, 5).ok(), "no model");
  std::vector<std::byte> file = bytes_of_text(llmc_header(config, precision).value());
  std::uint64_t elements = 0;
  for (const ForeignTensor& each : llmc_tensors(make_model_spec(config))) elements += each.elements();
  file.resize(file.size() + elements * bytes_of(precision), std::byte{0x3c});
  return file;
}

std::vector<Seed> llmc_model_seeds() {
  return {{"fp32", model_of(WeightType::fp32)}, {"bf16", model_of(WeightType::bf16)}};
}

}  // namespace

extern const Target llmc_model_target;
const Target llmc_model_target{.name = "llmc_model",
                               .run = run_llmc_model,
                               .seeds = llmc_model_seeds,
                               .memory_per_byte = import_memory_per_byte,
                               .memory_beside = import_memory_beside};

}  // namespace holdfast::fuzz
