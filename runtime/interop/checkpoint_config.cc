#include "runtime/interop/checkpoint_config.h"

#include "runtime/config/loader.h"

namespace holdfast::inline interop {

Result<Config> config_of_checkpoint(Env& env, const Checkpoint& checkpoint) {
  const std::string name = checkpoint.directory() + " (stored config)";
  Result<LoadedConfig> loaded = load_stored_config(env, checkpoint.manifest().config, name);
  if (!loaded.ok()) return Error{ExitCode::checkpoint, loaded.error().message};
  return std::move(loaded->config);
}

}  // namespace holdfast::inline interop
