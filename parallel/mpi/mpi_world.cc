#include "parallel/mpi/mpi_world.h"

#include <mpi-ext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <numeric>
#include <utility>

#include "parallel/collectives.h"
#include "parallel/mpi/deadline.h"

namespace holdfast {
namespace {

constexpr int tag_invitation = 1, tag_connect = 2;  // of the leader with those that it started
constexpr int tag_greeting = tag_never_sent;        // of a new epoch, before anything else is there
constexpr std::int64_t look_again_us = 200;

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

// What is not heard of any more by those that go on, and takes nobody with it.
[[noreturn]] void leave_silently(Env& env, const std::string& why) {
  std::fprintf(stderr, "holdfast: a new rank leaves before it has joined: %s\n", why.c_str());
  std::fflush(stderr);
  while (true) env.kill_self();
}

// The program and its arguments, as this process was started.
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
  current().close();
  if (connections_.empty()) return;
  for (MPI_Comm& connection : connections_) MPI_Comm_free(&connection);
  for (const std::unique_ptr<MpiCommunicator>& epoch : epochs_) {
    MPI_Comm communicator = epoch->handle();
    if (communicator != MPI_COMM_WORLD) MPI_Comm_free(&communicator);
  }
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
// Of what shrink promises about memory: everyone that comes into it has drained its requests before.
Result<void> MpiWorld::shrink(std::int64_t timeout_ms, const std::string& why) {
  current().abandon();
  const int rank = current().global_rank(current().rank());
  if (!current().drained()) {
    return fail(ExitCode::communication,
                "messages of rank {} to a rank that hangs are still under way: start the run again", rank);
  }
  const Deadline deadline(
      *env_, timeout_ms, {listener_, "coming together again"},
      fmt::format("holdfast: {}\nholdfast: rank {} then waited {} ms for the other ranks to come "
                  "together without whom it had lost: one of them hangs or is out of reach; the "
                  "run ends, start it again",
                  why, rank, timeout_ms),
      [this] { return cut_off_ ? cut_off_() : ""; });
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

// Of the leader. What could be started is connected with it, and with nobody else so far.
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

// Who has died by now is for the first real exchange to notice.
void MpiWorld::greet(MPI_Comm next, std::int64_t timeout_ms) {
  int rank = 0, size = 0;
  MPI_Comm_rank(next, &rank);
  MPI_Comm_size(next, &size);
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    MPI_Irecv(nullptr, 0, MPI_BYTE, peer, tag_greeting, next, &requests.emplace_back(MPI_REQUEST_NULL));
    MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag_greeting, next, &requests.emplace_back(MPI_REQUEST_NULL));
  }
  const std::int64_t end_ns = env_->monotonic_ns() + timeout_ms * 1'000'000;
  bool pending = true;
  while (std::exchange(pending, false) && env_->monotonic_ns() < end_ns) {
    for (MPI_Request& request : requests) {
      int complete = 1;
      if (request != MPI_REQUEST_NULL && MPI_Test(&request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS)
        pending = pending || complete == 0;
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
      [this] { return cut_off_ ? cut_off_() : ""; });
  const bool leads = current().rank() == 0;
  MPI_Comm bridge = MPI_COMM_NULL;
  Result<void> started;
  if (leads) started = start_processes(count, bridge);
  // The others wait here, where they see who dies.
  const Result<std::vector<std::string>> told =
      all_gather_text(current(), {*env_, timeout_ms, listener_}, started.ok() ? "" : started.error().message);
  const bool go = told.ok() && told->front().empty();
  std::vector<int> numbers = current().launched_ranks();
  for (int i = 0; i < count; ++i) numbers.push_back(next_number_ + i);
  if (bridge != MPI_COMM_NULL) {
    const int size = go ? static_cast<int>(numbers.size()) : 0;
    for (int peer = 1; peer <= count; ++peer) {
      MPI_Send(&size, 1, MPI_INT, peer, tag_invitation, bridge);
      if (go) MPI_Send(numbers.data(), size, MPI_INT, peer, tag_invitation, bridge);
    }
  }
  if (!told.ok()) return told.error();
  if (!go) return fail(ExitCode::communication, "{}", told->front());
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
  next_number_ += count;
  begin_epoch(next, std::move(numbers));
  return {};
}

void MpiWorld::join(std::int64_t timeout_ms) {
  const Deadline deadline(*env_, timeout_ms, {},
                          fmt::format("holdfast: a new rank waited {} ms for those that started it, and ends "
                                      "itself",
                                      timeout_ms),
                          {}, Deadline::End::die);
  came_later_ = true;
  MPI_Comm parent = MPI_COMM_NULL, bridge = MPI_COMM_NULL, next = MPI_COMM_NULL;
  MPI_Comm_get_parent(&parent);
  MPI_Comm_set_errhandler(parent, MPI_ERRORS_RETURN);
  connections_.push_back(parent);
  if (const int code = MPI_Intercomm_merge(parent, 1, &bridge); code != MPI_SUCCESS)
    leave_silently(*env_, mpi_text(code));
  MPI_Comm_set_errhandler(bridge, MPI_ERRORS_RETURN);
  connections_.push_back(bridge);
  int size = 0;
  int code = MPI_Recv(&size, 1, MPI_INT, 0, tag_invitation, bridge, MPI_STATUS_IGNORE);
  std::vector<int> numbers(static_cast<std::size_t>(std::max(0, size)));
  if (code == MPI_SUCCESS && size > 0)
    code = MPI_Recv(numbers.data(), size, MPI_INT, 0, tag_invitation, bridge, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS || size == 0) leave_silently(*env_, "those that started it lost a rank meanwhile");
  if (const Result<void> connected = connect(MPI_COMM_WORLD, 0, bridge, /*later=*/true, next);
      !connected.ok())
    leave_silently(*env_, connected.error().message);
  MPI_Comm_set_errhandler(next, MPI_ERRORS_RETURN);
  greet(next, timeout_ms);
  next_number_ = numbers.back() + 1;
  begin_epoch(next, std::move(numbers));
}
#else
Result<void> MpiWorld::shrink(std::int64_t, const std::string&) {
  return fail(ExitCode::communication, "this MPI has no fault tolerance (ULFM): start the run again");
}
Result<void> MpiWorld::grow(int, std::int64_t, const std::string&) {
  return fail(ExitCode::communication, "this MPI has no fault tolerance (ULFM): start the run again");
}
void MpiWorld::join(std::int64_t) {
  leave_silently(*env_, "this MPI has no fault tolerance (ULFM)");
}
#endif

}  // namespace holdfast
