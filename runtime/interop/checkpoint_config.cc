#include "runtime/interop/checkpoint_config.h"

#include "runtime/config/loader.h"
#include "runtime/interop/model_import.h"

namespace holdfast::inline interop {

Result<Config> config_of_checkpoint(Env& env, const Checkpoint& checkpoint) {
  const std::string name = checkpoint.directory() + " (stored config)";
  const Manifest& manifest = checkpoint.manifest();
  const StoredConfig of =
      manifest.values.contains(imported_from_key) ? StoredConfig::of_weights : StoredConfig::of_run;
  Result<LoadedConfig> loaded = load_stored_config(env, manifest.config, name, of);
  if (!loaded.ok()) return Error{ExitCode::checkpoint, loaded.error().message};
  return std::move(loaded->config);
}

}  // namespace holdfast::inline interop
