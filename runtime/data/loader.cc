#include "runtime/data/loader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>

#include "runtime/os/retry.h"
#include "runtime/os/thread.h"

namespace holdfast::data {
namespace {

// Values that the digest of a sample covers ahead of its tokens.
struct DigestHead {
  std::uint64_t position_in_step;
  std::uint64_t source;
  std::uint64_t sample;
};
static_assert(sizeof(DigestHead) == 24 && std::endian::native == std::endian::little);
constexpr std::size_t digest_head_tokens = sizeof(DigestHead) / sizeof(std::int32_t);

// Returns the number of samples to prefetch: enough to keep a disk busy, but not so many that the cache
// evicts them before they are read.
std::size_t samples_ahead(std::int64_t sequence_length) {
  constexpr std::int64_t tokens_ahead = std::int64_t{1} << 20;
  return static_cast<std::size_t>(std::clamp<std::int64_t>(tokens_ahead / sequence_length, 1, 256));
}

}  // namespace

// A ring of slots: the thread fills at `filled`, next() hands out at `taken`; the one handed out last belongs
// to the caller until it asks again.
struct DataLoader::State {
  struct Slot {
    std::vector<std::int32_t> inputs;
    std::vector<std::int32_t> targets;
    std::vector<std::int32_t> first_key;
    std::vector<SampleId> samples;
    std::uint64_t counted_targets = 0;
    Digest digest;
  };

  Env* env;
  std::shared_ptr<DataSet> data;
  SampleOrder order;
  BatchShape shape;
  std::vector<int> rank_lanes;
  std::uint64_t cursor;
  std::int64_t vocabulary;
  FaultPoints* faults;  // null: none

  std::vector<Slot> slots;
  // These three belong to the prefetch thread.
  std::vector<std::int32_t> sample_buffer;  // DigestHead, then the tokens
  std::vector<SampleId> asked{};            // a ring of the samples that were asked for
  std::uint64_t asked_count = 0;            // samples ever asked for

  std::mutex mutex{};
  std::unique_ptr<Condition> changed;
  std::uint64_t filled = 0;  // microbatches ever filled
  std::uint64_t taken = 0;   // microbatches ever handed out
  std::optional<Error> error{};
  bool stopping = false;
  Result<void> begun{};
  std::unique_ptr<Thread> thread{};

  void run();
  bool wait_for_room();
  bool is_stopping();
  // Returns the position in its step of the rank's index-th sample; *step receives the number of the step.
  std::uint64_t position_in_step(std::uint64_t index, std::uint64_t* step) const;
  SampleId next_sample(std::uint64_t index);
  Result<void> fill(std::uint64_t microbatch, Slot& slot);
  Result<void> fill_sample(std::uint64_t index, std::size_t row, Slot& slot);
  Result<void> read(SampleId id, std::span<std::int32_t> tokens);
};

void DataLoader::State::run() {
  for (std::uint64_t microbatch = 0; wait_for_room(); ++microbatch) {
    Result<void> result = fill(microbatch, slots[microbatch % slots.size()]);
    const std::scoped_lock guard(mutex);
    if (result.ok()) {
      ++filled;
    } else {
      error = result.error();
    }
    changed->notify();
    if (error.has_value()) return;
  }
}

bool DataLoader::State::wait_for_room() {
  std::unique_lock guard(mutex);
  // One slot stays with the caller, so one less than the ring may be waiting.
  changed->wait(guard, [&] { return stopping || filled - taken < slots.size() - 1; });
  return !stopping;
}

bool DataLoader::State::is_stopping() {
  const std::scoped_lock guard(mutex);
  return stopping;
}

std::uint64_t DataLoader::State::position_in_step(std::uint64_t index, std::uint64_t* step) const {
  const auto per_lane = static_cast<std::uint64_t>(shape.microbatches_per_lane * shape.microbatch_size);
  const std::uint64_t per_step = rank_lanes.size() * per_lane;
  const std::uint64_t in_step = index % per_step;
  *step = index / per_step;
  return static_cast<std::uint64_t>(rank_lanes[in_step / per_lane]) * per_lane + in_step % per_lane;
}

// The rank's index-th sample; asks for those that follow it.
SampleId DataLoader::State::next_sample(std::uint64_t index) {
  for (; asked_count < index + asked.size(); ++asked_count) {
    std::uint64_t step = 0;
    const std::uint64_t position = position_in_step(asked_count, &step);
    const SampleId id = order.at(cursor + step * shape.samples_per_step() + position);
    data->will_need(id);
    asked[asked_count % asked.size()] = id;
  }
  return asked[index % asked.size()];
}

Result<void> DataLoader::State::fill(std::uint64_t microbatch, Slot& slot) {
  const auto rows = static_cast<std::uint64_t>(shape.microbatch_size);
  slot.digest = Digest{};
  slot.counted_targets = 0;
  for (std::uint64_t row = 0; row < rows && !is_stopping(); ++row)
    HF_TRY_VOID(fill_sample(microbatch * rows + row, row, slot));
  return {};
}

Result<void> DataLoader::State::fill_sample(std::uint64_t index, std::size_t row, Slot& slot) {
  std::uint64_t step = 0;
  const std::uint64_t position = position_in_step(index, &step);
  const SampleId id = next_sample(index);
  const std::span<std::int32_t> tokens = std::span(sample_buffer).subspan(digest_head_tokens);
  HF_TRY_VOID(retry_storage(
      *env, [&] { return read(id, tokens); }, [&] { return is_stopping(); }));
  const DigestHead head = {.position_in_step = position, .source = id.source, .sample = id.sample};
  std::memcpy(sample_buffer.data(), &head, sizeof(head));
  slot.digest += digest_of(std::as_bytes(std::span(sample_buffer)));
  slot.samples[row] = id;
  const SequenceRows rows(slot.inputs, slot.targets, slot.first_key, tokens.size() - 1);
  HF_TRY(const std::uint64_t counted, data->fill_row(id, tokens, rows[row]));
  slot.counted_targets += counted;
  return {};
}

Result<void> DataLoader::State::read(SampleId id, std::span<std::int32_t> tokens) {
  if (faults != nullptr) HF_FAILING_FAULT_POINT(*faults, read_point);
  return data->read(id, tokens, vocabulary);
}

DataLoader::DataLoader(Env& env, std::shared_ptr<DataSet> data, std::uint64_t seed, BatchShape shape,
                       std::vector<int> rank_lanes, std::uint64_t cursor, std::int64_t vocabulary,
                       std::int64_t prefetch_microbatches, FaultPoints* faults) {
  HF_CHECK(!rank_lanes.empty() && prefetch_microbatches >= 1);
  HF_CHECK(shape.sequence_length >= 1 && shape.microbatch_size >= 1 && shape.microbatches_per_lane >= 1);
  for (const int lane : rank_lanes)
    HF_CHECK(lane >= 0 && lane < shape.lanes, "lane {} of {}", lane, shape.lanes);
  SampleOrder order = data->order(seed);
  const auto rows = static_cast<std::size_t>(shape.microbatch_size);
  const auto length = static_cast<std::size_t>(shape.sequence_length);
  const State::Slot slot = {
      .inputs = std::vector<std::int32_t>(rows * length),
      .targets = std::vector<std::int32_t>(rows * length),
      .first_key = std::vector<std::int32_t>(data->masks_documents() ? rows * length : 0),
      .samples = std::vector<SampleId>(rows),
      .counted_targets = 0,
      .digest = {}};
  state_.reset(
      new State{.env = &env,
                .data = std::move(data),
                .order = std::move(order),
                .shape = shape,
                .rank_lanes = std::move(rank_lanes),
                .cursor = cursor,
                .vocabulary = vocabulary,
                .faults = faults,
                .slots = std::vector<State::Slot>(static_cast<std::size_t>(prefetch_microbatches) + 1, slot),
                .sample_buffer = std::vector<std::int32_t>(digest_head_tokens + length + 1),
                .asked = std::vector<SampleId>(samples_ahead(shape.sequence_length)),
                .changed = env.make_condition()});
  Result<std::unique_ptr<Thread>> thread =
      env.start_thread("loader", [state = state_.get()] { state->run(); });
  state_->begun = outcome_of(thread);
  if (thread.ok()) {
    state_->thread = std::move(thread).value();
  } else {
    state_->error = thread.error();
  }
}

DataLoader::~DataLoader() {
  {
    const std::scoped_lock guard(state_->mutex);
    state_->stopping = true;
  }
  state_->changed->notify();
  state_->thread.reset();  // waits
}

const Result<void>& DataLoader::begun() const {
  return state_->begun;
}

Result<MicroBatch> DataLoader::next() {
  State& state = *state_;
  std::unique_lock guard(state.mutex);
  state.changed->wait(guard, [&] { return state.filled > state.taken || state.error.has_value(); });
  // Microbatches that were filled before the error are handed out first, whatever the timing.
  if (state.filled == state.taken) return *state.error;
  const State::Slot& slot = state.slots[state.taken % state.slots.size()];
  ++state.taken;
  guard.unlock();
  state.changed->notify();
  return MicroBatch{.inputs = slot.inputs,
                    .targets = slot.targets,
                    .first_key = slot.first_key,
                    .samples = slot.samples,
                    .counted_targets = slot.counted_targets,
                    .digest = slot.digest};
}

}  // namespace holdfast::data
