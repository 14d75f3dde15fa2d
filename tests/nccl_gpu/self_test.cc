// One GPU shows this much of NCCL: communicators of one rank that send to themselves, are aborted together,
// and are made again and again.
#include <fmt/core.h>

#include <filesystem>

#include "parallel/comm/collectives.h"
#include "parallel/nccl/nccl_communicators.h"
#include "runtime/device/cuda_error.h"
#include "tests/nccl_gpu/nccl_setup.h"

namespace holdfast::test {
namespace {

using test::timeout_ms;

constexpr std::size_t own_message_bytes = std::size_t{1} << 20;

void wait_until_ready(NcclLibrary& library, NcclComm comm) {
  PollBackoff backoff(posix_env(), timeout_ms);
  NcclResult state = NcclResult::in_progress;
  while (state == NcclResult::in_progress) {
    ASSERT_EQ(library.comm_state(comm, state), NcclResult::success);
    ASSERT_TRUE(backoff.pause()) << "in progress for " << timeout_ms << " ms";
  }
  ASSERT_EQ(state, NcclResult::success) << library.last_error(comm);
}

void wait_until_reached(NcclLibrary& library, CudaEvent event) {
  PollBackoff backoff(posix_env(), timeout_ms);
  CudaError error = library.event_query(event);
  while (cuda_error_class(error) == CudaErrorClass::not_ready) {
    ASSERT_TRUE(backoff.pause()) << "not reached for " << timeout_ms << " ms";
    error = library.event_query(event);
  }
  ASSERT_EQ(error, 0) << library.text(error);
}

void expect_fine(NcclLibrary& library, NcclResult result) {
  EXPECT_TRUE(result == NcclResult::success || result == NcclResult::in_progress) << library.text(result);
}

// A communicator of one rank with all that belongs to it; aborted with the others of `communicators`.
NcclLink& add_link(NcclLibrary& library, NcclCommunicators& communicators, const std::string& name) {
  NcclLink& link = communicators.add({.name = name});
  NcclUniqueId id;
  EXPECT_EQ(library.unique_id(id), NcclResult::success);
  EXPECT_EQ(library.stream_create(link.stream), 0);
  EXPECT_EQ(library.event_create(link.events.emplace_back()), 0);
  EXPECT_EQ(library.allocate(&link.memory, 2 * own_message_bytes), 0);
  expect_fine(
      library,
      library.comm_init(
          link.comm, {.ranks = 1, .id = id, .rank = 0, .name = link.name, .max_ctas = library.max_ctas()}));
  wait_until_ready(library, link.comm);
  link.started = true;
  return link;
}

void send_to_itself(NcclLibrary& library, NcclLink& link) {
  ASSERT_EQ(library.group_start(), NcclResult::success);
  expect_fine(library, library.send(link.memory, own_message_bytes, 0, link.comm, link.stream));
  expect_fine(library, library.receive(static_cast<char*>(link.memory) + own_message_bytes, own_message_bytes,
                                       0, link.comm, link.stream));
  expect_fine(library, library.group_end());
  ASSERT_NO_FATAL_FAILURE(wait_until_ready(library, link.comm));
  ASSERT_EQ(library.event_record(link.events.front(), link.stream), 0);
  ASSERT_NO_FATAL_FAILURE(wait_until_reached(library, link.events.front()));
}

NcclEnd end_that_fails() {
  return {
      .device = 0, .timeout_ms = timeout_ms, .die = [](const std::string& text) { ADD_FAILURE() << text; }};
}

TEST(NcclOnAGpu, TwoCommunicatorsSendToThemselvesAndAreAbortedTogether) {
  test::NcclOfTest nccl;
  const std::unique_ptr<NcclLibrary> library = nccl.make();
  ASSERT_EQ(library->set_device(0), 0);
  library->share_gpus(1, 2);
  NcclCommunicators communicators(*library, posix_env(), end_that_fails());
  for (const char* name : {"holdfast-e1-data", "holdfast-e1-tensor"}) {
    NcclLink& link = add_link(*library, communicators, name);
    for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(send_to_itself(*library, link));
  }
  const Result<void> ended = communicators.abort_all("the test is over");
  EXPECT_TRUE(ended.ok()) << ended.error().message;
}

// Counts what a process holds; it shrinks and grows by what was not given back.
struct Held {
  std::size_t descriptors = 0, threads = 0, free_gpu_bytes = 0;
};

std::size_t entries_of(const char* directory) {
  using Iterator = std::filesystem::directory_iterator;
  return static_cast<std::size_t>(std::distance(Iterator(directory), Iterator()));
}

Held held_now(NcclLibrary& library) {
  Held held{.descriptors = entries_of("/proc/self/fd"), .threads = entries_of("/proc/self/task")};
  EXPECT_EQ(library.free_memory(held.free_gpu_bytes), 0);
  return held;
}

std::string to_text(const Held& held) {
  return fmt::format("{} descriptors, {} threads, {} MiB of the GPU free", held.descriptors, held.threads,
                     held.free_gpu_bytes >> 20);
}

// A run recovers many times: NCCL's leaks would end it in the end.
TEST(NcclOnAGpu, ACommunicatorThatIsMadeFiftyTimesLeavesNothing) {
  constexpr int rounds = 50, first_rounds = 5;
  constexpr std::size_t slack_bytes = std::size_t{16} << 20;  // less than half a MiB a round
  test::NcclOfTest nccl;
  const std::unique_ptr<NcclLibrary> library = nccl.make();
  ASSERT_EQ(library->set_device(0), 0);
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  Held early;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    if (round == first_rounds) early = held_now(*library);
    NcclCommunicators communicators(*library, posix_env(), end_that_fails());
    NcclLink& link = add_link(*library, communicators, fmt::format("holdfast-e{}-data", round));
    ASSERT_NO_FATAL_FAILURE(send_to_itself(*library, link));
    const Result<void> stopped = communicators.stop_all("the next epoch begins");
    ASSERT_TRUE(stopped.ok()) << stopped.error().message;
    const Result<void> ended = communicators.abort_all("all have stopped");
    ASSERT_TRUE(ended.ok()) << ended.error().message;
  }
  const Held late = held_now(*library);
  fmt::print("{} ms for {} rounds; after {}: {}; after all: {}\n",
             (posix_env().monotonic_ns() - begin_ns) / 1'000'000, rounds, first_rounds, to_text(early),
             to_text(late));
  EXPECT_LE(late.descriptors, early.descriptors);
  EXPECT_LE(late.threads, early.threads);
  EXPECT_GE(late.free_gpu_bytes + slack_bytes, early.free_gpu_bytes);
}

}  // namespace
}  // namespace holdfast::test
