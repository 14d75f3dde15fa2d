#include "tools/bench_native/cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/core/median.h"
#include "runtime/core/random.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/measure/report.h"
#include "runtime/os/io_queue.h"
#include "tools/bench_native/synthetic_run.h"

namespace holdfast::bench {
namespace {

constexpr std::uint64_t transfer_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t step = 1;

class Disk {
 public:
  Disk(Env& env, const DiskCaseOptions& options, const ScratchDirectory& scratch)
      : env_(&env),
        options_(options),
        scratch_(&scratch),
        content_(static_cast<std::uint64_t>(options.mebibytes) << 20),
        target_(static_cast<std::uint64_t>(options.depth) * transfer_bytes) {
    auto* const values = reinterpret_cast<float*>(content_.bytes().data());
    RandomStream(1, 1).fill_normals(0, 0.02F, std::span(values, content_.bytes().size() / sizeof(float)));
    piece_.spec = {.tensor = "tensor",
                   .kind = "weight",
                   .global_shape = {content_.bytes().size() / sizeof(float)},
                   .block_count = content_.bytes().size() / sizeof(float) / block_elements};
    piece_.bytes = content_.bytes();
  }

  Result<void> queue_writes() {
    HF_TRY_VOID(env_->remove(path()));
    HF_TRY(const std::unique_ptr<File> file, env_->open(path(), OpenMode::create_direct));
    HF_TRY_VOID(file->allocate(content_.bytes().size()));
    const auto begin = [&](IoQueue& queue, std::uint64_t offset) {
      queue.write(*file, offset, content_.bytes().subspan(offset, transfer_bytes), 0);
    };
    HF_TRY_VOID(move_all(begin));
    buffered_reason_ = file->buffered_reason();
    return file->sync();
  }
  Result<void> queue_reads() {
    HF_TRY(const std::unique_ptr<File> file, env_->open(path(), OpenMode::read_direct));
    file->drop_cached();
    return move_all([&](IoQueue& queue, std::uint64_t offset) {
      const std::uint64_t slot = offset / transfer_bytes % static_cast<std::uint64_t>(options_.depth);
      queue.read(*file, offset, target_.bytes().subspan(slot * transfer_bytes, transfer_bytes), 0);
    });
  }
  Result<void> buffered_writes() {
    HF_TRY_VOID(env_->remove(path()));
    HF_TRY(const std::unique_ptr<File> file, env_->open(path(), OpenMode::create));
    for (std::uint64_t offset = 0; offset < content_.bytes().size(); offset += transfer_bytes)
      HF_TRY_VOID(file->write_at(offset, content_.bytes().subspan(offset, transfer_bytes)));
    HF_TRY_VOID(file->sync());
    file->drop_cached();
    return {};
  }
  Result<void> checkpoint_write() {
    HF_TRY_VOID(env_->remove_tree(run()));
    FaultPoints none;
    CheckpointStore store(*env_, none, run());
    Manifest manifest;
    manifest.run_id = "00000000000000000000000000000001";
    manifest.step = step;
    HF_TRY_VOID(store.begin_save(step));
    HF_TRY(ShardFile shard,
           write_shard_file(*env_, store.pending_directory(step), CheckpointStore::shard_name(0), step,
                            manifest.run_id, std::span(&piece_, 1), {}, {.io = options_.backend}));
    manifest.shards.push_back(std::move(shard));
    HF_TRY_VOID(store.publish(manifest));
    checkpoint_ = store.checkpoint_directory(step);
    return {};
  }
  Result<void> checkpoint_verify() {
    HF_TRY(Checkpoint checkpoint, Checkpoint::open(*env_, checkpoint_));
    return checkpoint.verify(env_->processor_count());
  }

  const std::string& backend_text() const { return backend_text_; }
  const std::string& buffered_reason() const { return buffered_reason_; }

 private:
  std::string path() const { return scratch_->file("plain"); }
  std::string run() const { return scratch_->file("run"); }

  // begin(queue, offset) for every transfer. Two reads may share a target: nobody looks at it.
  Result<void> move_all(const std::function<void(IoQueue& queue, std::uint64_t offset)>& begin) {
    HF_TRY(const std::unique_ptr<IoQueue> queue,
           env_->make_io_queue({.depth = static_cast<int>(options_.depth), .backend = options_.backend}));
    backend_text_ = name_of(queue->backend());
    for (std::uint64_t offset = 0; offset < content_.bytes().size(); offset += transfer_bytes) {
      if (queue->in_flight() == queue->depth()) HF_TRY_VOID(outcome_of(queue->wait().bytes));
      begin(*queue, offset);
    }
    return queue->drain();
  }

  Env* env_;
  DiskCaseOptions options_;
  const ScratchDirectory* scratch_;
  AlignedBuffer content_, target_;
  StatePiece piece_;
  std::string checkpoint_, backend_text_, buffered_reason_;
};

struct Measured {
  const char* name;
  Result<void> (Disk::*run)();
  std::vector<double> rates = {};  // bytes per second
};

Result<double> rate_of(Env& env, Disk& disk, const Measured& measured, std::int64_t mebibytes) {
  const std::int64_t begin_ns = env.monotonic_ns();
  HF_TRY_VOID((disk.*measured.run)());
  return static_cast<double>(mebibytes << 20) * 1e9 / static_cast<double>(env.monotonic_ns() - begin_ns);
}

void print_table(const std::vector<Measured>& all) {
  TextTable table({"", "GB/s", "least", "most"}, 1);
  for (const Measured& each : all) {
    table.add({each.name, digits(median(each.rates) * 1e-9),
               digits(*std::ranges::min_element(each.rates) * 1e-9),
               digits(*std::ranges::max_element(each.rates) * 1e-9)});
  }
  fmt::print("{}", table.text());
}

}  // namespace

Result<Json> run_disk_case(Env& env, const DiskCaseOptions& options) {
  HF_TRY(const std::unique_ptr<ScratchDirectory> scratch, ScratchDirectory::make(env, options.directory));
  Disk disk(env, options, *scratch);
  std::vector<Measured> all = {{"queue, written and durable", &Disk::queue_writes},
                               {"queue, read", &Disk::queue_reads},
                               {"checkpoint, written and durable", &Disk::checkpoint_write},
                               {"checkpoint, read and verified", &Disk::checkpoint_verify},
                               {"page cache, written and durable", &Disk::buffered_writes}};
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    for (Measured& each : all) {
      HF_TRY(const double rate, rate_of(env, disk, each, options.mebibytes));
      each.rates.push_back(rate);
    }
  }
  fmt::print("{}\n{} in {}, {} transfers of {} at a time by {}{}; medians of {} rounds\n\n",
             machine_line(env), format_bytes(static_cast<std::uint64_t>(options.mebibytes) << 20),
             scratch->path(), options.depth, format_bytes(transfer_bytes), disk.backend_text(),
             disk.buffered_reason().empty() ? "" : " through the page cache: " + disk.buffered_reason(),
             options.rounds);
  print_table(all);
  Json result{{"directory", scratch->path()},
              {"bytes", options.mebibytes << 20},
              {"depth", options.depth},
              {"backend", disk.backend_text()},
              {"buffered_reason", disk.buffered_reason()}};
  for (const Measured& each : all) result[each.name] = each.rates;
  return result;
}

}  // namespace holdfast::bench
