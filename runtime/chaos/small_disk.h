// A file system of limited size for the directory of one run, which can be full for a while.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/mounts.h"

namespace holdfast::inline chaos {

class SmallDisk {
 public:
  // Mounted on the directory, which is made where it is missing.
  static Result<std::unique_ptr<SmallDisk>> mount(Env& env, Mounts& mounts, const std::string& directory,
                                                  std::uint64_t bytes);
  ~SmallDisk();  // and what is on it

  // All of it, by a file in the directory; until empty().
  Result<void> fill();
  Result<void> empty();
  // What is on it lies in the directory itself when this is gone.
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

// Of all files in it.
Result<std::uint64_t> bytes_of_tree(Env& env, const std::string& directory);
Result<void> copy_tree(Env& env, const std::string& source, const std::string& target);
// Unmounts what is mounted on the directory, and leaves the files that are on it in the directory itself.
Result<void> move_out_of_mount(Env& env, Mounts& mounts, const std::string& directory);

}  // namespace holdfast::inline chaos
