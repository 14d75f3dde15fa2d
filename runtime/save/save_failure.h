// Says what becomes of a part of a checkpoint that cannot be written: it is tried again for a while, and then all
// ranks find out together whether some of them are unfit for it, or none can write now. The same for what one rank
// reads or writes for all.
#pragma once

#include <functional>

#include "checkpoint/store.h"
#include "runtime/save/disk_tier.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

// Writes this rank's shard by `write`, and again as retry_storage() says. A disk that is full for all is not tried
// again: the next save that is due is another try. `gives_up`: asked between attempts; true ends them.
Result<ShardFile> write_shard_repeatedly(Env& env, const DiskTier& tier,
                                         const std::function<Result<ShardFile>()>& write,
                                         const std::function<bool()>& gives_up);

// Agrees on the outcome of what each rank has written of the save of this step. Where some have failed, each tries
// now whether it can write there at all. If those can that had not failed, and the run can spare the others, these are
// unfit: the reach of the error is that of agree_on_fitness(). Else it is that of agree_on_outcome(), as where a disk
// is full for all, or fails for all since some had written their part.
Result<void> agree_on_written(const StateView& view, const DiskTier& tier, const CheckpointStore& store,
                              std::uint64_t step, const Result<void>& mine);

// Writes a small file into a directory, which it makes if need be, and removes it.
Result<void> prove_writing(Env& env, const std::string& directory, int rank);

// Returns the outcome of what one rank, or one of each storage domain, has done for all: `agreed`, the one that all have
// agreed on. Where that failed for a reason of a host or of this minute, all ranks `try_it`. Those whose own (`mine`)
// has failed and whose trial fails, too, are unfit if another rank can (agree_on_fitness()): what fails has to be a part
// of `try_it`, else an error that is everywhere is taken for that of a host.
Result<void> agree_on_trial(const RankInputs& inputs, const Waiter& patient, const Result<void>& agreed,
                            const Result<void>& mine, const std::function<Result<void>()>& try_it);

// Returns whether some ranks are unfit, which agree_on_written() or agree_on_trial() has found: they leave, and the others go on.
bool is_of_unfit_ranks(const Error& error);

}  // namespace holdfast::save
