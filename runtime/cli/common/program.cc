#include "runtime/cli/common/program.h"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>
#include <system_error>

#include "runtime/cli/common/arguments.h"
#include "runtime/core/digest.h"
#include "runtime/data/loader.h"
#include "runtime/os/paths.h"
#include "runtime/os/posix_start.h"
#include "runtime/text/source_tokens.h"

namespace holdfast::cli {

int run_program(int argc, char** argv, int (*run)(const std::vector<std::string>& words)) {
  replace_closed_streams();
  try {
    return run({argv + 1, argv + std::max(argc, 1)});
  } catch (const std::system_error& error) {  // fmt::print throws it when the output cannot be written
    return complain(output_is_lost(error.code().message()));
  }
}

int with_output(int code) {
  const Result<void> written = finish_output();
  if (written.ok()) return code;
  const int lost = complain(written.error());
  return std::max(code, lost);  // an error of the command says more, and is printed above
}

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

std::string build_source(Env& env) {
  const Result<std::string> written = env.read_text(program_directory() + "/../built_from");
  if (!written.ok()) return "";
  std::istringstream lines(*written);
  std::string commit, digest;
  lines >> commit >> digest;
  return digest.empty() ? commit : commit + ", " + digest;
}

std::string program_digest(Env& env) {
  const Result<std::string> program = env.read_text("/proc/self/exe");
  return program.ok() ? to_hex(digest_of(*program)) : "unknown";
}

Result<void> resolve_with_data(Env& env, Config& config) {
  std::int64_t vocabulary_of_data = 0;
  if (config.model.vocabulary == 0 && config.model.preset.empty() && has_text_to_tokenize(config)) {
    HF_TRY(const std::vector<SourceTokens> tokens, text::find_source_tokens(env, config));
    vocabulary_of_data = tokens.front().vocabulary;
  } else if (config.model.vocabulary == 0 && config.model.preset.empty()) {
    HF_TRY(const std::shared_ptr<DataSet> data,
           DataSet::open(env, config.data.sources, config.training.sequence_length, data_options(config)));
    HF_TRY(vocabulary_of_data, data->vocabulary_of_format());
  }
  return resolve_config(config, vocabulary_of_data);
}

}  // namespace holdfast::cli
