// A run that needs no files of the user's: the model and batch that the measurements are about, on made-up
// tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/data/loader.h"
#include "runtime/os/env.h"

namespace holdfast::bench {

// A directory of its own under TMPDIR or /tmp, removed with the object.
class ScratchDirectory {
 public:
  // Makes the directory in `parent`; empty = where the system has temporary files.
  static Result<std::unique_ptr<ScratchDirectory>> make(Env& env, std::string parent = "");
  ~ScratchDirectory();
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  ScratchDirectory(Env& env, std::string path) : env_(&env), path_(std::move(path)) {}
  Env* env_;
  std::string path_;
};

struct BenchRun {
  std::unique_ptr<ScratchDirectory> scratch;  // null when the user's own data is used
  Config config;                              // resolved for one rank
  std::shared_ptr<DataSet> data;
};

// The run of `config_path`, or, when that is empty, gpt2-124m with 4 x 64 tokens a step in one lane on
// made-up tokens; `overrides` are applied to either. One rank, on the device that training it would take;
// nothing is written into a run directory.
Result<BenchRun> load_bench_run(Env& env, const std::string& config_path,
                                const std::vector<Override>& overrides);

int threads_of(Env& env, const Config& config);

// Files of made-up tokens in every format that holdfast trains on.
struct TokenFileKind {
  std::string_view format;  // as in data.sources
  std::int64_t vocabulary;  // decides how wide a token is
};
std::span<const TokenFileKind> token_file_kinds();

// `count` random tokens below kind.vocabulary; in megatron in documents of 1,024. Returns the files, that of
// the source first: `path`, or with the endings that the format demands.
Result<std::vector<std::string>> write_token_file(Env& env, const TokenFileKind& kind,
                                                  const std::string& path, std::int64_t count);

}  // namespace holdfast::bench
