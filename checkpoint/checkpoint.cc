#include "checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/shard_format.h"
#include "runtime/os/background_job.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/io_queue.h"

namespace holdfast::checkpoint {
namespace {

namespace names = checkpoint_names;

constexpr std::uint64_t pieces_max_of_missing = std::uint64_t{1} << 22;  // as nobody can count them

std::string last_part(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

Error in_directory(const std::string& directory, const Error& error) {
  return fail_because(error, ExitCode::checkpoint, "{}: {}", directory, error.message);
}

Error on_other_hosts(const std::string& directory, const ShardFile& shard) {
  return with_reach(
      Reach::peers,
      fail(ExitCode::checkpoint,
           "{} has a part of a checkpoint, and {} is not in it: run.directory was another directory on "
           "each host, and the one of {} has this file; holdfast collect makes one whole checkpoint of all",
           directory, shard.name, fmt::join(shard.hosts, " or ")));
}

// A number of slices is believed only when there is a piece for each, of all tensors together: whoever reads
// the tensors makes something of each slice. Of a shard that is not here its manifest says how many it has.
Result<void> check_slices(const std::string& directory, const Manifest& manifest,
                          const std::vector<ShardSpec>& pieces, const std::vector<std::string>& missing) {
  std::uint64_t claimed = 0;
  for (const ShardFile& shard : manifest.shards)
    claimed += std::ranges::count(missing, shard.name) > 0 ? shard.piece_count : 0;
  const std::uint64_t all_pieces = pieces.size() + std::min(claimed, pieces_max_of_missing);
  std::set<std::pair<std::string_view, std::string_view>> seen;
  std::uint64_t slices = 0;
  for (const ShardSpec& tensor : manifest.tensors) {
    if (!seen.emplace(tensor.tensor, tensor.kind).second) continue;
    slices += tensor.slices;
    if (slices <= all_pieces) continue;
    return fail(ExitCode::checkpoint,
                "{}: with tensor '{}' ({}), of {} slices, the tensors have {} slices, but all shards have {} "
                "pieces; use another checkpoint",
                directory, tensor.tensor, tensor.kind, tensor.slices, slices, all_pieces);
  }
  return {};
}

}  // namespace

Result<Manifest> read_manifest(Env& env, const std::string& directory) {
  const std::string path = directory + "/" + names::manifest;
  Result<std::string> text = read_text_within(env, path, text_limits::manifest);
  if (!text.ok()) {
    return fail_because(text.error(), ExitCode::checkpoint,
                        "{}; without it the directory is no checkpoint; use another checkpoint",
                        text.error().message);
  }
  HF_TRY(Manifest manifest, decode_manifest(*text, path));
  const std::optional<std::uint64_t> named_step = names::step_of(last_part(directory));
  if (named_step.has_value() && *named_step != manifest.step) {
    return fail(ExitCode::checkpoint,
                "{} is of step {}, but its directory says step {}; use another checkpoint", path,
                manifest.step, *named_step);
  }
  return manifest;
}

Result<Checkpoint> Checkpoint::open(Env& env, const std::string& directory, Shards shards) {
  Checkpoint checkpoint;
  checkpoint.env_ = &env;
  checkpoint.directory_ = directory;
  HF_TRY(checkpoint.manifest_, read_manifest(env, directory));
  for (const ShardFile& shard : checkpoint.manifest_.shards) {
    if (shards == Shards::present || !shard.hosts.empty()) {
      const Result<FileStatus> status = env.status(directory + "/" + shard.name);
      const bool is_missing = status.ok() && !status->exists;
      if (is_missing && shards == Shards::all) return on_other_hosts(directory, shard);
      if (is_missing) {
        checkpoint.missing_.push_back(shard.name);
        continue;
      }
    }
    HF_TRY(ShardReader reader,
           ShardReader::open(env, directory, shard, checkpoint.manifest_.step, checkpoint.manifest_.run_id));
    std::vector<std::vector<char>>& read = checkpoint.read_.emplace_back();
    for (const IndexedPiece& piece : reader.pieces()) read.emplace_back(piece.chunks.size());
    checkpoint.shards_.push_back(std::move(reader));
  }
  HF_TRY_VOID(check_slices(directory, checkpoint.manifest_, checkpoint.pieces(), checkpoint.missing_));
  return checkpoint;
}

std::vector<std::string> Checkpoint::file_names() const {
  std::vector<std::string> all = {names::manifest};
  for (const ShardFile& shard : manifest_.shards) all.push_back(shard.name);
  for (const ShardReader& shard : shards_) {
    for (const BaseFile& base : shard.bases()) all.push_back(base.name);
  }
  return all;
}

std::vector<ShardSpec> Checkpoint::pieces() const {
  std::vector<ShardSpec> all;
  for (const ShardReader& shard : shards_) {
    for (const IndexedPiece& piece : shard.pieces()) all.push_back(piece.spec);
  }
  return all;
}

std::vector<ShardSpec> Checkpoint::tensors() const {
  return whole_slices(manifest_.tensors);
}

Result<void> Checkpoint::noted(Result<void> outcome) {
  if (!outcome.ok() && !damage_.has_value()) damage_ = outcome.error();
  return outcome;
}

Result<void> Checkpoint::read(std::span<const Wanted> wanted, int threads) {
  return noted(read_wanted(wanted, threads));
}

Result<void> Checkpoint::verify(int threads, const Pace& pace) {
  return noted(verify_rest(threads, pace));
}

char& Checkpoint::read_mark(const ChunkJob& job) {
  return read_[static_cast<std::size_t>(job.shard - shards_.data())][job.piece][job.chunk];
}

Result<void> Checkpoint::read_wanted(std::span<const Wanted> wanted, int threads) {
  std::vector<ShardSpec> specs;
  for (const Wanted& each : wanted) {
    HF_CHECK(each.target.size() == each.spec.byte_count(), "'{}' needs {} bytes, the target has {}",
             each.spec.tensor, each.spec.byte_count(), each.target.size());
    specs.push_back(each.spec);
  }
  const Result<std::vector<ShardCopy>> copies = plan_copies(pieces(), specs);
  if (!copies.ok()) return in_directory(directory_, copies.error());
  std::vector<PiecePart> parts;
  for (const ShardCopy& copy : copies.value()) {
    const std::uint64_t element_bytes = bytes_of(wanted[copy.wanted_index].spec.dtype);
    parts.push_back({.piece = copy.existing_index,
                     .first_byte = copy.existing_offset * element_bytes,
                     .target = wanted[copy.wanted_index].target.subspan(copy.wanted_offset * element_bytes,
                                                                        copy.element_count * element_bytes)});
  }
  const std::vector<ChunkJob> jobs = jobs_of(std::move(parts));
  HF_TRY_VOID(read_chunks(*env_, jobs, threads));
  for (const ChunkJob& job : jobs) read_mark(job) = 1;
  return {};
}

std::vector<ChunkJob> Checkpoint::unread_chunks() const {
  std::vector<ChunkJob> jobs;
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    for (std::size_t piece = 0; piece < read_[shard].size(); ++piece) {
      for (std::size_t chunk = 0; chunk < read_[shard][piece].size(); ++chunk) {
        if (read_[shard][piece][chunk] == 0)
          jobs.push_back({.shard = &shards_[shard], .piece = piece, .chunk = chunk, .parts = {}});
      }
    }
  }
  return jobs;
}

// Sorts the jobs by the order of the files, so that each is read from its beginning to its end.
std::vector<ChunkJob> Checkpoint::jobs_of(std::vector<PiecePart> parts) const {
  std::ranges::sort(parts, {}, [](const PiecePart& part) { return std::pair(part.piece, part.first_byte); });
  std::vector<std::pair<const ShardReader*, std::size_t>> places;  // of every piece: shard, index inside it
  for (const ShardReader& shard : shards_) {
    for (std::size_t i = 0; i < shard.pieces().size(); ++i) places.emplace_back(&shard, i);
  }
  std::vector<ChunkJob> jobs;
  for (PiecePart& part : parts) {
    const auto [shard, piece] = places[part.piece];
    while (!part.target.empty()) {
      const std::size_t chunk = part.first_byte / shard_format::chunk_bytes;
      const std::uint64_t inside = part.first_byte % shard_format::chunk_bytes;
      const std::uint64_t count =
          std::min<std::uint64_t>(part.target.size(), shard_format::chunk_bytes - inside);
      const bool same_chunk = !jobs.empty() && jobs.back().shard == shard && jobs.back().piece == piece &&
                              jobs.back().chunk == chunk;
      if (!same_chunk) jobs.push_back({.shard = shard, .piece = piece, .chunk = chunk, .parts = {}});
      jobs.back().parts.push_back({.offset_bytes = inside, .target = part.target.first(count)});
      part.target = part.target.subspan(count);
      part.first_byte += count;
    }
  }
  return jobs;
}

Result<void> Checkpoint::verify_rest(int threads, const Pace& pace) {
  HF_TRY_VOID(read_chunks(*env_, unread_chunks(), threads, pace));
  return complete();
}

Result<void> Checkpoint::complete() const {
  if (!missing_.empty()) return {};
  const std::vector<ShardSpec> existing = pieces();
  const Result<std::vector<ShardCopy>> copies = plan_copies(existing, tensors());
  if (!copies.ok()) return in_directory(directory_, copies.error());
  return {};
}

Result<void> verify_shard(Env& env, const std::string& directory, const ShardFile& shard,
                          const ParentCheckpoint& state, const std::string& run_id, int threads,
                          const Pace& pace) {
  HF_TRY(const ShardReader reader, ShardReader::open(env, directory, shard, state.step, run_id));
  std::vector<ChunkJob> chunks;
  for (std::size_t piece = 0; piece < reader.pieces().size(); ++piece) {
    for (std::size_t chunk = 0; chunk < reader.pieces()[piece].chunks.size(); ++chunk)
      chunks.push_back({.shard = &reader, .piece = piece, .chunk = chunk, .parts = {}});
  }
  return read_chunks(env, chunks, threads, pace);
}

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
