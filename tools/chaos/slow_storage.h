// Storage of one run whose calls can be slow: its directory, and the files of its training data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/slow_files.h"

namespace holdfast::chaos {

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

}  // namespace holdfast::chaos
