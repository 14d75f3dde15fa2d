#include "parallel/mpi/mpi_calls.h"

#include <mpi-ext.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <utility>

namespace holdfast::parallel {

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
std::vector<bool> failed_ranks(MPI_Comm communicator, int size) {
  std::vector<bool> all_failed(static_cast<std::size_t>(size));
  MPI_Group failed = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(communicator, &failed) != MPI_SUCCESS) return all_failed;
  int count = 0;
  MPI_Group_size(failed, &count);
  std::vector<int> own(static_cast<std::size_t>(count)), ranks(own.size());
  std::iota(own.begin(), own.end(), 0);
  MPI_Comm_group(communicator, &all);
  MPI_Group_translate_ranks(failed, count, own.data(), all, ranks.data());
  MPI_Group_free(&all);
  MPI_Group_free(&failed);
  for (const int rank : ranks) all_failed[static_cast<std::size_t>(rank)] = true;
  return all_failed;
}
#else
std::vector<bool> failed_ranks(MPI_Comm, int size) {
  return std::vector<bool>(static_cast<std::size_t>(size));
}
#endif

int test_when_complete(MPI_Request& request, int& complete) {
  if (request != MPI_REQUEST_NULL) {
    const int code = MPI_Request_get_status(request, &complete, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || complete == 0) return code;
  }
  return MPI_Test(&request, &complete, MPI_STATUS_IGNORE);
}

Deadline::Deadline(Env& env, std::int64_t timeout_ms, const WaitReport& reported, std::string sentence,
                   std::function<std::string()> sooner, std::function<void()> leave)
    : env_(&env), reported_(reported), sooner_(std::move(sooner)) {
  thread_ = std::thread([this, timeout_ms, leave = std::move(leave), text = std::move(sentence)] {
    if (wait_for_end(timeout_ms)) return;
    if (said_sooner_.empty()) {
      std::fprintf(stderr, "%s\n", text.c_str());
    } else {
      std::fprintf(stderr, "holdfast: %s; the run ends, start it again\n", said_sooner_.c_str());
    }
    std::fflush(stderr);
    if (leave) leave();
    _exit(static_cast<int>(ExitCode::communication));
  });
}

Deadline::~Deadline() {
  {
    const std::lock_guard guard(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
  if (has_reported_) reported_.listener->on_resume();
}

// False: the time is over.
bool Deadline::wait_for_end(std::int64_t timeout_ms) {
  constexpr std::int64_t between_beats_ns = 20'000'000;
  const std::int64_t begin_ns = env_->monotonic_ns();
  const std::int64_t end_ns = begin_ns + timeout_ms * 1'000'000;
  std::unique_lock lock(mutex_);
  while (true) {
    const std::int64_t left_ns = end_ns - env_->monotonic_ns();
    const bool looks_up = reported_.listener != nullptr || sooner_;
    const std::int64_t slice_ns = looks_up ? std::min(left_ns, between_beats_ns) : left_ns;
    if (changed_.wait_for(lock, std::chrono::nanoseconds(slice_ns), [this] { return done_; })) return true;
    const std::int64_t now_ns = env_->monotonic_ns();
    if (now_ns >= end_ns) return false;
    if (sooner_) said_sooner_ = sooner_();
    if (!said_sooner_.empty()) return false;
    if (reported_.listener == nullptr) continue;
    reported_.listener->on_wait(begin_ns, now_ns, {.operation = reported_.operation});
    has_reported_ = true;
  }
}

}  // namespace holdfast::parallel
