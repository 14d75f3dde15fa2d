// Reports which planned ops take a path far slower than this device's usual one for their kind, and the
// expected cost: nothing else would tell a user why a run is ten times as slow as another.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/matmul_cache.h"
#include "kernels/implementation.h"
#include "kernels/op.h"

namespace holdfast::kernels::cuda {

// Used by the launching thread only.
class SlowPaths {
 public:
  // Notes an op that was prepared with the implementation that will run it.
  void see(OpId id, const Implementation& chosen, const void* arguments, const MatmulCache& matmuls);
  // Returns a sentence for each op and reason, with the share of all noted FLOP.
  std::vector<std::string> sentences() const;
  void clear() { *this = {}; }

 private:
  struct Path {
    double flops = 0.0;
    std::set<std::string> shapes = {};
    double min_times = 1.0, max_times = 1.0;  // time relative to the fast path
    std::string remedy = {};
  };
  double flops_ = 0.0;                 // of all ops
  std::map<std::string, Path> paths_;  // by op and reason
};

}  // namespace holdfast::kernels::cuda
