#include <array>

#include "parallel/lane_reduction.h"

namespace holdfast {
namespace {

// Requests of neighbouring buckets and peers, waited for together; on the stack, because this runs in the
// training loop. Every rank posts its messages in one order of (bucket, step), so the first one that has not
// arrived is always posted at both ends, wherever a rank's batch ends.
class Batch {
 public:
  explicit Batch(Communicator& communicator, const Waiter& waiter)
      : communicator_(&communicator), waiter_(&waiter) {}

  bool has_room(std::size_t count) const { return count_ + count <= requests_.size(); }
  void add(Communicator::Request request, int peer) {
    requests_[count_] = request;
    peers_[count_++] = peer;
  }
  Result<void> wait() {
    const std::size_t count = std::exchange(count_, 0);
    return waiter_->wait(*communicator_, std::span(requests_.data(), count), "the gathering of parameters",
                         std::span<const int>(peers_.data(), count));
  }

 private:
  Communicator* communicator_;
  const Waiter* waiter_;
  std::array<Communicator::Request, 2048> requests_;
  std::array<int, 2048> peers_;
  std::size_t count_ = 0;
};

}  // namespace

Result<void> gather_parameters(const BucketPlan& buckets, Communicator& communicator, const Waiter& waiter,
                               std::byte* parameters, std::size_t dtype_bytes) {
  const int rank = communicator.rank(), ranks = communicator.size();
  HF_CHECK(ranks == buckets.ranks());
  const auto bytes_of_range = [&](int bucket, int owner) {
    const ElementRange range = buckets.parameter_range(bucket, owner);
    return std::span(parameters + range.begin * dtype_bytes, range.size() * dtype_bytes);
  };
  Batch batch(communicator, waiter);
  for (int bucket = static_cast<int>(buckets.buckets().size());
       bucket-- > 0;) {  // backward order reversed: forward
    if (buckets.buckets()[static_cast<std::size_t>(bucket)].shadow_of >= 0) continue;
    const std::span<const std::byte> mine = bytes_of_range(bucket, rank);
    for (int step = 1; step < ranks; ++step) {  // every rank starts at another peer
      const int source = (rank - step + ranks) % ranks, target = (rank + step) % ranks;
      const std::span<std::byte> theirs = bytes_of_range(bucket, source);
      if (!batch.has_room(2)) HF_TRY_VOID(batch.wait());
      if (!theirs.empty()) {
        HF_TRY(const Communicator::Request request,
               communicator.receive(theirs, source, tag_parameter + bucket));
        batch.add(request, source);
      }
      if (!mine.empty()) {
        HF_TRY(const Communicator::Request request, communicator.send(mine, target, tag_parameter + bucket));
        batch.add(request, target);
      }
    }
  }
  return batch.wait();
}

}  // namespace holdfast
