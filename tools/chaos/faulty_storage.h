// Storage of one run that has faults on request: its calls are slow, its disk is full, or its disk stalls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/mounts.h"
#include "runtime/os/slow_files.h"

namespace holdfast::chaos {

// Storage of one run whose calls can be slow: its directory, and the files of its training data.
class SlowStorage {
 public:
  // Mounts views on the directory, which is created if it is missing, and on each file of data. Requires an earlier
  // Mounts::begin_own().
  static Result<std::unique_ptr<SlowStorage>> mount(Env& env, const std::string& directory,
                                                    const std::vector<std::string>& data_files);
  // Lets each call take so long from now on: of the data, or of the directory.
  void slow_down(bool of_data, std::int64_t call_ms);
  void resume();

 private:
  std::unique_ptr<SlowFiles> directory_;
  std::vector<std::unique_ptr<SlowFiles>> data_;
};

// A file system of limited size for the directory of one run, which can be full for a while.
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

// A disk for the directory of one run that can stall: a file system on an image file. While it is
// stalled no write to it returns and none fails, as with a file server that is being replaced or a journal
// that is full; reads go on.
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
