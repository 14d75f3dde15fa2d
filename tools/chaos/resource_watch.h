// ResourceWatch looks now and then at the memory and the descriptors of a run's processes, and says how much they have grown:
// what a process keeps of each fault ends a run of weeks, and no run of minutes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/os/env.h"
#include "runtime/os/processes.h"

namespace holdfast::chaos {

// ResourceUse is what a process had at one look.
struct ResourceUse {
  std::uint64_t resident_bytes = 0;
  std::uint64_t descriptors = 0;
};

// From the least of the first looks at a process to the least of its last ones: what comes and goes does not count.
struct ResourceGrowth {
  std::string program;  // "launch", "train", "guard", "mpirun"
  std::int64_t process = 0;
  std::int64_t seconds = 0;  // between the first look and the last
  ResourceUse first, last;
  std::int64_t descriptors() const {
    return static_cast<std::int64_t>(last.descriptors) - static_cast<std::int64_t>(first.descriptors);
  }
  std::int64_t resident_bytes() const {
    return static_cast<std::int64_t>(last.resident_bytes) - static_cast<std::int64_t>(first.resident_bytes);
  }
};

// Returns the growth of a process that was looked at so often, in their order. Pure.
ResourceGrowth growth_of(const std::vector<ResourceUse>& looks);
// Returns a sentence about the first process that keeps more descriptors the longer it lives; empty: there is none. Pure.
std::string descriptors_kept(const std::vector<ResourceGrowth>& growths);

class ResourceWatch {
 public:
  explicit ResourceWatch(Env& env) : env_(&env) {}
  // Looks at the launcher and at the processes of the start in `directory`, if the last look was long enough ago.
  void look(std::int64_t launcher, const std::string& directory);
  // Returns one for each process that was looked at often enough, in the order in which they were found.
  std::vector<ResourceGrowth> growths() const;

 private:
  struct Watched {
    std::int64_t process = 0;
    std::string program;
    std::int64_t begin_ns = 0, last_ns = 0;
    std::vector<ResourceUse> looks = {};
  };
  void look_at(std::int64_t process);

  Env* env_;
  std::int64_t next_ns_ = 0;
  std::map<std::int64_t, std::int64_t> started_ticks_;  // by process: another one may have its number later
  std::map<std::int64_t, std::size_t> places_;          // in watched_, by process
  std::vector<Watched> watched_;
};

}  // namespace holdfast::chaos
