// MpiWorld: the communicators of a run's epochs over MPI. The first is MPI_COMM_WORLD; what follows is made
// of it by ULFM (MPIX_Comm_revoke and MPIX_Comm_shrink), where the MPI has that and it is switched on.
//
// None is ever freed, at most one for every death: so MPI never uses the number of an old one again, by which
// a late frame could come into a new one.
#pragma once

#include <memory>
#include <vector>

#include "parallel/membership.h"
#include "parallel/mpi/mpi_communicator.h"

namespace holdfast {

class MpiWorld final : public ShrinkingWorld {
 public:
  // `listener`: as in start_mpi().
  MpiWorld(Env& env, bool fault_tolerant, WaitListener* listener);
  MpiCommunicator& current() override { return *epochs_.back(); }
  Result<void> shrink(std::int64_t timeout_ms, const std::string& why) override;
  void watch(std::function<std::string()> cut_off) override { cut_off_ = std::move(cut_off); }

 private:
  Env* env_;
  WaitListener* listener_;
  std::function<std::string()> cut_off_;
  std::vector<std::unique_ptr<MpiCommunicator>> epochs_;
};

}  // namespace holdfast
