#include "growth_memory.h"

#include <mpi.h>

#include <mpi-ext.h>  // does not include mpi.h, which it needs

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace holdfast::test {
namespace {

[[noreturn]] void die() {
  std::fflush(nullptr);
  while (true) kill(getpid(), SIGKILL);
}

// Returns the anonymous memory of this process, in bytes.
long anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::atol(line.c_str() + std::strlen("RssAnon:")) * 1024;
  }
  return 0;
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
constexpr int tag_connect = 2, tag_message = 3, tag_never_sent = 4;
constexpr int exchanges = 10;

void survive_errors(MPI_Comm communicator) {
  MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
}

void exchange(MPI_Comm pair, int peer, std::span<const int> message_bytes) {
  std::vector<char> sent(static_cast<std::size_t>(std::ranges::max(message_bytes))), received(sent.size());
  for (int round = 0; round < exchanges; ++round) {
    for (const int bytes : message_bytes) {
      MPI_Request requests[2];
      MPI_Irecv(received.data(), bytes, MPI_BYTE, peer, tag_message, pair, &requests[0]);
      MPI_Isend(sent.data(), bytes, MPI_BYTE, peer, tag_message, pair, &requests[1]);
      MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
  }
}

// Connects `mine` and the other group over the bridge between their leaders, as MpiWorld::connect() does.
MPI_Comm connect(MPI_Comm mine, MPI_Comm bridge, bool later) {
  MPI_Comm between = MPI_COMM_NULL, next = MPI_COMM_NULL;
  MPI_Intercomm_create(mine, 0, bridge, later ? 0 : 1, tag_connect, &between);
  survive_errors(between);
  MPI_Intercomm_merge(between, later ? 1 : 0, &next);
  survive_errors(next);
  return next;
}

[[noreturn]] void be_the_one_that_dies(MPI_Comm parent, std::span<const int> message_bytes) {
  MPI_Comm bridge = MPI_COMM_NULL;
  survive_errors(parent);
  MPI_Intercomm_merge(parent, 1, &bridge);
  exchange(connect(MPI_COMM_WORLD, bridge, /*later=*/true), 0, message_bytes);
  die();
}

// Goes through a growth, messages, a death and its shrink. Returns the group that is left.
MPI_Comm grow_and_shrink(MPI_Comm alone, const std::string& program, std::vector<char*>& arguments,
                         std::span<const int> message_bytes) {
  MPI_Comm started = MPI_COMM_NULL, bridge = MPI_COMM_NULL, left = MPI_COMM_NULL;
  if (MPI_Comm_spawn(program.c_str(), arguments.data(), 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &started,
                     MPI_ERRCODES_IGNORE) != MPI_SUCCESS) {
    std::puts("FAILED: MPI could not start a process");
    die();
  }
  survive_errors(started);
  MPI_Intercomm_merge(started, 0, &bridge);
  survive_errors(bridge);
  MPI_Comm both = connect(alone, bridge, /*later=*/false);
  exchange(both, 1, message_bytes);
  int found = 0;
  while (MPI_Iprobe(MPI_ANY_SOURCE, tag_never_sent, both, &found, MPI_STATUS_IGNORE) == MPI_SUCCESS)
    usleep(1'000);
  MPIX_Comm_revoke(both);
  MPIX_Comm_shrink(both, &left);
  survive_errors(left);
  return left;
}
#endif

}  // namespace

void measure_growth_memory(const std::string& program, int growths, std::span<const int> message_bytes) {
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  survive_errors(MPI_COMM_WORLD);
  survive_errors(MPI_COMM_SELF);
  MPI_Comm parent = MPI_COMM_NULL;
  MPI_Comm_get_parent(&parent);
  if (parent != MPI_COMM_NULL) be_the_one_that_dies(parent, message_bytes);
  std::vector<std::string> words = {"memory", std::to_string(growths)};
  for (const int bytes : message_bytes) words.push_back(std::to_string(bytes));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  MPI_Comm alone = MPI_COMM_WORLD;
  const int warm_up = std::max(3, growths / 10);
  long before = 0;
  for (int growth = 0; growth < growths; ++growth) {
    alone = grow_and_shrink(alone, program, arguments, message_bytes);
    if (growth + 1 == warm_up) before = anonymous_memory();
  }
  std::printf("%ld bytes each\n", (anonymous_memory() - before) / std::max(1, growths - warm_up));
  die();
#else
  static_cast<void>(program), static_cast<void>(growths), static_cast<void>(message_bytes);
  std::puts("FAILED: this MPI has no fault tolerance (ULFM)");
  die();
#endif
}

}  // namespace holdfast::test
