#include "nccl_double.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace holdfast::test {
namespace {

constexpr CudaError not_ready = 600;

CudaEvent handle_of(EmulatedEvent& event) {
  return reinterpret_cast<CudaEvent>(&event);
}
EmulatedEvent& event_of(CudaEvent event) {
  return *reinterpret_cast<EmulatedEvent*>(event);
}

// While it lives, this thread may touch memory that protection keys close to it.
class OpenMemory {
 public:
  OpenMemory() {
    if (!has_keys()) return;
    for (int key = 1; key < key_count; ++key) {
      rights_[static_cast<std::size_t>(key)] = pkey_get(key);
      pkey_set(key, 0);
    }
  }
  ~OpenMemory() {
    if (!has_keys()) return;
    for (int key = 1; key < key_count; ++key) {
      pkey_set(key, static_cast<unsigned>(rights_[static_cast<std::size_t>(key)]));
    }
  }
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;

 private:
  static constexpr int key_count = 16;
  static bool has_keys() {
    static const bool has = [] {
      const int key = pkey_alloc(0, 0);
      if (key >= 0) pkey_free(key);
      return key >= 0;
    }();
    return has;
  }
  std::array<int, key_count> rights_ = {};
};

}  // namespace

// A call on a communicator: two at a time are a violation, and so is one after its end.
class NcclDouble::Use {
 public:
  Use(NcclWorld& world, NcclComm handle, const char* call)
      : comm_(reinterpret_cast<NcclWorld::Comm*>(handle)) {
    const int callers = comm_->callers.fetch_add(1);
    const std::lock_guard guard(world.mutex_);
    if (callers > 0) world.violated(std::string(call) + " beside another call on the same communicator");
    if (comm_->aborted) world.violated(std::string(call) + " after ncclCommAbort");
  }
  ~Use() { comm_->callers.fetch_sub(1); }
  NcclWorld::Comm& operator*() const { return *comm_; }

 private:
  NcclWorld::Comm* comm_;
};

std::vector<std::string> NcclWorld::violations() {
  const std::lock_guard guard(mutex_);
  return violations_;
}

int NcclWorld::handles_left() {
  const std::lock_guard guard(mutex_);
  return handles_left_;
}

std::set<std::string> NcclWorld::names() {
  const std::lock_guard guard(mutex_);
  return names_;
}

std::vector<std::string> NcclWorld::ends() {
  const std::lock_guard guard(mutex_);
  return ends_;
}
void NcclWorld::watch_freed_memory() {
  const std::lock_guard guard(mutex_);
  watches_freed_memory_ = true;
}
std::map<std::string, int> NcclWorld::messages() {
  const std::lock_guard guard(mutex_);
  return messages_;
}
std::map<std::string, int> NcclWorld::max_ctas() {
  const std::lock_guard guard(mutex_);
  return max_ctas_;
}

NcclWorld::Group* NcclWorld::first_of(const Comm& comm) {
  if (comm.owner == nullptr || comm.owner->dead_) return nullptr;
  for (Stream& stream : streams_) {
    if (stream.groups.empty()) continue;
    Group& first = stream.groups.front();
    const bool runs = first.launched && std::chrono::steady_clock::now() >= first.starts &&
                      std::ranges::all_of(first.after, &Point::is_reached);
    if (first.comm == &comm && runs) return &first;
  }
  return nullptr;
}

// What the first group of a stream sends.
bool NcclWorld::move_messages(Stream& stream) {
  if (stream.groups.empty()) return false;
  Comm* const comm = stream.groups.front().comm;
  Group* const group = first_of(*comm);
  if (group != &stream.groups.front()) return false;
  bool moved = false;
  for (Message& sent : group->messages) {
    Comm* const peer = comm->clique->ranks[static_cast<std::size_t>(sent.peer)];
    if (sent.moved || sent.source == nullptr || peer == nullptr) continue;
    Group* const theirs = first_of(*peer);
    if (theirs == nullptr) continue;
    const auto match = std::find_if(theirs->messages.begin(), theirs->messages.end(), [&](Message& message) {
      return message.target != nullptr && message.peer == comm->rank && !message.moved;
    });
    if (match == theirs->messages.end()) continue;
    if (match->bytes != sent.bytes) violated("a message has another length at its other end");
    {
      const OpenMemory open;
      std::memcpy(match->target, sent.source, std::min(match->bytes, sent.bytes));
    }
    match->moved = sent.moved = moved = true;
    ++messages_[comm->name];
  }
  return moved;
}

void NcclWorld::reach_marks(Stream& stream) {
  const bool vanished = stream.owner == nullptr || stream.owner->vanished_;
  if (!vanished && stream.owner->hold_) return;
  while (!stream.marks.empty() && (vanished || stream.marks.front().after <= stream.completed)) {
    const Point& point = stream.marks.front().point;
    point.event->reach(point.count);
    stream.marks.pop_front();
  }
}

void NcclWorld::progress() {
  // The kernel of a communicator that has ended has no messages any more; it still begins in its turn.
  const auto done = [](const Group& group) {
    return group.launched && std::ranges::all_of(group.messages, &Message::moved) &&
           std::ranges::all_of(group.after, &Point::is_reached);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (Stream& stream : streams_) {
      if (move_messages(stream)) moved = true;
      while (!stream.groups.empty() && done(stream.groups.front()) && !stream.owner->dead_) {
        stream.groups.pop_front();
        ++stream.completed;
        moved = true;
      }
      reach_marks(stream);
    }
  }
}

NcclDouble::~NcclDouble() {
  const std::lock_guard guard(world_->mutex_);
  world_->handles_left_ += handles_;
  for (NcclWorld::Stream& stream : world_->streams_) {
    if (stream.owner != this) continue;
    stream.groups.clear();
    stream.owner = nullptr;
    world_->reach_marks(stream);
  }
  for (NcclWorld::Comm& comm : world_->comms_) {
    if (comm.owner == this) comm.owner = nullptr;
  }
  for (const auto& [memory, bytes] : memory_) std::free(memory);  // of a process that killed itself
}

void NcclDouble::die() {
  const std::lock_guard guard(world_->mutex_);
  dead_ = true;
}
void NcclDouble::vanish() {
  const std::lock_guard guard(world_->mutex_);
  dead_ = vanished_ = true;
  world_->progress();
}
void NcclDouble::fail_next(const std::string& call, int code) {
  const std::lock_guard guard(world_->mutex_);
  failures_[call] = code;
}
void NcclDouble::set_state(NcclResult state, std::string text) {
  const std::lock_guard guard(world_->mutex_);
  state_ = state;
  last_error_ = std::move(text);
}
void NcclDouble::set_cuda_error(CudaError error) {
  const std::lock_guard guard(world_->mutex_);
  cuda_error_ = error;
}
void NcclDouble::never_start() {
  const std::lock_guard guard(world_->mutex_);
  never_start_ = true;
}
void NcclDouble::never_start(const std::string& name) {
  const std::lock_guard guard(world_->mutex_);
  never_started_.insert(name);
}
void NcclDouble::slow_launch(int polls) {
  const std::lock_guard guard(world_->mutex_);
  launch_polls_ = polls;
}
void NcclDouble::slow_groups(std::chrono::milliseconds delay) {
  const std::lock_guard guard(world_->mutex_);
  delay_ = delay;
}
void NcclDouble::hold_completions(bool hold) {
  const std::lock_guard guard(world_->mutex_);
  hold_ = hold;
}
void NcclDouble::block(const std::string& call) {
  const std::lock_guard guard(world_->mutex_);
  blocked_calls_[call] = true;
}
void NcclDouble::release() {
  const std::lock_guard guard(world_->mutex_);
  blocked_calls_.clear();
  world_->changed_.notify_all();
}
int NcclDouble::blocked() {
  const std::lock_guard guard(world_->mutex_);
  return hanging_;
}
int NcclDouble::live_handles() {
  const std::lock_guard guard(world_->mutex_);
  return handles_;
}
std::vector<std::string> NcclDouble::names() {
  const std::lock_guard guard(world_->mutex_);
  return names_;
}

int NcclDouble::take_failure(const std::string& call) {
  const auto found = failures_.find(call);
  if (found == failures_.end()) return 0;
  const int code = found->second;
  failures_.erase(found);
  return code;
}

void NcclDouble::hang(Lock& lock, const std::string& call) {
  if (!blocked_calls_[call]) return;
  ++hanging_;
  world_->changed_.wait(lock, [&] { return !blocked_calls_[call]; });
  --hanging_;
}

NcclResult NcclDouble::unique_id(NcclUniqueId& id) {
  const Lock lock(world_->mutex_);
  if (const int code = take_failure("ncclGetUniqueId"); code != 0) return static_cast<NcclResult>(code);
  const std::string text = "id " + std::to_string(++world_->ids_);
  std::copy(text.begin(), text.end(), id.bytes.begin());
  return NcclResult::success;
}

NcclResult NcclDouble::comm_init(NcclComm& comm, const NcclCommConfig& config) {
  const Lock lock(world_->mutex_);
  names_.push_back(config.name);
  world_->names_.insert(config.name);
  if (ranks_per_gpu() > 1 && version_ < version_shared_gpus) {
    world_->violated("several ranks on a GPU before 2.30.3");
  }
  if (world_->max_ctas_.try_emplace(config.name, config.max_ctas).first->second != config.max_ctas) {
    world_->violated("the ranks of " + config.name + " give it different limits of thread blocks");
  }
  if (const int code = take_failure("ncclCommInitRankConfig"); code != 0) {
    return static_cast<NcclResult>(code);
  }
  NcclWorld::Clique& clique = world_->cliques_[config.id.bytes];
  clique.size = config.ranks;
  clique.ranks.resize(static_cast<std::size_t>(config.ranks));
  ++clique.joined;
  NcclWorld::Comm& made = world_->comms_.emplace_back();
  made.owner = this;
  made.clique = &clique;
  made.rank = config.rank;
  made.name = config.name;
  clique.ranks[static_cast<std::size_t>(config.rank)] = &made;
  ++handles_;
  comm = reinterpret_cast<NcclComm>(&made);
  return NcclResult::in_progress;
}

NcclResult NcclDouble::comm_state(NcclComm handle, NcclResult& state) {
  const Use use(*world_, handle, "ncclCommGetAsyncError");
  NcclWorld::Comm& comm = *use;
  const Lock lock(world_->mutex_);
  if (const int code = take_failure("ncclCommGetAsyncError"); code != 0) return static_cast<NcclResult>(code);
  if (comm.revoked) {
    state = comm.revoke_polls_left > 0 ? NcclResult::in_progress : NcclResult::success;
    if (comm.revoke_polls_left > 0 && --comm.revoke_polls_left == 0) {
      end_kernels(comm);
      world_->ends_.push_back("revoke " + std::to_string(comm.rank) + " " + comm.name);
    }
    return NcclResult::success;
  }
  state = state_;
  if (state_ != NcclResult::success) return NcclResult::success;
  const bool started =
      comm.clique->joined == comm.clique->size && !never_start_ && !never_started_.contains(comm.name);
  if (!started || comm.launch_polls_left > 0) state = NcclResult::in_progress;
  if (comm.launch_polls_left > 0 && --comm.launch_polls_left == 0) {
    comm.launching->groups.back().launched = true;
    comm.launching = nullptr;
  }
  return NcclResult::success;
}

void NcclDouble::end_kernels(const NcclWorld::Comm& comm) {
  for (NcclWorld::Stream& stream : world_->streams_) {
    if (stream.owner != this) continue;
    for (NcclWorld::Group& group : stream.groups) {
      if (group.comm != &comm) continue;
      group.messages.clear();
      group.launched = true;
    }
    while (dead_ && !stream.groups.empty() && stream.groups.front().messages.empty()) {
      stream.groups.pop_front();
      ++stream.completed;
    }
  }
  world_->progress();
}

bool NcclDouble::uses_memory_of(const NcclWorld::Comm& comm, int peer) {
  const auto is_with_peer = [&](const NcclWorld::Message& message) {
    return message.peer == peer && !message.moved;
  };
  const auto uses = [&](const NcclWorld::Group& group) {
    return group.comm == &comm && std::ranges::any_of(group.messages, is_with_peer);
  };
  return std::ranges::any_of(world_->streams_, [&](const NcclWorld::Stream& stream) {
    return std::ranges::any_of(stream.groups, uses);
  });
}

void NcclDouble::abort_now(NcclWorld::Comm& comm) {
  comm.aborted = comm.abort_asked = true;
  --handles_;
  end_kernels(comm);
  if (dead_) return;  // what the kernel does for a process that is gone is not this rule's
  world_->ends_.push_back("abort " + std::to_string(comm.rank) + " " + comm.name);
  if (!world_->watches_freed_memory_) return;
  for (const NcclWorld::Comm* peer : comm.clique->ranks) {
    if (peer == nullptr || peer->owner == nullptr || peer->owner->dead_) continue;
    if (uses_memory_of(*peer, comm.rank))
      world_->violated("a rank of " + comm.name + " freed memory that a kernel of another rank uses");
  }
}

// It returns at once, and its kernels end a little later.
NcclResult NcclDouble::comm_revoke(NcclComm handle) {
  const Use use(*world_, handle, "ncclCommRevoke");
  NcclWorld::Comm& comm = *use;
  Lock lock(world_->mutex_);
  hang(lock, "ncclCommRevoke");
  if (const int code = take_failure("ncclCommRevoke"); code != 0) return static_cast<NcclResult>(code);
  if (comm.clique->joined < comm.clique->size)
    world_->violated("ncclCommRevoke before the start is complete");
  if (comm.revoked) world_->violated("ncclCommRevoke twice");
  if (in_group_) world_->violated("ncclCommRevoke in a group");
  comm.revoked = true;
  comm.revoke_polls_left = 2;
  comm.launch_polls_left = 0;
  comm.launching = nullptr;
  return NcclResult::in_progress;
}

// Outside a group it waits until all communicators of this process are being aborted: one after the other
// they would deadlock in the driver.
NcclResult NcclDouble::comm_abort(NcclComm handle) {
  const Use use(*world_, handle, "ncclCommAbort");
  NcclWorld::Comm& comm = *use;
  Lock lock(world_->mutex_);
  if (const int code = take_failure("ncclCommAbort"); code != 0) return static_cast<NcclResult>(code);
  if (in_group_ && version_ < version_group_abort) world_->violated("ncclCommAbort in a group before 2.22");
  if (in_group_ && group_thread_ == std::this_thread::get_id()) {
    group_aborts_.push_back(&comm);
    return NcclResult::success;
  }
  comm.abort_asked = true;
  world_->changed_.notify_all();
  world_->changed_.wait(lock, [this] {
    return std::all_of(world_->comms_.begin(), world_->comms_.end(), [this](const NcclWorld::Comm& other) {
      return other.owner != this || other.abort_asked;
    });
  });
  hang(lock, "ncclCommAbort");
  abort_now(comm);
  return NcclResult::success;
}

NcclResult NcclDouble::group_start() {
  const Lock lock(world_->mutex_);
  if (const int code = take_failure("ncclGroupStart"); code != 0) return static_cast<NcclResult>(code);
  if (in_group_) world_->violated("ncclGroupStart inside a group");
  in_group_ = true;
  group_thread_ = std::this_thread::get_id();
  return NcclResult::success;
}

NcclResult NcclDouble::group_end() {
  Lock lock(world_->mutex_);
  if (!in_group_ || group_thread_ != std::this_thread::get_id()) world_->violated("ncclGroupEnd of no group");
  in_group_ = false;
  if (!group_aborts_.empty()) {
    hang(lock, "ncclCommAbort");
    for (NcclWorld::Comm* comm : std::exchange(group_aborts_, {})) abort_now(*comm);
    return NcclResult::success;
  }
  hang(lock, "ncclGroupEnd");
  const std::vector<NcclWorld::Message> messages = std::exchange(group_messages_, {});
  if (const int code = take_failure("ncclGroupEnd"); code != 0) return static_cast<NcclResult>(code);
  if (messages.empty()) return NcclResult::success;
  NcclWorld::Comm& comm = *group_comm_;
  if (comm.aborted) world_->violated("ncclGroupEnd after ncclCommAbort");
  group_stream_->groups.push_back({.comm = &comm,
                                   .messages = messages,
                                   .after = std::exchange(group_stream_->awaited, {}),
                                   .launched = launch_polls_ == 0,
                                   .starts = std::chrono::steady_clock::now() + delay_});
  ++group_stream_->enqueued;
  if (launch_polls_ == 0) return NcclResult::success;
  comm.launch_polls_left = launch_polls_;
  comm.launching = group_stream_;
  return version_ < 22403 ? NcclResult::success : NcclResult::in_progress;  // a fault that 2.24 mended
}

NcclResult NcclDouble::post(NcclComm handle, CudaStream stream, NcclWorld::Message message,
                            const char* call) {
  const Use use(*world_, handle, call);
  NcclWorld::Comm& comm = *use;
  const Lock lock(world_->mutex_);
  if (const int code = take_failure(call); code != 0) return static_cast<NcclResult>(code);
  if (!in_group_) world_->violated(std::string(call) + " outside a group");
  if (comm.clique->joined < comm.clique->size || comm.launch_polls_left > 0) {
    world_->violated(std::string(call) + " on a communicator that is in progress");
  }
  if (comm.revoked) world_->violated(std::string(call) + " on a communicator that was revoked");
  for (const NcclWorld::Comm& other : world_->comms_) {
    if (&other != &comm && other.owner == this && other.launch_polls_left > 0) {
      world_->violated(std::string(call) + " while this thread's last group is being launched");
    }
  }
  group_comm_ = &comm;
  group_stream_ = reinterpret_cast<NcclWorld::Stream*>(stream);
  group_messages_.push_back(message);
  return NcclResult::success;
}

NcclResult NcclDouble::send(const void* source, std::size_t bytes, int peer, NcclComm comm,
                            CudaStream stream) {
  return post(comm, stream, {.source = source, .target = nullptr, .bytes = bytes, .peer = peer}, "ncclSend");
}
NcclResult NcclDouble::receive(void* target, std::size_t bytes, int peer, NcclComm comm, CudaStream stream) {
  return post(comm, stream, {.source = nullptr, .target = target, .bytes = bytes, .peer = peer}, "ncclRecv");
}

std::string NcclDouble::text(NcclResult result) {
  switch (result) {
    case NcclResult::unhandled_cuda_error:
      return "unhandled cuda error";
    case NcclResult::system_error:
      return "unhandled system error";
    case NcclResult::remote_error:
      return "remote process exited or there was a network error";
    default:
      return "result " + std::to_string(static_cast<int>(result));
  }
}
std::string NcclDouble::last_error(NcclComm) {
  const Lock lock(world_->mutex_);
  return last_error_;
}

CudaError NcclDouble::cuda(const std::string& call, Lock& lock) {
  hang(lock, call);
  if (const int code = take_failure(call); code != 0) return code;
  return cuda_error_;
}

CudaError NcclDouble::device_count(int& count) {
  count = 1;
  return 0;
}
CudaError NcclDouble::set_device(int) {
  Lock lock(world_->mutex_);
  return cuda("cudaSetDevice", lock);
}
CudaError NcclDouble::allocate(void** memory, std::size_t bytes) {
  Lock lock(world_->mutex_);
  if (const CudaError error = cuda("cudaMalloc", lock); error != 0) return error;
  *memory = std::calloc(bytes, 1);
  memory_[*memory] = bytes;
  ++handles_;
  return 0;
}
CudaError NcclDouble::free(void* memory) {
  Lock lock(world_->mutex_);
  if (memory_.erase(memory) == 0) world_->violated("cudaFree of what cudaMalloc did not give");
  std::free(memory);
  --handles_;
  return cuda("cudaFree", lock);
}
CudaError NcclDouble::free_memory(std::size_t& bytes) {
  Lock lock(world_->mutex_);
  bytes = std::size_t{1} << 32;
  for (const auto& [memory, taken] : memory_) bytes -= taken;
  return cuda("cudaMemGetInfo", lock);
}
CudaError NcclDouble::stream_create(CudaStream& stream) {
  Lock lock(world_->mutex_);
  if (const CudaError error = cuda("cudaStreamCreate", lock); error != 0) return error;
  NcclWorld::Stream& made = world_->streams_.emplace_back();
  made.owner = this;
  ++handles_;
  stream = reinterpret_cast<CudaStream>(&made);
  return 0;
}
CudaError NcclDouble::stream_query(CudaStream stream) {
  Lock lock(world_->mutex_);
  if (const CudaError error = cuda("cudaStreamQuery", lock); error != 0) return error;
  world_->progress();
  return hold_ || !reinterpret_cast<NcclWorld::Stream*>(stream)->groups.empty() ? not_ready : 0;
}
CudaError NcclDouble::stream_destroy(CudaStream stream) {
  Lock lock(world_->mutex_);
  if (!reinterpret_cast<NcclWorld::Stream*>(stream)->groups.empty()) {
    world_->violated("cudaStreamDestroy of a busy stream");
  }
  --handles_;
  return cuda("cudaStreamDestroy", lock);
}
CudaError NcclDouble::event_create(CudaEvent& event) {
  Lock lock(world_->mutex_);
  if (const CudaError error = cuda("cudaEventCreate", lock); error != 0) return error;
  ++handles_;
  event = handle_of(world_->events_.emplace_back());
  return 0;
}
CudaError NcclDouble::event_record(CudaEvent event, CudaStream handle) {
  Lock lock(world_->mutex_);
  if (const CudaError error = cuda("cudaEventRecord", lock); error != 0) return error;
  auto* const stream = reinterpret_cast<NcclWorld::Stream*>(handle);
  if (!stream->groups.empty() && !stream->groups.back().launched) {
    world_->violated("cudaEventRecord while NCCL is launching");
  }
  EmulatedEvent& recorded = event_of(event);
  stream->marks.push_back({.after = stream->enqueued, .point = {&recorded, recorded.record()}});
  world_->reach_marks(*stream);
  return 0;
}
CudaError NcclDouble::event_query(CudaEvent handle) {
  Lock lock(world_->mutex_);
  if (const CudaError error = cuda("cudaEventQuery", lock); error != 0) return error;
  world_->progress();
  return hold_ || !event_of(handle).done() ? not_ready : 0;
}
CudaError NcclDouble::stream_wait(CudaStream handle, CudaEvent event) {
  Lock lock(world_->mutex_);
  if (const CudaError error = cuda("cudaStreamWaitEvent", lock); error != 0) return error;
  auto* const stream = reinterpret_cast<NcclWorld::Stream*>(handle);
  if (!stream->groups.empty() && !stream->groups.back().launched) {
    world_->violated("cudaStreamWaitEvent while NCCL is launching");
  }
  EmulatedEvent& awaited = event_of(event);
  stream->awaited.push_back({&awaited, awaited.last_recorded()});
  return 0;
}
CudaError NcclDouble::event_destroy(CudaEvent) {
  Lock lock(world_->mutex_);
  --handles_;
  return cuda("cudaEventDestroy", lock);
}
CudaError NcclDouble::last_cuda_error() {
  Lock lock(world_->mutex_);
  return cuda("cudaGetLastError", lock);
}
std::string NcclDouble::text(CudaError error) {
  return "CUDA error " + std::to_string(error);
}

}  // namespace holdfast::test
