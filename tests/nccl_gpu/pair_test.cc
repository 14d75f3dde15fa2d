// Two ranks over NCCL, as a run has them: sessions and exchanges of two threads, on two GPUs, or on one where
// NCCL takes two ranks there.
#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "parallel/comm/collectives.h"
#include "parallel/local/local_communicator.h"
#include "parallel/nccl/nccl_session.h"
#include "parallel/tensor/tensor_group.h"
#include "runtime/device/host_access.h"
#include "tests/nccl_gpu/nccl_setup.h"
#include "tests/parallel/communicator_contract.h"

namespace holdfast::test {
namespace {

using test::timeout_ms;

constexpr int ranks = 2, exchanges = 2;
constexpr std::size_t area_bytes = std::size_t{24}
                                   << 20;  // what one rank sends in a round, and what it receives
constexpr std::array<std::size_t, 5> message_bytes = {1, 4096 + 12, 1'000'003, 64, std::size_t{8} << 20};

Waiter patient() {
  return {posix_env(), timeout_ms};
}

// A piece of a GPU's memory, of which the host reads and writes copies.
class GpuMemory {
 public:
  GpuMemory(int ordinal, std::size_t bytes) : device_(make(ordinal)), access_(*device_, plan_) {
    slot_ = plan_.reserve("a test", MemoryClass::workspace, bytes);
    Result<MemoryArena> arena = allocate_memory(*device_, plan_);
    HF_CHECK(arena.ok(), "{}", arena.error().message);
    arena_ = std::move(arena).value();
    access_.bind(*arena_);
  }
  std::span<std::byte> bytes() const { return arena_->bytes(slot_); }
  Device& device() { return *device_; }

  void write(const std::vector<std::byte>& content) {
    for (std::size_t at = 0; at < content.size();) {
      const std::size_t some = std::min<std::size_t>(content.size() - at, HostAccess::buffer_bytes);
      const std::span<std::byte> target = access_.to_write(bytes().subspan(at, some));
      std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(at), some, target.begin());
      access_.flush();
      at += some;
    }
  }
  std::vector<std::byte> read(std::size_t first, std::size_t count) {
    std::vector<std::byte> content;
    while (content.size() < count) {
      const std::size_t some = std::min<std::size_t>(count - content.size(), HostAccess::buffer_bytes);
      const std::span<const std::byte> source =
          access_.to_read(bytes().subspan(first + content.size(), some));
      content.insert(content.end(), source.begin(), source.end());
    }
    return content;
  }

 private:
  static std::unique_ptr<Device> make(int ordinal) {
    Result<std::unique_ptr<Device>> device = test::cuda_module().make_device({.ordinal = ordinal});
    HF_CHECK(device.ok(), "{}", device.error().message);
    return std::move(device).value();
  }

  std::unique_ptr<Device> device_;
  MemoryPlan plan_;
  HostAccess access_;
  MemoryPlan::Slot slot_;
  std::optional<MemoryArena> arena_;
};

struct Rank {
  Communicator* control = nullptr;
  NcclLibrary* library = nullptr;
  int gpu = 0;
  GpuMemory* memory = nullptr;  // 2 * area_bytes: what it sends, what it receives
};

class NcclPair : public testing::TestWithParam<int> {  // on so many GPUs
 protected:
  void SetUp() override {
    for (std::unique_ptr<NcclLibrary>& library : libraries_) library = nccl_.make();
    int gpus = test::doubled() ? ranks : 0;  // the emulator has as many as main() asks for
    if (!test::doubled()) {
      ASSERT_EQ(libraries_[0]->device_count(gpus), 0);
    }
    const int version = libraries_[0]->version();
    if (gpus < GetParam()) GTEST_SKIP() << "two GPUs are needed, and here is one";
    if (GetParam() < ranks && version < NcclLibrary::version_shared_gpus) {
      GTEST_SKIP() << fmt::format("NCCL {} is the first that takes two ranks on one GPU, and here is {}",
                                  nccl_version_text(NcclLibrary::version_shared_gpus),
                                  nccl_version_text(version));
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      libraries_[rank]->share_gpus(ranks / GetParam(), exchanges);
      gpus_[rank] = static_cast<int>(rank) % GetParam();
    }
  }

  // body(rank) on both, as threads.
  void run(const std::function<Result<void>(Rank&)>& body) {
    HF_EXPECT_OK(run_local_ranks(ranks, [&](Communicator& control) -> Result<void> {
      const auto rank = static_cast<std::size_t>(control.rank());
      GpuMemory memory(gpus_[rank], 2 * area_bytes);
      Rank mine{&control, libraries_[rank].get(), gpus_[rank], &memory};
      return body(mine);
    }));
  }

  static NcclSession session_of(const Rank& rank, std::uint64_t epoch) {
    return {*rank.library, posix_env(),
            NcclOptions{.device = rank.gpu,
                        .epoch = epoch,
                        .connect_timeout_ms = timeout_ms,
                        .abort_timeout_ms = timeout_ms,
                        .die = [](const std::string& text) { ADD_FAILURE() << text; }}};
  }

 private:
  test::NcclOfTest nccl_;
  std::array<std::unique_ptr<NcclLibrary>, ranks> libraries_;
  std::array<int, ranks> gpus_ = {};
};

// Returns what `rank` sends in a round: no two places, ranks and rounds look alike.
std::vector<std::byte> content_of(int rank, int round) {
  std::vector<std::byte> content(area_bytes);
  std::uint64_t state = static_cast<std::uint64_t>(rank) * 1000 + static_cast<std::uint64_t>(round) + 1;
  for (std::byte& byte : content) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56);
  }
  return content;
}

struct Opened {
  Transport* transport = nullptr;
  Transport::Number number = 0;
};

// Opens one exchange on `exchange` for each message, from `at` on in both areas.
Result<Opened> begin_messages(const Rank& rank, Transport& transport, std::size_t at) {
  const int peer = 1 - rank.control->rank();
  Opened last{.transport = &transport};
  for (const std::size_t bytes : message_bytes) {
    const Transport::Incoming incoming{.target = rank.memory->bytes().subspan(area_bytes + at, bytes),
                                       .peer = peer};
    const Transport::Outgoing outgoing{.source = rank.memory->bytes().subspan(at, bytes), .peer = peer};
    HF_TRY(last.number, transport.open(std::span(&incoming, 1)));
    HF_TRY_VOID(transport.send(last.number, std::span(&outgoing, 1)));
    at += (bytes + 63) / 64 * 64;
  }
  return last;
}

// One round over all exchanges, which each rank begins in its own order; all bytes are those of the peer.
Result<void> exchange_round(Rank& rank, std::array<Transport*, exchanges> order, int round) {
  rank.memory->write(content_of(rank.control->rank(), round));
  std::vector<Opened> opened;
  for (std::size_t i = 0; i < exchanges; ++i) {
    const std::size_t which = rank.control->rank() == 0 ? i : exchanges - 1 - i;
    HF_TRY(const Opened last, begin_messages(rank, *order[which], which * area_bytes / exchanges));
    opened.push_back(last);
  }
  for (const Opened& last : opened) {
    HF_TRY_VOID(finish_exchanges(*last.transport, patient(), last.number + 1, "a test"));
  }
  const std::vector<std::byte> expected = content_of(1 - rank.control->rank(), round);
  for (std::size_t i = 0; i < exchanges; ++i) {
    std::size_t at = i * area_bytes / exchanges;
    for (const std::size_t bytes : message_bytes) {
      const std::vector<std::byte> received = rank.memory->read(area_bytes + at, bytes);
      const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(at);
      EXPECT_TRUE(std::equal(received.begin(), received.end(), begin))
          << "rank " << rank.control->rank() << ", round " << round << ", exchange " << i << ", " << bytes;
      at += (bytes + 63) / 64 * 64;
    }
  }
  return {};
}

TEST_P(NcclPair, AllBytesArriveOverTwoCommunicatorsAtOnce) {
  run([](Rank& rank) -> Result<void> {
    NcclSession session = session_of(rank, 1);
    HF_TRY(const std::unique_ptr<Transport> data, session.connect(*rank.control, "data"));
    HF_TRY(const std::unique_ptr<Transport> tensor, session.connect(*rank.control, "tensor"));
    for (int round = 0; round < 3; ++round) {
      HF_TRY_VOID(exchange_round(rank, {data.get(), tensor.get()}, round));
    }
    HF_TRY_VOID(barrier(*rank.control, patient()));
    return session.abort_all("the test is over");
  });
}

struct Sums {
  std::int64_t rows = 0, columns = 0;
  int rounds = 0;
  Transport::Number exchanges_per_round = 0;
};

// Sums of slices and gathers of their rows, each of which needs the one before; the sum of what both ranks had doubles
// with every round.
Result<void> sum_and_gather(Rank& rank, Transport& transport, const Sums& shape) {
  const auto elements = static_cast<std::size_t>(shape.rows * shape.columns);
  const std::size_t bytes = elements * sizeof(float);
  const int number = rank.control->rank();
  const Waiter waiter = patient();
  Device& device = rank.memory->device();
  TensorGroup group(TensorShare{.slices = ranks, .first = number, .count = 1});
  group.connect(transport, device, waiter);
  std::vector<float> values(elements), expected(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>(i % 97) + 0.5F * static_cast<float>(number);
    expected[i] = std::ldexp(2 * static_cast<float>(i % 97) + 0.5F, shape.rounds - 1);
  }
  const std::span<const std::byte> content = std::as_bytes(std::span(values));
  rank.memory->write({content.begin(), content.end()});
  const auto place = [&](std::size_t index) {
    return reinterpret_cast<float*>(rank.memory->bytes().data() + index * bytes);
  };
  const Transport::Number first = transport.oldest();
  std::size_t source = 0;
  for (int round = 0; round < shape.rounds; ++round, source = 1 - source) {
    const std::size_t target = 1 - source;
    const SliceSums sums{
        .parts = place(source), .arrivals = place(2), .rows = shape.rows, .columns = shape.columns};
    HF_TRY(const TensorGroup::Scatter own_sum, group.begin_sum(device, sums));
    HF_TRY_VOID(group.finish_sum(device, own_sum, sums,
                                 {.y = place(target) + group.first_row(shape.rows) * shape.columns}));
    HF_TRY_VOID(group.all_gather(device, rank.memory->bytes().subspan(target * bytes, bytes)));
  }
  HF_TRY_VOID(group.finish());
  EXPECT_EQ(transport.oldest() - first,
            static_cast<Transport::Number>(shape.rounds) * shape.exchanges_per_round);
  const std::vector<std::byte> sum = rank.memory->read(source * bytes, bytes);
  std::memcpy(values.data(), sum.data(), bytes);
  EXPECT_EQ(values, expected);
  return barrier(*rank.control, patient());
}

// More exchanges than may be in the device's queue at once, and large ones, of which sums go in halves.
TEST_P(NcclPair, ADeviceOrdersTheExchangesOfATensorGroup) {
  run([](Rank& rank) -> Result<void> {
    NcclSession session = session_of(rank, 1);
    HF_TRY(const std::unique_ptr<Transport> transport, session.connect(*rank.control, "tensor"));
    HF_TRY_VOID(sum_and_gather(rank, *transport, {16, 64, 60, 2}));
    HF_TRY_VOID(sum_and_gather(rank, *transport, {32, 32768, 4, 3}));
    return session.abort_all("the test is over");
  });
}

// A kernel of rank 0 is on the GPU and waits for a message that never comes, as after the death of a peer.
TEST_P(NcclPair, AnAbortEndsAKernelThatWaitsAndTheNextEpochWorks) {
  run([](Rank& rank) -> Result<void> {
    {
      NcclSession session = session_of(rank, 1);
      HF_TRY(const std::unique_ptr<Transport> data, session.connect(*rank.control, "data"));
      if (rank.control->rank() == 0) {
        const Transport::Incoming incoming{.target = rank.memory->bytes().subspan(area_bytes, 4096),
                                           .peer = 1};
        HF_TRY(const Transport::Number number, data->open(std::span(&incoming, 1)));
        HF_TRY_VOID(data->send(number, {}));
        for (int i = 0; i < 100; ++i) {
          HF_TRY_VOID(outcome_of(data->advance()));
          posix_env().sleep_us(1000);
        }
        EXPECT_FALSE(data->received(number, 1));
      }
      HF_TRY_VOID(barrier(*rank.control, patient()));
      const auto passed_ms = [begin_ns = posix_env().monotonic_ns()] {
        return (posix_env().monotonic_ns() - begin_ns) / 1'000'000;
      };
      HF_TRY_VOID(session.stop_all("a peer is taken for dead"));
      const std::int64_t stopped_ms = passed_ms();
      HF_TRY_VOID(barrier(*rank.control, patient()));
      HF_TRY_VOID(session.abort_all("both have stopped"));
      fmt::print("rank {}: stopped after {} ms, ended after {} ms\n", rank.control->rank(), stopped_ms,
                 passed_ms());
    }
    NcclSession session = session_of(rank, 2);
    HF_TRY(const std::unique_ptr<Transport> data, session.connect(*rank.control, "data"));
    HF_TRY(const std::unique_ptr<Transport> tensor, session.connect(*rank.control, "tensor"));
    HF_TRY_VOID(exchange_round(rank, {data.get(), tensor.get()}, 0));
    HF_TRY_VOID(barrier(*rank.control, patient()));
    return session.abort_all("the test is over");
  });
}

INSTANTIATE_TEST_SUITE_P(On, NcclPair, testing::Values(1, 2), [](const testing::TestParamInfo<int>& on) {
  return on.param == 1 ? "OneGpu" : "TwoGpus";
});

}  // namespace
}  // namespace holdfast::test
