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

namespace holdfast::inline chaos {

class StallingDisk {
 public:
  // Says why this process cannot have one; empty: it can. It needs ext4's tools, loop devices and the right
  // to mount; Mounts::begin_own() came before.
  static std::string why_not(Env& env);
  // Mounts it on the directory, which is made where it is missing. The image lies beside it.
  static Result<std::unique_ptr<StallingDisk>> mount(Env& env, Mounts& mounts, const std::string& directory,
                                                     std::uint64_t bytes);
  ~StallingDisk();  // resumes and unmounts it, and removes the image

  Result<void> stall();
  Result<void> resume();
  // Leaves what is on it in the directory itself when this is gone.
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

}  // namespace holdfast::inline chaos
