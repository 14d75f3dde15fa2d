#include "runtime/save/upload_name.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/shard_file.h"
#include "runtime/core/crc32c.h"
#include "runtime/core/digest.h"

namespace holdfast::inline save {

std::string upload_name(const Manifest& manifest) {
  const std::string text = encode_manifest(manifest);
  return fmt::format("generation-{:04}-step-{:08}-{:08x}", manifest.generation, manifest.step,
                     crc32c(std::as_bytes(std::span(text))));
}

std::string upload_record(const Manifest& manifest, const std::string& command) {
  return fmt::format("{}\n{}\n", upload_name(manifest), to_hex(digest_of(command)));
}

void record_upload(Env& env, const std::string& path, const Manifest& manifest, const std::string& command) {
  if (!path.empty()) static_cast<void>(env.replace_text(path, upload_record(manifest, command)).ok());
}

Result<void> check_no_link(Env& env, const std::string& path) {
  HF_TRY(const FileStatus status, env.status(path));
  if (!status.link) return {};
  return fail(ExitCode::checkpoint, "{} is a link, and a file that is sent must be there itself", path);
}

Result<void> check_no_links_in(Env& env, const std::string& directory) {
  HF_TRY(const std::vector<std::string> names, env.list(directory));
  for (const std::string& name : names) HF_TRY_VOID(check_no_link(env, directory + "/" + name));
  return {};
}

Result<std::vector<std::string>> files_to_send(Env& env, const std::string& directory,
                                               const Manifest& manifest, int rank, int ranks) {
  std::vector<std::string> files;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(files, name) == files.end()) files.push_back(name);
  };
  const auto first = static_cast<std::size_t>(rank), stride = static_cast<std::size_t>(ranks);
  for (std::size_t shard = first; shard < manifest.shards.size(); shard += stride) {
    const ShardFile& file = manifest.shards[shard];
    HF_TRY(const ShardReader reader, ShardReader::open(env, directory, file, manifest.step, manifest.run_id));
    for (const BaseFile& base : reader.bases()) add(base.name);
    add(file.name);
  }
  return files;
}

}  // namespace holdfast::inline save
