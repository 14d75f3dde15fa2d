#include "checkpoint/chunk_reading.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "checkpoint/shard_format.h"
#include "runtime/os/background_job.h"
#include "runtime/os/io_queue.h"

namespace holdfast::checkpoint {
namespace {

// Fewer chunks than this are read one after another: a queue would cost more than it brings.
constexpr std::size_t fewest_queued_jobs = 16;

// State that the threads share. A job is begun only after all before it, so when the first failing one is
// known to have failed, nothing before it is left to begin.
class ChunkReading {
 public:
  ChunkReading(Env& env, std::span<const ChunkJob> jobs)
      : env_(&env), jobs_(jobs), failed_job_(jobs.size()) {}

  // Runs on each thread until no job is left.
  void work(const Pace& pace = {}) {
    if (jobs_.size() >= fewest_queued_jobs) {
      const Result<std::unique_ptr<IoQueue>> queue = env_->make_io_queue({.depth = read_depth});
      if (queue.ok()) return work_through(*queue.value(), pace);
    }
    ChunkScratch scratch;
    for (std::size_t job = take(); job < jobs_.size(); job = take()) {
      deliver(job, jobs_[job].shard->read_chunk(jobs_[job].piece, jobs_[job].chunk, scratch));
      if (pace) pace(chunk_of(job).stored_bytes);
    }
  }

  Result<void> outcome() const {
    if (failed_job_ == jobs_.size()) return {};
    return error_;
  }

 private:
  // The next job, or jobs_.size() when none is left that matters.
  std::size_t take() {
    const std::size_t job = next_job_.fetch_add(1);
    return job < failed_job_ ? job : jobs_.size();
  }

  // While one chunk is checked and copied, the next ones are on their way.
  void work_through(IoQueue& queue, const Pace& pace) {
    std::vector<AlignedBuffer> buffers;
    std::vector<std::size_t> free_buffers, job_of(read_depth);
    for (std::size_t i = 0; i < read_depth; ++i) {
      buffers.emplace_back(shard_format::chunk_bytes);
      free_buffers.push_back(i);
    }
    ChunkScratch scratch;
    for (bool more = true; more || queue.in_flight() > 0;) {
      while (more && !free_buffers.empty()) {
        const std::size_t job = take();
        more = job < jobs_.size();
        if (!more) break;
        const std::size_t buffer = free_buffers.back();
        free_buffers.pop_back();
        job_of[buffer] = job;
        const StoredChunk& chunk = chunk_of(job);
        queue.read(jobs_[job].shard->file_of(chunk), chunk.offset_bytes,
                   buffers[buffer].bytes().first(shard_format::aligned(chunk.stored_bytes)), buffer);
      }
      if (queue.in_flight() == 0) break;
      const IoCompletion completion = queue.wait();
      const std::size_t job = job_of[completion.tag];
      deliver(job, checked(job, completion, buffers[completion.tag].bytes(), scratch));
      free_buffers.push_back(completion.tag);
      if (pace) pace(chunk_of(job).stored_bytes);
    }
  }

  const StoredChunk& chunk_of(std::size_t job) const {
    return jobs_[job].shard->pieces()[jobs_[job].piece].chunks[jobs_[job].chunk];
  }

  Result<std::span<const std::byte>> checked(std::size_t job, const IoCompletion& completion,
                                             std::span<const std::byte> buffer, ChunkScratch& scratch) const {
    if (!completion.bytes.ok()) return with_code(ExitCode::checkpoint, completion.bytes.error());
    return jobs_[job].shard->check_chunk(jobs_[job].piece, jobs_[job].chunk,
                                         buffer.first(completion.bytes.value()), scratch);
  }

  void deliver(std::size_t job, const Result<std::span<const std::byte>>& chunk) {
    if (!chunk.ok()) return note(job, chunk.error());
    for (const ChunkPart& part : jobs_[job].parts)
      std::memcpy(part.target.data(), chunk.value().data() + part.offset_bytes, part.target.size());
  }

  void note(std::size_t job, const Error& error) {
    const std::lock_guard guard(mutex_);
    if (job >= failed_job_) return;
    failed_job_ = job;
    error_ = error;
  }

  Env* env_;
  std::span<const ChunkJob> jobs_;
  std::atomic<std::size_t> next_job_ = 0;
  std::atomic<std::size_t> failed_job_;  // the first; jobs_.size() = none
  std::mutex mutex_;
  Error error_;
};

}  // namespace

Result<void> read_chunks(Env& env, std::span<const ChunkJob> jobs, int threads, const Pace& pace) {
  ChunkReading reading(env, jobs);
  {
    // A thread for a chunk or two costs more than it brings.
    const std::size_t count =
        std::min<std::size_t>(static_cast<std::size_t>(std::max(threads, 1)), jobs.size() / 2);
    const BackgroundHelpers others(env, "chunk reader", static_cast<int>(count) - 1, [&] { reading.work(); });
    reading.work(pace);
  }
  return reading.outcome();
}

}  // namespace holdfast::checkpoint
