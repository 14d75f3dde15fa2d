#include "parallel/mpi/mpi_communicator.h"

#include <fmt/core.h>
#include <mpi-ext.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "parallel/comm/collectives.h"
#include "parallel/mpi/mpi_calls.h"

namespace holdfast::parallel {
namespace {

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
bool is_failed_process(int error_class) {
  return error_class == MPIX_ERR_PROC_FAILED || error_class == MPIX_ERR_PROC_FAILED_PENDING;
}
bool is_revoked(int error_class) {
  return error_class == MPIX_ERR_REVOKED;
}
void revoke(MPI_Comm communicator) {
  MPIX_Comm_revoke(communicator);
}
#else
bool is_failed_process(int) {
  return false;
}
bool is_revoked(int) {
  return false;
}
void revoke(MPI_Comm) {}
#endif

}  // namespace

MpiCommunicator::MpiCommunicator(Env& env, MPI_Comm communicator, bool fault_tolerant,
                                 std::vector<int> launched_ranks, WaitListener* listener,
                                 const std::function<std::string()>& cut_off)
    : env_(&env),
      communicator_(communicator),
      fault_tolerant_(fault_tolerant),
      listener_(listener),
      cut_off_(&cut_off),
      launched_ranks_(std::move(launched_ranks)) {
  MPI_Comm_rank(communicator_, &rank_);
  MPI_Comm_size(communicator_, &size_);
  slots_.resize(2 * static_cast<std::size_t>(request_count_max(size_)));
  HF_CHECK(launched_ranks_.size() == static_cast<std::size_t>(size_));
  for (std::size_t i = slots_.size(); i-- > 0;) free_.push_back(static_cast<Request>(i));
}

template <typename Post>
Result<Communicator::Request> MpiCommunicator::post(std::size_t bytes, int peer, int tag, bool receiving,
                                                    const Post& post_part) {
  HF_CHECK(0 <= peer && peer < size_ && peer != rank_, "peer {} of rank {} in {}", peer, rank_, size_);
  const std::lock_guard guard(mutex_);
  if (abandoned_) return left();
  Request first = -1;
  Request* link = &first;
  std::size_t offset = 0;
  do {  // an empty message is one empty part
    HF_CHECK(!free_.empty(), "more than {} requests at once", slots_.size());
    const Request index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[static_cast<std::size_t>(index)];
    slot = Slot{.peer = peer, .tag = tag, .receiving = receiving};
    const std::size_t part = std::min(part_bytes_max, bytes - offset);
    const int code = post_part(offset, static_cast<int>(part), &slot.request);
    if (code != MPI_SUCCESS) return error_of(code, slot);
    *link = index;
    link = &slot.next;
    offset += part;
  } while (offset < bytes);
  return first;
}

Result<Communicator::Request> MpiCommunicator::send(std::span<const std::byte> source, int peer, int tag) {
  return post(source.size(), peer, tag, false, [&](std::size_t offset, int count, MPI_Request* request) {
    return MPI_Isend(source.data() + offset, count, MPI_BYTE, peer, tag, communicator_, request);
  });
}

Result<Communicator::Request> MpiCommunicator::receive(std::span<std::byte> target, int peer, int tag) {
  return post(target.size(), peer, tag, true, [&](std::size_t offset, int count, MPI_Request* request) {
    return MPI_Irecv(target.data() + offset, count, MPI_BYTE, peer, tag, communicator_, request);
  });
}

Result<bool> MpiCommunicator::test(Request request) {
  const std::lock_guard guard(mutex_);
  if (abandoned_) return left();
  HF_CHECK(0 <= request && static_cast<std::size_t>(request) < slots_.size());
  // MPI_Test of a completed part is a null request, which is complete at once.
  for (Request index = request; index >= 0; index = slots_[static_cast<std::size_t>(index)].next) {
    Slot& slot = slots_[static_cast<std::size_t>(index)];
    int complete = 0;
    const int code = test_when_complete(slot.request, complete);
    if (code != MPI_SUCCESS) return error_of(code, slot);
    if (complete != 0) continue;
    constexpr std::int64_t between_looks_ns = 1'000'000;
    const std::int64_t now_ns = env_->monotonic_ns();
    if (now_ns - looked_at_peers_ns_ < between_looks_ns) return false;
    looked_at_peers_ns_ = now_ns;
    HF_TRY_VOID(look_at_peers([this](int rank) { return awaits(rank); }));
    return false;
  }
  for (Request index = request; index >= 0; index = slots_[static_cast<std::size_t>(index)].next) {
    free_.push_back(index);
  }
  return true;
}

Result<void> MpiCommunicator::check_peers() {
  const std::lock_guard guard(mutex_);
  if (abandoned_) return left();
  return noted(look_at_peers([](int) { return true; }));
}

Result<void> MpiCommunicator::check_peers_among(std::span<const int> ranks) {
  const std::lock_guard guard(mutex_);
  if (abandoned_) return left();
  return noted(look_at_peers([ranks](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }));
}

bool MpiCommunicator::has_died(int rank) {
  const std::lock_guard guard(mutex_);
  return fault_tolerant_ && failed_ranks(communicator_, size_)[static_cast<std::size_t>(rank)];
}

Result<void> MpiCommunicator::noted(Result<void> looked) {
  if (!looked.ok()) found_ = looked.error();
  return looked;
}

bool MpiCommunicator::awaits(int rank) const {
  return std::ranges::any_of(
      slots_, [rank](const Slot& slot) { return slot.peer == rank && slot.request != MPI_REQUEST_NULL; });
}

// Probes for a message that is never sent, which makes MPI progress and learn of deaths and of a revocation.
// A probe without an error does not prove that no rank died: deaths that became known while the group was
// being made count as acknowledged there. Asking for the failed ranks takes longer after many deaths, so that
// is done less often. Without fault tolerance mpirun ends the job at the first death.
Result<void> MpiCommunicator::look_at_peers(const std::function<bool(int)>& is_missed) {
  constexpr std::int64_t between_questions_ns = 20'000'000;
  if (const std::string why = why_cut_off(); !why.empty()) return leave_cut_off(why);
  int found = 0;
  const int code = MPI_Iprobe(MPI_ANY_SOURCE, tag_never_sent, communicator_, &found, MPI_STATUS_IGNORE);
  const std::int64_t now_ns = env_->monotonic_ns();
  if (code == MPI_SUCCESS && now_ns - asked_for_failed_ns_ < between_questions_ns) return {};
  asked_for_failed_ns_ = now_ns;
  int error_class = MPI_SUCCESS;
  MPI_Error_class(code, &error_class);
  if (is_revoked(error_class)) {
    give_up();
    reported_by_peer_ = true;
    return fail(ExitCode::communication,
                "rank {} ends because another rank ended the group: its own output says why",
                global_rank(rank_));
  }
  const auto failed = fault_tolerant_ ? failed_ranks(communicator_, size_) : std::vector<bool>();
  const int ranks = static_cast<int>(failed.size());
  int lost = 0;
  while (lost < ranks && !(failed[static_cast<std::size_t>(lost)] && is_missed(lost))) ++lost;
  // Any rank that failed here is one that is not missed.
  if (lost == ranks && (code == MPI_SUCCESS || is_failed_process(error_class))) return {};
  give_up();
  return fail(ExitCode::communication,
              "rank {} lost {}: its process or host died; its own output says why; where the run does not go "
              "on by itself, start it again",
              global_rank(rank_), lost == ranks ? "a rank" : fmt::format("rank {}", global_rank(lost)));
}

// Limits how often the callback runs, because a waiting rank polls thousands of times a second.
std::string MpiCommunicator::why_cut_off() {
  constexpr std::int64_t between_looks_ns = 20'000'000;
  const std::int64_t now_ns = env_->monotonic_ns();
  if (!*cut_off_ || now_ns - looked_around_ns_ < between_looks_ns) return "";
  looked_around_ns_ = now_ns;
  return (*cut_off_)();
}

// Gives up without waiting for requests: those to unreachable ranks would not end. MPI is not called again.
Error MpiCommunicator::leave_cut_off(const std::string& why) {
  abandoned_ = true;
  if (fault_tolerant_) revoke(communicator_);
  return fail(ExitCode::communication, "rank {} gives up waiting: {}", global_rank(rank_), why);
}

Error MpiCommunicator::left() const {
  if (found_.has_value()) return *found_;
  return fail(ExitCode::communication, "rank {} has left its group after an error: start the run again",
              global_rank(rank_));
}

void MpiCommunicator::abandon() {
  const std::lock_guard guard(mutex_);
  give_up();
}

void MpiCommunicator::close() {
  const std::lock_guard guard(mutex_);
  abandoned_ = true;
}

void MpiCommunicator::release_requests() {
  const std::lock_guard guard(mutex_);
  if (std::ranges::any_of(slots_, [](const Slot& slot) { return slot.request != MPI_REQUEST_NULL; })) return;
  std::vector<Slot>().swap(slots_);
  std::vector<Request>().swap(free_);
}

void MpiCommunicator::give_up() {
  if (std::exchange(abandoned_, true) || !fault_tolerant_) return;
  revoke(communicator_);
  drained_ = drain(drain_timeout_ms);
}

bool MpiCommunicator::finish_draining(std::int64_t timeout_ms) {
  const std::lock_guard guard(mutex_);
  if (!drained_) drained_ = drain(timeout_ms);
  return drained_;
}

void MpiCommunicator::revoke_only() {
  const std::lock_guard guard(mutex_);
  if (!std::exchange(abandoned_, true) && fault_tolerant_) revoke(communicator_);
}

// Receives that no message has come for are cancelled. A request whose peer died is given up without being
// freed (test_when_complete()), after rounds that take what the peer had sent out of shared memory and its
// connection, where all of it is when a process of this host has ended, and that see sends to it fail.
bool MpiCommunicator::drain(std::int64_t timeout_ms) {
  constexpr int further_rounds = 8, rounds_for_the_dead = 400;
  PollBackoff backoff(*env_, timeout_ms, listener_);
  const auto awaited = [] { return Awaited{.operation = "the end of messages that are under way"}; };
  std::vector<bool> failed = failed_ranks(communicator_, size_);
  const auto is_with_the_dead = [&](const Slot& slot) {
    return slot.request != MPI_REQUEST_NULL && failed[static_cast<std::size_t>(slot.peer)];
  };
  for (Slot& slot : slots_) {
    if (slot.receiving && slot.request != MPI_REQUEST_NULL && !is_with_the_dead(slot))
      MPI_Cancel(&slot.request);
  }
  bool any_with_the_dead = false;
  for (int round = 0; round < (any_with_the_dead ? rounds_for_the_dead : further_rounds);) {
    bool pending = false;
    failed = failed_ranks(communicator_, size_);
    any_with_the_dead = std::ranges::any_of(slots_, is_with_the_dead);
    for (Slot& slot : slots_) {
      if (slot.request == MPI_REQUEST_NULL || is_with_the_dead(slot)) continue;
      int complete = 0;
      static_cast<void>(test_when_complete(slot.request, complete));  // how it ends does not matter
      pending = pending || slot.request != MPI_REQUEST_NULL;
    }
    int found = 0;  // moves MPI on where nothing is pending
    static_cast<void>(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE));
    if (!pending) {
      ++round;
    } else if (!backoff.pause(awaited) || !why_cut_off().empty()) {
      return false;
    }
  }
  for (Slot& slot : slots_) {
    if (is_with_the_dead(slot)) slot.request = MPI_REQUEST_NULL;
  }
  return true;
}

bool MpiCommunicator::abandoned() {
  const std::lock_guard guard(mutex_);
  return abandoned_;
}

bool MpiCommunicator::reported_by_peer() {
  const std::lock_guard guard(mutex_);
  return reported_by_peer_;
}

Error MpiCommunicator::error_of(int code, const Slot& slot) {
  const int peer = global_rank(slot.peer);
  give_up();
  int error_class = MPI_ERR_OTHER;
  MPI_Error_class(code, &error_class);
  const char* doing = slot.receiving ? "receiving from" : "sending to";
  if (is_failed_process(error_class)) {
    return fail(ExitCode::communication,
                "rank {} lost rank {} while {} it (message tag {}): its process or host died; its own output "
                "says why; where the run does not go on by itself, start it again",
                global_rank(rank_), peer, doing, slot.tag);
  }
  if (is_revoked(error_class)) {
    reported_by_peer_ = true;
    return fail(ExitCode::communication,
                "rank {} ends because another rank ended the group (while {} rank {}, message tag {}): its "
                "own output says why",
                global_rank(rank_), doing, peer, slot.tag);
  }
  if (error_class == MPI_ERR_TRUNCATE) {
    return fail(ExitCode::communication,
                "ranks {} and {} disagree on the length of a message (tag {}): they run different programs "
                "or configs",
                global_rank(rank_), peer, slot.tag);
  }
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return fail(ExitCode::communication, "MPI failed on rank {} while {} rank {} (message tag {}): {}",
              global_rank(rank_), doing, peer, slot.tag,
              std::string_view(text, static_cast<std::size_t>(length)));
}

}  // namespace holdfast::parallel
