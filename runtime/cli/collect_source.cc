#include "runtime/cli/collect_source.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/cli/common/build_facts.h"
#include "runtime/core/record.h"
#include "runtime/launch/host_probe.h"
#include "runtime/launch/run_progress.h"
#include "runtime/launch/shell_words.h"

namespace holdfast::inline cli {
namespace {

constexpr std::uint64_t copied_at_a_time = std::uint64_t{4} << 20;
constexpr std::int64_t list_limit_ms = 60'000, copy_limit_ms = 3'600'000;

// Returns the beginning of a listing, with the program's digest: a listing of another program may mean
// something else.
std::string listing_mark(Env& env) {
  return fmt::format("holdfast-listing {} ", program_digest(env));
}

std::string line_for_host(Env& env, const std::string& host, const std::string& words) {
  std::string line;
  for (const std::string& word : host_agent(env)) line += shell_word(word) + " ";
  return line + shell_word(host) + " " + shell_word(words);
}

Error host_failed(const std::string& host, const std::string& what, const CommandEnd& end) {
  return fail(ExitCode::communication, "host {} {}: {}", host, what,
              end.output.empty() ? "it does not answer" : end.output);
}

Result<void> copy_file(Env& env, const std::string& source_path, const std::string& target_path) {
  HF_TRY(const std::unique_ptr<File> source, env.open(source_path, OpenMode::read));
  HF_TRY(const std::uint64_t bytes, source->size());
  HF_TRY(const std::unique_ptr<File> target, env.open(target_path, OpenMode::create));
  std::vector<std::byte> part;
  for (std::uint64_t done = 0; done < bytes; done += part.size()) {
    part.resize(std::min(copied_at_a_time, bytes - done));
    HF_TRY_VOID(source->read_at(done, part));
    HF_TRY_VOID(target->write_at(done, part));
  }
  return target->sync();
}

}  // namespace

Result<CollectSource> source_at(Env& env, const std::string& directory) {
  CollectSource source{.directory = directory};
  HF_TRY(source.inventory, take_inventory(env, directory, directory));
  source.newest_step = newest_step(env, RunPaths{directory});
  return source;
}

Result<std::string> listing_of(Env& env, const std::string& directory) {
  HF_TRY(const CollectSource source, source_at(env, directory));
  return listing_mark(env) + record_to_text(source);
}

Result<CollectSource> source_on_host(Env& env, const std::string& host, const std::string& directory,
                                     const std::string& program) {
  const std::string words = fmt::format("{} collect {} --list", shell_word(program), shell_word(directory));
  constexpr std::size_t listing_bytes_max = std::size_t{64} << 20;
  HF_TRY(const CommandEnd end, env.run_command({.line = line_for_host(env, host, words),
                                                .timeout_ms = list_limit_ms,
                                                .output_bytes = listing_bytes_max}));
  const std::string mark = listing_mark(env);
  const std::size_t begin = end.output.find(mark);
  if (!end.succeeded() || begin == std::string::npos)
    return host_failed(host, fmt::format("does not say what it has in {}", directory), end);
  const std::string text = end.output.substr(begin + mark.size());
  Result<CollectSource> source = record_from_text<CollectSource>(text.substr(0, text.find('\n')));
  if (!source.ok()) return host_failed(host, "answers something else than this program would", end);
  source->host = source->inventory.host = host;
  source->directory = directory;
  return source;
}

Result<void> copy_from(Env& env, const CollectSource& source, const std::string& path,
                       const std::string& target) {
  if (source.host.empty()) return copy_file(env, path, target);
  const std::string words = "cat " + shell_word(path);
  HF_TRY(const CommandEnd end,
         env.run_command({.line = line_for_host(env, source.host, words) + " > " + shell_word(target),
                          .timeout_ms = copy_limit_ms}));
  if (!end.succeeded()) return host_failed(source.host, fmt::format("does not give {}", path), end);
  HF_TRY(const std::unique_ptr<File> copied, env.open(target, OpenMode::read));
  return copied->sync();
}

}  // namespace holdfast::inline cli
