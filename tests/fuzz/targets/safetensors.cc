// A safetensors file.
#include <algorithm>
#include <tuple>

#include "runtime/interop/safetensors.h"
#include "tests/fuzz/fuzz_env.h"

namespace holdfast::fuzz {
namespace {

using Tensors = std::vector<SafetensorsTensor>;

// In one order, whatever place empty tensors have.
auto facts_of(Tensors tensors) {
  std::vector<std::tuple<std::string, std::string, std::vector<std::uint64_t>, std::uint64_t>> facts;
  for (const SafetensorsTensor& each : tensors)
    facts.emplace_back(each.name, each.type, each.shape, each.bytes);
  std::ranges::sort(facts);
  return facts;
}

bool run_safetensors(Input input) {
  FuzzEnv env;
  env.put("/model.safetensors", input);
  const std::unique_ptr<File> file = env.open("/model.safetensors", OpenMode::read).value();
  const Result<Tensors> tensors = read_safetensors_header(*file);
  if (!tensors.ok()) {
    require_sentence(tensors.error(), {ExitCode::data});
    return false;
  }
  std::uint64_t bytes = 0;
  for (const SafetensorsTensor& each : *tensors) {
    require(each.bytes <= input.size() && each.offset_bytes <= input.size() - each.bytes,
            "a tensor lies outside of the file");
    bytes += each.bytes;
  }
  std::vector<std::byte> written = bytes_of_text(safetensors_header(*tensors, {{"format", "pt"}}));
  written.resize(written.size() + bytes);
  env.put("/again.safetensors", written);
  const std::unique_ptr<File> again = env.open("/again.safetensors", OpenMode::read).value();
  const Result<Tensors> reread = read_safetensors_header(*again);
  if (!reread.ok()) fail_run("what was written is refused: " + reread.error().message);
  require(facts_of(*reread) == facts_of(*tensors), "what was written has other tensors");
  return true;
}

std::vector<Seed> safetensors_seeds() {
  const Tensors tensors = {{.name = "a", .type = "F32", .shape = {2, 3}},
                           {.name = "b", .type = "BF16", .shape = {5}},
                           {.name = "c", .type = "I64", .shape = {}},
                           {.name = "d", .type = "U8", .shape = {0, 9}}};
  std::vector<std::byte> file = bytes_of_text(safetensors_header(tensors, {{"format", "pt"}}));
  file.resize(file.size() + 24 + 10 + 8);
  return {{"four", file}, {"none", bytes_of_text(safetensors_header({}, {}))}};
}

constexpr std::string_view safetensors_words[] = {"[",
                                                  "]",
                                                  "{",
                                                  "}",
                                                  ",",
                                                  "\"F16\"",
                                                  "\"BOOL\"",
                                                  "\"shape\":",
                                                  "null",
                                                  "\"dtype\":",
                                                  "\"data_offsets\":",
                                                  "\"__metadata__\":{",
                                                  "\\u0000",
                                                  "\"C64\""};

}  // namespace

extern const Target safetensors_target;
const Target safetensors_target{.name = "safetensors",
                                .run = run_safetensors,
                                .seeds = safetensors_seeds,
                                .memory_per_byte = 64,
                                .memory_beside = 64 << 10,
                                .words = safetensors_words};

}  // namespace holdfast::fuzz
