// DiskTier says where the checkpoints of a run are: in one directory that all ranks see, or each in parts, in
// the run directories of several hosts (storage_domains.h), and whether they can be written in the fast way.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "runtime/config/config.h"
#include "runtime/os/env.h"
#include "runtime/save/keepers.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::save {

// DiskTier holds what one rank needs to know to save checkpoints. Copies are cheap; `copies` outlives them.
class DiskTier {
 public:
  // Builds a tier of one directory, where rank 0 publishes.
  explicit DiskTier(int rank) : rank_(rank) {}
  // Builds a tier in parts. `domains`: those of all ranks. `copies`: null where no rank keeps another's
  // shards.
  DiskTier(int rank, StorageDomains domains, ShardCopies* copies)
      : rank_(rank), domains_(std::move(domains)), copies_(copies) {}

  bool in_parts() const { return domains_.has_value() && domains_->count() > 1; }
  // Returns whether this rank publishes; publishers() returns how many ranks do.
  bool publishes() const { return domains_.has_value() ? domains_->leads(rank_) : rank_ == 0; }
  int publishers() const { return domains_.has_value() ? domains_->count() : 1; }
  // Returns how many checkpoints retention keeps. Hosts replace theirs one after another, so one more than
  // the newest has to be complete everywhere.
  std::int64_t kept(std::int64_t keep) const { return in_parts() && keep < 2 ? 2 : keep; }

  const std::optional<StorageDomains>& domains() const { return domains_; }
  ShardCopies* copies() const { return copies_; }
  // Sends the shard to the rank that keeps a copy of it. `pace` is called with the bytes of every part.
  Result<void> copy(std::uint64_t step, const std::string& directory, const ShardFile& shard,
                    const Pace& pace) const {
    return copies_ == nullptr ? Result<void>() : copies_->send(step, directory, shard, pace);
  }

 private:
  int rank_;
  std::optional<StorageDomains> domains_;
  ShardCopies* copies_ = nullptr;
};

// Checks before the first step whether checkpoints can be written to the disk in the fast way.

// Tries checkpoint.io on this host. Fails with ExitCode::config where the config demands a backend that the
// kernel forbids. Returns what is lost if "auto" was not given io_uring, or an empty string.
Result<std::string> check_checkpoint_io(Env& env, const CheckpointConfig& config);

// Tries a file in `directory`, which must exist and be writable, and removes it. Returns what is lost if the
// file system does no direct I/O, or an empty string.
Result<std::string> check_direct_io(Env& env, const std::string& directory);

}  // namespace holdfast::save
