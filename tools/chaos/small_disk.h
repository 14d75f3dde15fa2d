// A file system of limited size for the directory of one run, which can be full for a while.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/mounts.h"

namespace holdfast::chaos {

class SmallDisk {
 public:
  // Mounts the disk on the directory, which is created if it is missing.
  static Result<std::unique_ptr<SmallDisk>> mount(Env& env, Mounts& mounts, const std::string& directory,
                                                  std::uint64_t bytes);
  ~SmallDisk();  // removes the disk and its contents

  // Fills the disk by a file in the directory, until empty() removes it.
  Result<void> fill();
  Result<void> empty();
  // Keeps the contents: they are in the directory itself when this object is gone.
  Result<void> keep();

 private:
  SmallDisk(Env& env, Mounts& mounts, std::string directory)
      : env_(&env), mounts_(&mounts), directory_(std::move(directory)) {}
  std::string filler() const { return directory_ + "/filler"; }
  Env* env_;
  Mounts* mounts_;
  std::string directory_;
  bool mounted_ = true;
};

// Returns the bytes of all files in the directory.
Result<std::uint64_t> bytes_of_tree(Env& env, const std::string& directory);
Result<void> copy_tree(Env& env, const std::string& source, const std::string& target);
// Unmounts what is mounted on the directory, and leaves the files that are on it in the directory itself.
Result<void> move_out_of_mount(Env& env, Mounts& mounts, const std::string& directory);

}  // namespace holdfast::chaos
