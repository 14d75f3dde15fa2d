#include "runtime/cli/device_option.h"

#include "runtime/os/console.h"
#include "runtime/rank/device_choice.h"

namespace holdfast::cli {

Result<std::string> device_option(const Arguments& arguments, Env& env) {
  Config config;
  HF_TRY(config.device, arguments.choice("device", {"auto", "cpu", "cuda"}));
  const std::string choice = resolve_device(env, config);
  if (!choice.empty()) print_message("{}", choice);
  return config.device;
}

}  // namespace holdfast::cli
