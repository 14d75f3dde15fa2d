#include "tests/fuzz/targets/import_input.h"

#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/interop/hugging_face_config.h"
#include "runtime/interop/llmc_model.h"
#include "runtime/interop/model_import.h"

namespace holdfast::fuzz {
namespace {

std::string shape_text(const Config& config) {
  Config bare;
  bare.model = config.model;
  bare.model.preset.clear();
  return dump_config(bare);
}

// The model as the program exports it has the shape that was read.
void check_exports(const Config& config) {
  const Result<std::string> text = hugging_face_config(config, WeightType::fp32);
  if (!text.ok()) return require_sentence(text.error(), {ExitCode::config});
  const Result<ForeignShape> again = parse_hugging_face_config(*text, "/config.json", {});
  if (!again.ok()) fail_run("what was exported is refused: " + again.error().message);
  Config exported = config;
  exported.model = again->model;
  if (const Result<void> resolved = resolve_config(exported, 0); !resolved.ok())
    fail_run("what was exported cannot be resolved: " + resolved.error().message);
  require(shape_text(exported) == shape_text(config), "what was exported is another model");
}

}  // namespace

bool import_model(FuzzEnv& env, const std::string& source) {
  Result<ModelImport> model = ModelImport::open(env, source, {});
  if (!model.ok()) {
    require_sentence(model.error(), {ExitCode::data});
    return false;
  }
  check_exports(model->config());
  require(env.make_directories("/out").ok(), "no directory");
  const auto shards = model->write_shards(env, "/out", "0123456789abcdef0123456789abcdef");
  if (!shards.ok()) {
    require_sentence(shards.error(), {ExitCode::data, ExitCode::checkpoint});
    return false;
  }
  require(!shards->empty(), "a model without weights");
  return true;
}

}  // namespace holdfast::fuzz
