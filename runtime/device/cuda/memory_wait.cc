#include "runtime/device/cuda/memory_wait.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/core/units.h"
#include "runtime/device/cuda/error.h"
#include "runtime/os/console.h"
#include "runtime/os/env.h"

namespace holdfast::device {
namespace {

constexpr std::int64_t poll_interval_us = 200'000;

struct Room {
  std::uint64_t free_bytes = 0, total_bytes = 0;
};

Room room_now() {
  std::size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) cudaGetLastError();
  return {free_bytes, total_bytes};
}

std::string name_of(const CudaFacts& gpu) {
  return fmt::format("{} (GPU {})", gpu.name, gpu.ordinal);
}

// Returns whether no other process holds the GPU memory that this process lacks.
bool alone_is_too_large(const MemoryClaim& claim, const Room& room) {
  if (room.total_bytes == 0) return false;  // the question itself failed
  if (claim.held_bytes + claim.bytes > room.total_bytes) return true;
  if (room.free_bytes >= claim.bytes) return false;  // it came back since
  // A context and loaded kernels take this much beside what a process allocates.
  const std::uint64_t context_bytes = std::min(std::uint64_t{1} << 30, room.total_bytes / 16);
  const std::uint64_t taken = room.total_bytes - room.free_bytes;
  return taken - std::min(taken, claim.held_bytes) <= context_bytes;
}

// Returns whether the ranks of this run that share the GPU need more than it has, as far as is known: the
// number may be higher than that of the ranks that really share it, so this decides nothing before the wait
// is over.
bool all_ranks_are_too_large(const MemoryClaim& claim, const Room& room) {
  const auto ranks = static_cast<std::uint64_t>(claim.wait.ranks_on_gpu);
  return room.total_bytes > 0 && (claim.held_bytes + claim.bytes) * ranks > room.total_bytes;
}

std::string sentence_of(const MemoryClaim& claim, const Room& room) {
  if (room.total_bytes == 0 || claim.bytes == 0) return fmt::format("{} is full", name_of(claim.gpu));
  return fmt::format("{} has {} of {} free, {} are needed there", name_of(claim.gpu),
                     format_bytes(room.free_bytes), format_bytes(room.total_bytes),
                     format_bytes(claim.bytes));
}

}  // namespace

Result<void> claim_memory(const MemoryClaim& claim, const std::function<cudaError_t()>& attempt) {
  Env& env = posix_env();
  const std::int64_t begin_ns = env.monotonic_ns();
  const std::int64_t end_ns = begin_ns + claim.wait.timeout_ms * 1'000'000;
  for (bool reported = false;; reported = true) {
    const cudaError_t error = attempt();
    if (error == cudaSuccess) {
      if (reported)
        print_message("{} had room after {:.1f} s", name_of(claim.gpu),
                      static_cast<double>(env.monotonic_ns() - begin_ns) * 1e-9);
      return {};
    }
    cudaGetLastError();  // it is told here, not by the next call that looks
    if (error != cudaErrorMemoryAllocation) {
      return with_reach(
          Reach::host, fail(ExitCode::communication,
                            "{} refused {} of {}: {}; look at nvidia-smi and start again", name_of(claim.gpu),
                            format_bytes(claim.bytes), claim.purpose, sentence_of(error, "cudaMalloc")));
    }
    const Room room = room_now();
    const std::string has = sentence_of(claim, room);
    if (alone_is_too_large(claim, room)) return fail(ExitCode::does_not_fit, "{}", has);
    if (env.monotonic_ns() >= end_ns) {
      if (all_ranks_are_too_large(claim, room)) {
        return fail(ExitCode::does_not_fit, "{}, by each of the {} ranks that share it", has,
                    claim.wait.ranks_on_gpu);
      }
      return with_reach(
          Reach::minute,
          fail(ExitCode::communication,
               "{} for {}, and other processes still hold the rest after {}; end them (nvidia-smi names "
               "them) or use another GPU, and start again",
               has, claim.purpose, format_duration(claim.wait.timeout_ms)));
    }
    if (!reported) {
      print_message(
          "{} for {}: waits up to {} for memory that other processes hold; one that was killed gives it "
          "back after some seconds",
          has, claim.purpose, format_duration(claim.wait.timeout_ms));
    }
    env.sleep_us(poll_interval_us);
  }
}

Result<void> claim_pinned_memory(std::uint64_t bytes, const MemoryWait& wait,
                                 const std::function<cudaError_t()>& attempt) {
  Env& env = posix_env();
  const std::int64_t end_ns = env.monotonic_ns() + wait.timeout_ms * 1'000'000;
  for (bool reported = false;; reported = true) {
    const cudaError_t refused = attempt();
    if (refused == cudaSuccess) return {};
    cudaGetLastError();  // it is told here, not by the next call that looks
    if (env.monotonic_ns() >= end_ns) {
      return fail(ExitCode::does_not_fit, "the system refused {} of pinned host memory ({})",
                  format_bytes(bytes), cudaGetErrorString(refused));
    }
    if (!reported) {
      print_message(
          "the system refused {} of pinned host memory ({}): waits up to {} for memory that other processes "
          "hold",
          format_bytes(bytes), cudaGetErrorString(refused), format_duration(wait.timeout_ms));
    }
    env.sleep_us(poll_interval_us);
  }
}

}  // namespace holdfast::device
