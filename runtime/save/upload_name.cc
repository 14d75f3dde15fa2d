#include "runtime/save/upload_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>

#include "checkpoint/candidates.h"
#include "checkpoint/part_inventory.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/store.h"
#include "runtime/core/crc32c.h"
#include "runtime/core/digest.h"

namespace holdfast::save {
namespace {

// PartHolders tells which ranks can read which shard on the disk of their host.
class PartHolders {
 public:
  PartHolders(const std::vector<UploadPart>& parts, const StorageDomains& domains) : parts_(parts) {
    for (int rank = 0; rank < domains.ranks(); ++rank) members_[domains.leader_of(rank)].push_back(rank);
  }

  // Shares out the checkpoint by the manifest on the host of `leader`.
  Result<std::vector<UploadShare>> shares_by_manifest_of(int leader) const {
    const UploadPart& first = part_of(leader);
    std::vector<UploadShare> shares(parts_.size(), UploadShare{.name = first.name});
    const auto shards_of = [&](int rank) -> std::vector<std::size_t>& {
      return shares[static_cast<std::size_t>(rank)].shards;
    };
    const std::vector<std::vector<int>> readers = readers_of(first);
    for (std::size_t shard = 0; shard < readers.size(); ++shard) {
      const std::vector<int>& able = readers[shard];
      if (able.empty())
        return fail(ExitCode::checkpoint, "no host that is here has {} of it",
                    CheckpointStore::shard_name(static_cast<int>(shard)));
      const auto writer = std::ranges::find(able, static_cast<int>(shard % parts_.size()));
      const auto least = std::ranges::min_element(able, {}, [&](int rank) { return shards_of(rank).size(); });
      shards_of(writer != able.end() ? *writer : *least).push_back(shard);
    }
    shares[static_cast<std::size_t>(leader)].sends_manifest = true;
    return shares;
  }

 private:
  const UploadPart& part_of(int leader) const { return parts_[static_cast<std::size_t>(leader)]; }

  // Returns by shard the ranks that can read it.
  std::vector<std::vector<int>> readers_of(const UploadPart& manifest) const {
    std::vector<std::vector<int>> readers(manifest.shard_count);
    for (const auto& [leader, ranks] : members_) {
      const UploadPart& part = part_of(leader);
      if (part.content != manifest.content) continue;
      for (const std::uint64_t shard : part.present)
        readers[shard].insert(readers[shard].end(), ranks.begin(), ranks.end());
    }
    return readers;
  }

  const std::vector<UploadPart>& parts_;
  std::map<int, std::vector<int>> members_;  // by leader
};

}  // namespace

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

UploadShare share_of_rank(const Manifest& manifest, int rank, int ranks) {
  UploadShare share{.name = upload_name(manifest), .sends_manifest = rank == 0};
  const auto first = static_cast<std::size_t>(rank), stride = static_cast<std::size_t>(ranks);
  for (std::size_t shard = first; shard < manifest.shards.size(); shard += stride)
    share.shards.push_back(shard);
  return share;
}

UploadPart find_upload_part(Env& env, const std::string& directory) {
  const Result<Manifest> manifest = read_manifest(env, directory);
  if (!manifest.ok()) return {};
  UploadPart part{.name = upload_name(*manifest),
                  .content = content_of(manifest->shards),
                  .shard_count = manifest->shards.size()};
  for (std::uint64_t shard = 0; shard < part.shard_count; ++shard) {
    if (has_shard(env, directory, manifest->shards[shard], state_of(*manifest), manifest->run_id))
      part.present.push_back(shard);
  }
  return part;
}

Result<std::vector<UploadShare>> shares_of_parts(const std::vector<UploadPart>& parts,
                                                 const StorageDomains& domains) {
  const PartHolders holders(parts, domains);
  std::optional<Error> reason;  // of the first host that has a manifest
  for (const int leader : domains.leaders()) {
    if (parts[static_cast<std::size_t>(leader)].name.empty()) continue;
    Result<std::vector<UploadShare>> shares = holders.shares_by_manifest_of(leader);
    if (shares.ok()) return shares;
    if (!reason.has_value()) reason = shares.error();
  }
  return reason.has_value() ? *reason
                            : fail(ExitCode::checkpoint, "no host that is here has a manifest of it");
}

Result<std::vector<std::string>> files_to_send(Env& env, const std::string& directory,
                                               const Manifest& manifest,
                                               const std::vector<std::size_t>& shards) {
  std::vector<std::string> files;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(files, name) == files.end()) files.push_back(name);
  };
  for (const std::size_t shard : shards) {
    const ShardFile& file = manifest.shards[shard];
    HF_TRY(const ShardReader reader, ShardReader::open(env, directory, file, manifest.step, manifest.run_id));
    for (const BaseFile& base : reader.bases()) add(base.name);
    add(file.name);
  }
  return files;
}

}  // namespace holdfast::save
