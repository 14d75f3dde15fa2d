// Context of a CPU kernel: the device's team of threads and its scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/task_ref.h"

namespace holdfast::kernels::cpu {

class Team;         // kernels/cpu/team.h: the threads
class MatmulCache;  // kernels/cpu/matmul_cache.h: oneDNN primitives by shape

// Working memory of the kernels: one block per thread and one that all threads share. Sizes only grow.
class Scratch {
 public:
  explicit Scratch(int threads) : threads_(threads) {}  // -n: of n threads, counted and never allocated

  void request(std::size_t bytes_per_thread);
  void request_shared(std::size_t bytes);
  bool enough() const {
    return per_thread_.allocated_bytes >= per_thread_.bytes && shared_.allocated_bytes >= shared_.bytes;
  }
  bool allocate();  // what was requested; touches every page; false when there is no memory

  std::byte* of_thread(int thread) const;
  std::byte* shared() const { return shared_.memory.get(); }
  std::uint64_t bytes() const;  // allocated

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Block {
    std::size_t bytes = 0;            // requested
    std::size_t allocated_bytes = 0;  // of one thread
    std::unique_ptr<std::byte, Free> memory;
    bool allocate(std::size_t copies);
  };

  int threads_;
  Block per_thread_;
  Block shared_;
};

class Context {
 public:
  Context(Team& team, Scratch& scratch, MatmulCache& matmuls)
      : team_(&team), scratch_(&scratch), matmuls_(&matmuls) {}

  // Runs body(index, thread) for every index in [0, count) on the team, in any order and on any thread;
  // returns when all are done. The cut into indices follows from shapes alone, or, where the kernel says why
  // (kernels/cpu/gemm/gemm.h), cannot change a bit.
  void parallel_for(std::int64_t count, TaskRef body) const;

  // Returns the scratch of one thread, at least the largest request_scratch() made so far; 64-byte aligned.
  // Its content does not outlive the kernel.
  std::byte* scratch(int thread) const { return scratch_->of_thread(thread); }
  void request_scratch(std::size_t bytes_per_thread) const {
    scratch_->request(bytes_per_thread);
  }  // in prepare only

  // Returns one scratch block for all threads, with the same rules: for partial results that are combined in
  // a fixed order.
  std::byte* shared_scratch() const { return scratch_->shared(); }
  void request_shared_scratch(std::size_t bytes) const {
    scratch_->request_shared(bytes);
  }  // in prepare only

  MatmulCache& matmuls() const { return *matmuls_; }
  Team& team() const { return *team_; }

 private:
  Team* team_;
  Scratch* scratch_;
  MatmulCache* matmuls_;
};

}  // namespace holdfast::kernels::cpu
