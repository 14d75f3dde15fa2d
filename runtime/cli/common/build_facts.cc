#include "runtime/cli/common/build_facts.h"

#include <fmt/core.h>

#include "runtime/core/digest.h"

namespace holdfast::cli {

std::string build_version() {
  return HF_VERSION;
}
std::string build_type() {
  return HF_BUILD_TYPE;
}

std::string build_compiler() {
#ifdef __clang__
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string program_digest(Env& env) {
  const Result<std::string> program = env.read_text("/proc/self/exe");
  return program.ok() ? to_hex(digest_of(*program)) : "unknown";
}

}  // namespace holdfast::cli
