#include "parallel/mpi/mpi_world.h"

#include <fmt/core.h>
#include <mpi-ext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <numeric>
#include <utility>

#include "parallel/comm/gather.h"
#include "parallel/mpi/mpi_calls.h"
#include "runtime/os/process_identity.h"

namespace holdfast::parallel {
namespace {

// Tags of messages between the leader and the processes that it started.
constexpr int tag_invitation = 1, tag_connect = 2, tag_task = 3, tag_ready = 4;
constexpr int tag_greeting = tag_never_sent;  // of a new epoch, before anything else is there
constexpr std::int64_t look_again_us = 200, between_looks_ns = 100'000'000;

// Ends this process in a way that the ranks that go on do not hear of, and that ends none of them.
[[noreturn]] void leave_silently(Env& env, const std::string& why) {
  std::fprintf(stderr, "holdfast: a new rank leaves before it has joined: %s\n", why.c_str());
  std::fflush(stderr);
  while (true) env.kill_self();
}

// Program and arguments with which this process was started.
struct StartLine {
  std::string program;
  std::vector<std::string> arguments;
};

Result<StartLine> start_line(Env& env) {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) return fail(ExitCode::communication, "the path of the program is not known");
  HF_TRY(const std::string line, env.read_text("/proc/self/cmdline"));
  StartLine found{.program = std::string(path.data(), static_cast<std::size_t>(length)), .arguments = {}};
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find('\0', at), line.size());
    found.arguments.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  if (!found.arguments.empty()) found.arguments.erase(found.arguments.begin());
  return found;
}

// The outcome of a start of new ranks, on the rank that starts them.
struct StartedRanks {
  int count = 0;
  std::string failure = {};  // a sentence; empty: they were started

  static void visit_fields(auto& self, auto&& visit) {
    visit("count", self.count);
    visit("failure", self.failure);
  }
};

int send_text(const std::string& text, int peer, MPI_Comm bridge) {
  const int length = static_cast<int>(text.size());
  const int code = MPI_Send(&length, 1, MPI_INT, peer, tag_task, bridge);
  return code != MPI_SUCCESS ? code : MPI_Send(text.data(), length, MPI_CHAR, peer, tag_task, bridge);
}

int receive_text(std::string& text, MPI_Comm bridge) {
  int length = 0;
  const int code = MPI_Recv(&length, 1, MPI_INT, 0, tag_task, bridge, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS) return code;
  text.resize(static_cast<std::size_t>(length));
  return MPI_Recv(text.data(), length, MPI_CHAR, 0, tag_task, bridge, MPI_STATUS_IGNORE);
}

}  // namespace

MpiWorld::MpiWorld(Env& env, bool fault_tolerant, WaitListener* listener) : env_(&env), listener_(listener) {
  MPI_Comm_size(MPI_COMM_WORLD, &next_number_);
  std::vector<int> launched_ranks(static_cast<std::size_t>(next_number_));
  std::iota(launched_ranks.begin(), launched_ranks.end(), 0);
  epochs_.push_back(std::make_unique<MpiCommunicator>(env, MPI_COMM_WORLD, fault_tolerant,
                                                      std::move(launched_ranks), listener, cut_off_));
}

void MpiWorld::begin_epoch(MPI_Comm next, std::vector<int> launched_ranks) {
  MPI_Comm_set_errhandler(next, MPI_ERRORS_RETURN);
  current().release_requests();
  epochs_.push_back(std::make_unique<MpiCommunicator>(*env_, next, /*fault_tolerant=*/true,
                                                      std::move(launched_ranks), listener_, cut_off_));
}

void MpiWorld::close() {
  dismiss_new_ranks();
  current().close();
  if (connections_.empty()) return;
  for (MPI_Comm& connection : connections_) MPI_Comm_free(&connection);
  for (const std::unique_ptr<MpiCommunicator>& epoch : epochs_) {
    MPI_Comm communicator = epoch->handle();
    if (communicator != MPI_COMM_WORLD) MPI_Comm_free(&communicator);
  }
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
// Shrinks to the ranks that are left. Everyone that comes into the new group has drained its requests before,
// which keeps what the header promises about memory.
Result<void> MpiWorld::shrink(std::int64_t timeout_ms, const std::string& why) {
  const std::int64_t begin_ns = env_->monotonic_ns();
  current().abandon();
  const int rank = current().global_rank(current().rank());
  // The others wait in MPI for this rank, and would do so for ever if it ended with an exit code now.
  if (!current().finish_draining(timeout_ms)) {
    return fail(ExitCode::communication,
                "messages of rank {} to a rank that hangs are still under way: start the run again", rank);
  }
  const std::int64_t spent_ms = (env_->monotonic_ns() - begin_ns) / 1'000'000;
  const Deadline deadline(
      *env_, std::max<std::int64_t>(1, timeout_ms - spent_ms), {listener_, "coming together again"},
      fmt::format("holdfast: {}\nholdfast: rank {} then waited {} ms for the other ranks to come "
                  "together without whom it had lost: one of them hangs or is unreachable; the "
                  "run ends, start it again",
                  why, rank, timeout_ms),
      [this] { return cut_off_ ? cut_off_() : ""; }, leave_);
  MPI_Comm next = MPI_COMM_NULL;
  if (MPIX_Comm_shrink(current().handle(), &next) != MPI_SUCCESS || next == MPI_COMM_NULL) {
    return fail(ExitCode::communication,
                "MPI could not make a group of the ranks that are left (on rank {}): start the run again",
                rank);
  }
  int size = 0;
  MPI_Comm_size(next, &size);
  std::vector<int> own(static_cast<std::size_t>(size)), before(own.size()), launched;
  std::iota(own.begin(), own.end(), 0);
  MPI_Group group = MPI_GROUP_NULL, group_before = MPI_GROUP_NULL;
  MPI_Comm_group(next, &group);
  MPI_Comm_group(current().handle(), &group_before);
  MPI_Group_translate_ranks(group, size, own.data(), group_before, before.data());
  MPI_Group_free(&group);
  MPI_Group_free(&group_before);
  for (const int each : before) launched.push_back(current().global_rank(each));
  begin_epoch(next, std::move(launched));
  return {};
}

// Starts processes; the leader calls it. So far they are connected with the leader only.
Result<void> MpiWorld::start_processes(int count, MPI_Comm& with_leader) {
  HF_TRY(StartLine line, start_line(*env_));
  std::vector<char*> arguments;
  for (std::string& argument : line.arguments) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  MPI_Comm started = MPI_COMM_NULL;
  std::vector<int> codes(static_cast<std::size_t>(count), MPI_SUCCESS);
  int code = MPI_Comm_spawn(line.program.c_str(), arguments.data(), count, MPI_INFO_NULL, 0, MPI_COMM_SELF,
                            &started, codes.data());
  if (code == MPI_SUCCESS && started != MPI_COMM_NULL) {
    connections_.push_back(started);
    MPI_Comm_set_errhandler(started, MPI_ERRORS_RETURN);
    code = MPI_Intercomm_merge(started, 0, &with_leader);
  }
  if (code != MPI_SUCCESS || with_leader == MPI_COMM_NULL)
    return fail(ExitCode::communication, "MPI could not start {} process{}: {}", count,
                count == 1 ? "" : "es", mpi_text(code));
  connections_.push_back(with_leader);
  MPI_Comm_set_errhandler(with_leader, MPI_ERRORS_RETURN);
  return {};
}

// Tells the new ranks who the leader is and their task at once: they read both before anything else.
Result<void> MpiWorld::start_new_ranks(int count, const std::string& task, std::int64_t timeout_ms) {
  const bool others_go_on = current().size() > 1;
  const Deadline deadline(
      *env_, timeout_ms, {listener_, "new ranks"},
      fmt::format(
          "holdfast: rank {} waited {} ms for MPI to start new ranks, which it cannot give up: {}",
          current().global_rank(current().rank()), timeout_ms,
          others_go_on ? "it leaves the run, which goes on without it" : "the run ends, start it again"),
      [this] { return cut_off_ ? cut_off_() : ""; },
      others_go_on ? std::function<void()>([this] { env_->kill_self(); }) : leave_);
  Started started{.count = count};
  HF_TRY_VOID(start_processes(count, started.bridge));
  // MPI does not tell the new processes of the leader's death when it is on their host.
  const std::string me = record_to_text(ProcessIdentity::of(env_->processes(), env_->process_id()));
  for (int peer = 1; peer <= count; ++peer) {
    int code = send_text(me, peer, started.bridge);
    if (code == MPI_SUCCESS) code = send_text(task, peer, started.bridge);
    MPI_Request& ready = started.ready.emplace_back(MPI_REQUEST_NULL);
    if (code == MPI_SUCCESS) code = MPI_Irecv(nullptr, 0, MPI_BYTE, peer, tag_ready, started.bridge, &ready);
    started.lost = started.lost || code != MPI_SUCCESS;
  }
  started_ = std::move(started);
  return {};
}

// The parent of a rank is mpirun, or what it has on this host: that starts new processes, here or by the one
// on another host.
std::string MpiWorld::why_none_can_start() {
  const std::optional<ProcessFacts> mine = env_->processes().facts(env_->process_id());
  if (!mine.has_value()) return "";
  const std::optional<ProcessFacts> parent = env_->processes().facts(mine->parent);
  const bool is_stopped = parent.has_value() && (parent->state == 'T' || parent->state == 't');
  return is_stopped ? fmt::format("process {}, which would do it for MPI, is stopped", mine->parent) : "";
}

NewRankState MpiWorld::new_rank_state() {
  if (!started_.has_value()) return NewRankState::none;
  bool all = true;
  for (MPI_Request& ready : started_->ready) {
    int complete = 1;
    if (ready != MPI_REQUEST_NULL && MPI_Test(&ready, &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      started_->lost = true;
    all = all && complete != 0;
  }
  if (started_->lost) return NewRankState::lost;
  return all ? NewRankState::ready : NewRankState::preparing;
}

// Tells the new ranks that they are not wanted. What they have not said yet is left alone: it has no buffer.
void MpiWorld::dismiss_new_ranks() {
  if (!started_.has_value()) return;
  const int nobody = 0;
  for (int peer = 1; peer <= started_->count; ++peer)
    MPI_Send(&nobody, 1, MPI_INT, peer, tag_invitation, started_->bridge);
  started_.reset();
}

// Returns how many new processes wait for the leader, and starts them first where it has not.
Result<int> MpiWorld::count_started(int wanted, std::int64_t timeout_ms) {
  if (!started_.has_value()) HF_TRY_VOID(start_new_ranks(wanted, "", timeout_ms));
  const std::int64_t end_ns = env_->monotonic_ns() + timeout_ms * 1'000'000;
  NewRankState state = new_rank_state();
  while (state == NewRankState::preparing && env_->monotonic_ns() < end_ns) {
    env_->sleep_us(look_again_us);
    state = new_rank_state();
  }
  const int count = started_->count;
  if (state == NewRankState::ready) return count;
  dismiss_new_ranks();
  return fail(ExitCode::communication, "{} new process{} did not come", count, count == 1 ? "" : "es");
}

Result<void> MpiWorld::connect(MPI_Comm mine, int leader, MPI_Comm bridge, bool later, MPI_Comm& next) {
  constexpr int of_old = 0, of_new = 1;  // the leaders' ranks in the bridge
  MPI_Comm between = MPI_COMM_NULL;
  int code = MPI_Intercomm_create(mine, leader, bridge, later ? of_old : of_new, tag_connect, &between);
  if (code == MPI_SUCCESS && between != MPI_COMM_NULL) {
    connections_.push_back(between);
    MPI_Comm_set_errhandler(between, MPI_ERRORS_RETURN);
    code = MPI_Intercomm_merge(between, later ? 1 : 0, &next);
  }
  if (code == MPI_SUCCESS && next != MPI_COMM_NULL) return {};
  return fail(ExitCode::communication, "MPI could not connect old and new ranks: {}", mpi_text(code));
}

// Exchanges an empty message with every rank of the new group. The first real exchange notices who has died
// by now.
void MpiWorld::greet(MPI_Comm next, std::int64_t timeout_ms) {
  int rank = 0, size = 0;
  MPI_Comm_rank(next, &rank);
  MPI_Comm_size(next, &size);
  struct Greeting {
    int peer;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::vector<Greeting> greetings;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    MPI_Irecv(nullptr, 0, MPI_BYTE, peer, tag_greeting, next,
              &greetings.emplace_back(Greeting{peer}).request);
    MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag_greeting, next,
              &greetings.emplace_back(Greeting{peer}).request);
  }
  const std::int64_t end_ns = env_->monotonic_ns() + timeout_ms * 1'000'000;
  bool pending = true;
  while (std::exchange(pending, false) && env_->monotonic_ns() < end_ns) {
    const std::vector<bool> failed = failed_ranks(next, size);
    for (Greeting& each : greetings) {
      if (failed[static_cast<std::size_t>(each.peer)]) continue;
      int complete = 1;
      if (test_when_complete(each.request, complete) == MPI_SUCCESS) pending = pending || complete == 0;
    }
    if (pending) env_->sleep_us(look_again_us);
  }
}

Result<void> MpiWorld::grow(int count, std::int64_t timeout_ms, const std::string& why) {
  const Deadline deadline(
      *env_, timeout_ms, {listener_, "new ranks"},
      fmt::format("holdfast: {}\nholdfast: rank {} waited {} ms for MPI to start new ranks and to "
                  "connect them: the run ends, start it again",
                  why, current().global_rank(current().rank()), timeout_ms),
      [this] { return cut_off_ ? cut_off_() : ""; }, leave_);
  const bool leads = current().rank() == 0;
  Result<int> started = 0;
  if (leads) started = count_started(count, timeout_ms);
  // The other ranks wait here, where they see who dies.
  const StartedRanks mine = started.ok() ? StartedRanks{.count = *started, .failure = {}}
                                         : StartedRanks{.count = 0, .failure = started.error().message};
  const Result<std::vector<StartedRanks>> reported = gather(current(), {*env_, timeout_ms, listener_}, mine);
  const bool go = reported.ok() && reported->front().failure.empty();
  std::vector<int> numbers = current().launched_ranks();
  const int coming = go ? reported->front().count : 0;
  for (int i = 0; i < coming; ++i) numbers.push_back(next_number_ + i);
  MPI_Comm bridge = MPI_COMM_NULL;
  if (!go) {
    dismiss_new_ranks();
  } else if (leads) {
    bridge = std::exchange(started_, std::nullopt)->bridge;
    const int size = static_cast<int>(numbers.size());
    for (int peer = 1; peer <= coming; ++peer) {
      MPI_Send(&size, 1, MPI_INT, peer, tag_invitation, bridge);
      MPI_Send(numbers.data(), size, MPI_INT, peer, tag_invitation, bridge);
    }
  }
  if (!reported.ok()) return reported.error();
  if (!go) return fail(ExitCode::communication, "{}", reported->front().failure);
  MPI_Comm next = MPI_COMM_NULL;
  if (Result<void> connected =
          connect(current().handle(), 0, leads ? bridge : MPI_COMM_SELF, /*later=*/false, next);
      !connected.ok()) {
    if (leads) MPIX_Comm_revoke(bridge);  // so that those who wait there do not
    current().abandon();
    return connected;
  }
  MPI_Comm_set_errhandler(next, MPI_ERRORS_RETURN);
  greet(next, timeout_ms);
  next_number_ += coming;
  begin_epoch(next, std::move(numbers));
  return {};
}

namespace {

// Waits for what the leader says to a new process: it is taken in, or it is not wanted any more, which ends
// it. There is no time limit: the leader's death is noticed, and a leader that hangs is killed by its guard.
class Invitation {
 public:
  Invitation(Env& env, MPI_Comm bridge, const ProcessIdentity& leader)
      : env_(&env), bridge_(bridge), leader_(leader), was_in_sight_(!leader.has_ended(env.processes())) {
    code_ = MPI_Irecv(&size_, 1, MPI_INT, 0, tag_invitation, bridge_, &request_);
  }

  void look_up() {
    if (code_ == MPI_SUCCESS && complete_ == 0) code_ = MPI_Test(&request_, &complete_, MPI_STATUS_IGNORE);
    bool leader_ended = false;
    if (complete_ == 0 && env_->monotonic_ns() - looked_ns_ > between_looks_ns) {
      leader_ended = was_in_sight_ && leader_.has_ended(env_->processes());
      looked_ns_ = env_->monotonic_ns();
    }
    if (code_ != MPI_SUCCESS || (complete_ != 0 && size_ == 0) || leader_ended)
      leave_silently(*env_, "those that started it lost a rank meanwhile, or have ended");
  }

  // Says that this process is ready, and returns the numbers of all that are to be in the group.
  std::vector<int> await() {
    if (code_ == MPI_SUCCESS) code_ = MPI_Send(nullptr, 0, MPI_BYTE, 0, tag_ready, bridge_);
    for (look_up(); complete_ == 0; look_up()) env_->sleep_us(look_again_us);
    std::vector<int> numbers(static_cast<std::size_t>(size_));
    code_ = MPI_Recv(numbers.data(), size_, MPI_INT, 0, tag_invitation, bridge_, MPI_STATUS_IGNORE);
    look_up();
    return numbers;
  }

 private:
  Env* env_;
  MPI_Comm bridge_;
  ProcessIdentity leader_;
  // False on another host, or in another container: there the id is that of another process, or of none.
  bool was_in_sight_;
  std::int64_t looked_ns_ = 0;
  MPI_Request request_ = MPI_REQUEST_NULL;
  int code_ = MPI_SUCCESS, complete_ = 0, size_ = 0;
};

}  // namespace

void MpiWorld::join(std::int64_t timeout_ms, const Preparation& preparation) {
  auto deadline = std::make_unique<Deadline>(
      *env_, timeout_ms, Deadline::WaitReport{},
      fmt::format("holdfast: a new rank waited {} ms for those that started it, and ends itself", timeout_ms),
      std::function<std::string()>(), [this] { env_->kill_self(); });
  came_later_ = true;
  MPI_Comm parent = MPI_COMM_NULL, bridge = MPI_COMM_NULL, next = MPI_COMM_NULL;
  MPI_Comm_get_parent(&parent);
  MPI_Comm_set_errhandler(parent, MPI_ERRORS_RETURN);
  connections_.push_back(parent);
  if (const int code = MPI_Intercomm_merge(parent, 1, &bridge); code != MPI_SUCCESS)
    leave_silently(*env_, mpi_text(code));
  MPI_Comm_set_errhandler(bridge, MPI_ERRORS_RETURN);
  connections_.push_back(bridge);
  std::string leader, task;
  int code = receive_text(leader, bridge);
  if (code == MPI_SUCCESS) code = receive_text(task, bridge);
  if (code != MPI_SUCCESS) leave_silently(*env_, mpi_text(code));
  deadline.reset();  // those that started it go on meanwhile
  Invitation invitation(*env_, bridge, record_from_text<ProcessIdentity>(leader).value());  // of this binary
  if (preparation && !task.empty()) preparation(task, [&] { invitation.look_up(); });
  std::vector<int> numbers = invitation.await();
  deadline = std::make_unique<Deadline>(
      *env_, timeout_ms, Deadline::WaitReport{},
      fmt::format("holdfast: a new rank waited {} ms to be taken in, and ends itself", timeout_ms),
      std::function<std::string()>(), [this] { env_->kill_self(); });
  if (const Result<void> connected = connect(MPI_COMM_WORLD, 0, bridge, /*later=*/true, next);
      !connected.ok())
    leave_silently(*env_, connected.error().message);
  MPI_Comm_set_errhandler(next, MPI_ERRORS_RETURN);
  greet(next, timeout_ms);
  next_number_ = numbers.back() + 1;
  begin_epoch(next, std::move(numbers));
}

#else
Result<void> MpiWorld::start_new_ranks(int, const std::string&, std::int64_t) {
  return fail(ExitCode::communication, "this MPI has no fault tolerance (ULFM): start the run again");
}
std::string MpiWorld::why_none_can_start() {
  return "";
}
NewRankState MpiWorld::new_rank_state() {
  return NewRankState::none;
}
void MpiWorld::dismiss_new_ranks() {}
Result<void> MpiWorld::shrink(std::int64_t, const std::string&) {
  return fail(ExitCode::communication, "this MPI has no fault tolerance (ULFM): start the run again");
}
Result<void> MpiWorld::grow(int, std::int64_t, const std::string&) {
  return fail(ExitCode::communication, "this MPI has no fault tolerance (ULFM): start the run again");
}
void MpiWorld::join(std::int64_t, const Preparation&) {
  leave_silently(*env_, "this MPI has no fault tolerance (ULFM)");
}
#endif

}  // namespace holdfast::parallel
