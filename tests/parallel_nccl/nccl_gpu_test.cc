// The real NCCL on a real GPU, as far as one GPU goes: a communicator of one rank that sends to itself.
// Skipped with the loader's sentence where there is none.
#include <gtest/gtest.h>

#include "kernels/cuda_error.h"
#include "parallel/collectives.h"
#include "parallel/nccl/nccl_communicators.h"
#include "real_nccl.h"

namespace holdfast {
namespace {

constexpr std::int64_t timeout_ms = 60'000;

void wait_until_ready(NcclLibrary& library, NcclComm comm) {
  Rest pause(posix_env(), timeout_ms);
  NcclResult state = NcclResult::in_progress;
  while (state == NcclResult::in_progress) {
    ASSERT_EQ(library.comm_state(comm, state), NcclResult::success);
    ASSERT_TRUE(pause.rest()) << "in progress for " << timeout_ms << " ms";
  }
  ASSERT_EQ(state, NcclResult::success) << library.last_error(comm);
}

void wait_until_reached(NcclLibrary& library, CudaEvent event) {
  Rest pause(posix_env(), timeout_ms);
  CudaError error = library.event_query(event);
  while (cuda_error_class(error) == CudaErrorClass::not_ready) {
    ASSERT_TRUE(pause.rest()) << "not reached for " << timeout_ms << " ms";
    error = library.event_query(event);
  }
  ASSERT_EQ(error, 0) << library.text(error);
}

void expect_fine(NcclLibrary& library, NcclResult result) {
  EXPECT_TRUE(result == NcclResult::success || result == NcclResult::in_progress) << library.text(result);
}

TEST(NcclOnAGpu, TwoCommunicatorsSendToThemselvesAndAreAbortedTogether) {
  Result<std::unique_ptr<NcclLibrary>> loaded = test::load_real_nccl();
  if (!loaded.ok()) GTEST_SKIP() << loaded.error().message;
  NcclLibrary& library = **loaded;
  std::vector<std::string> deaths;
  NcclCommunicators communicators(library, posix_env(),
                                  {.device = 0,
                                   .timeout_ms = timeout_ms,
                                   .die = [&deaths](const std::string& text) { deaths.push_back(text); }});
  ASSERT_EQ(library.set_device(0), 0);
  constexpr std::size_t bytes = 1 << 20;
  for (const char* name : {"holdfast-e1-data", "holdfast-e1-tensor"}) {
    NcclLink& link = communicators.add({.name = name});
    NcclUniqueId id;
    ASSERT_EQ(library.unique_id(id), NcclResult::success);
    ASSERT_EQ(library.stream_create(link.stream), 0);
    CudaEvent event = nullptr;
    ASSERT_EQ(library.event_create(event), 0);
    link.events.push_back(event);
    ASSERT_EQ(library.allocate(&link.memory, 2 * bytes), 0);
    expect_fine(library, library.comm_init(link.comm, 1, id, 0, link.name));
    ASSERT_NO_FATAL_FAILURE(wait_until_ready(library, link.comm));
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(library.group_start(), NcclResult::success);
      expect_fine(library, library.send(link.memory, bytes, 0, link.comm, link.stream));
      expect_fine(library,
                  library.receive(static_cast<char*>(link.memory) + bytes, bytes, 0, link.comm, link.stream));
      expect_fine(library, library.group_end());
      ASSERT_NO_FATAL_FAILURE(wait_until_ready(library, link.comm));
      ASSERT_EQ(library.event_record(event, link.stream), 0);
      ASSERT_NO_FATAL_FAILURE(wait_until_reached(library, event));
    }
  }
  const Result<void> ended = communicators.abort_all("the test is over");
  EXPECT_TRUE(ended.ok()) << ended.error().message;
  EXPECT_TRUE(deaths.empty());
}

}  // namespace
}  // namespace holdfast
