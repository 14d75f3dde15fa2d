#include "tools/chaos/slow_storage.h"

namespace holdfast::chaos {

Result<std::unique_ptr<SlowStorage>> SlowStorage::mount(Env& env, const std::string& directory,
                                                        const std::vector<std::string>& data_files) {
  HF_TRY_VOID(env.make_directories(directory));
  auto storage = std::make_unique<SlowStorage>();
  HF_TRY(storage->directory_, mount_slow_files(directory));
  for (const std::string& file : data_files) {
    HF_TRY(std::unique_ptr<SlowFiles> files, mount_slow_files(file));
    storage->data_.push_back(std::move(files));
  }
  return storage;
}

void SlowStorage::slow_down(bool of_data, std::int64_t call_ms) {
  if (!of_data) return directory_->slow_down(call_ms);
  for (const std::unique_ptr<SlowFiles>& files : data_) files->slow_down(call_ms);
}

void SlowStorage::resume() {
  slow_down(/*of_data=*/false, 0);
  slow_down(/*of_data=*/true, 0);
}

}  // namespace holdfast::chaos
