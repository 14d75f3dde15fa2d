// A disk for the directory of one run that can stall: a file system on an image file. While it is
// stalled no write to it returns and none fails, as with a file server that is being replaced or a journal
// that is full; reads go on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/mounts.h"

namespace holdfast::chaos {

class StallingDisk {
 public:
  // Returns the reason why this process cannot have such a disk; empty: it can. It needs ext4's tools, loop
  // devices and the right to mount; requires an earlier Mounts::begin_own().
  static std::string why_not(Env& env);
  // Mounts the disk on the directory, which is created if it is missing. The image is stored next to it.
  static Result<std::unique_ptr<StallingDisk>> mount(Env& env, Mounts& mounts, const std::string& directory,
                                                     std::uint64_t bytes);
  ~StallingDisk();  // resumes and unmounts it, and removes the image

  Result<void> stall();
  Result<void> resume();
  // Keeps the contents: they are in the directory itself when this object is gone.
  Result<void> keep();

 private:
  StallingDisk(Env& env, Mounts& mounts, std::string directory)
      : env_(&env), mounts_(&mounts), directory_(std::move(directory)) {}
  std::string image() const { return directory_ + ".image"; }
  Env* env_;
  Mounts* mounts_;
  std::string directory_;
  bool mounted_ = false, stalled_ = false;
};

}  // namespace holdfast::chaos
