#include "tools/chaos/small_disk.h"

namespace holdfast::chaos {

Result<std::unique_ptr<SmallDisk>> SmallDisk::mount(Env& env, Mounts& mounts, const std::string& directory,
                                                    std::uint64_t bytes) {
  HF_TRY_VOID(env.make_directories(directory));
  HF_TRY_VOID(mounts.mount_memory(directory, bytes));
  return std::unique_ptr<SmallDisk>(new SmallDisk(env, mounts, directory));
}

SmallDisk::~SmallDisk() {
  if (mounted_) static_cast<void>(mounts_->unmount(directory_).ok());  // it goes with the process at last
}

// The run writes meanwhile, so what is free now may be less a moment later: of what does not fit, half is
// tried.
Result<void> SmallDisk::fill() {
  constexpr std::uint64_t page_bytes = 4096;
  HF_TRY_VOID(empty());
  HF_TRY(std::uint64_t part, env_->free_bytes(directory_));
  HF_TRY(const std::unique_ptr<File> file, env_->open(filler(), OpenMode::create));
  std::uint64_t held = 0;
  Result<void> filled;
  for (; part >= page_bytes; part = part / 2 / page_bytes * page_bytes) {
    while ((filled = file->allocate(held + part)).ok()) held += part;
  }
  return held > 0 ? Result<void>() : filled;
}

Result<void> SmallDisk::empty() {
  return env_->remove(filler());
}

Result<void> SmallDisk::keep() {
  HF_TRY_VOID(move_out_of_mount(*env_, *mounts_, directory_));
  mounted_ = false;
  return {};
}

Result<void> move_out_of_mount(Env& env, Mounts& mounts, const std::string& directory) {
  const std::string kept = directory + ".kept";
  HF_TRY_VOID(env.remove_tree(kept));
  HF_TRY_VOID(copy_tree(env, directory, kept));
  HF_TRY_VOID(mounts.unmount(directory));
  HF_TRY_VOID(env.remove_tree(directory));
  return env.rename(kept, directory);
}

Result<std::uint64_t> bytes_of_tree(Env& env, const std::string& directory) {
  std::uint64_t sum = 0;
  HF_TRY(const std::vector<std::string> names, env.list(directory));
  for (const std::string& name : names) {
    const std::string path = directory + "/" + name;
    HF_TRY(const FileStatus status, env.status(path));
    std::uint64_t bytes = status.bytes;
    if (status.directory) {
      HF_TRY(bytes, bytes_of_tree(env, path));
    }
    sum += bytes;
  }
  return sum;
}

Result<void> copy_tree(Env& env, const std::string& source, const std::string& target) {
  HF_TRY_VOID(env.make_directories(target));
  HF_TRY(const std::vector<std::string> names, env.list(source));
  for (const std::string& name : names) {
    const std::string from = source + "/" + name, to = target + "/" + name;
    HF_TRY(const FileStatus status, env.status(from));
    if (status.directory) {
      HF_TRY_VOID(copy_tree(env, from, to));
      continue;
    }
    HF_TRY(const std::string bytes, env.read_text(from));
    HF_TRY_VOID(env.replace_text(to, bytes));
  }
  return {};
}

}  // namespace holdfast::chaos
