#include "parallel/comm/launcher.h"

#include <fmt/core.h>

#include <charconv>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "runtime/os/process_identity.h"

namespace holdfast::parallel {
namespace {

// Variables set by mpirun of Open MPI; by that of MPICH, Intel MPI and others of that family; and by srun.
constexpr std::initializer_list<const char*> rank_names = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
constexpr const char* tasks_name = "SLURM_STEP_NUM_TASKS";
constexpr std::initializer_list<const char*> ranks_names = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", tasks_name};
constexpr std::initializer_list<const char*> ranks_on_host_names = {
    "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"};

constexpr std::initializer_list<const char*> rank_on_host_names = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                                                   "MPI_LOCALRANKID", "SLURM_LOCALID"};

struct StatedNumber {
  int number;
  std::string_view name;  // of the variable; empty: none is set
};

// Returns the leading number of the first variable that has one of at least `least` ("4" of Slurm's "4(x2)").
StatedNumber first_number(Env& env, std::initializer_list<const char*> names, int least) {
  for (const char* name : names) {
    const std::string text = env.variable(name);
    int number = least - 1;
    std::from_chars(text.data(), text.data() + text.size(), number);
    if (number >= least) return {number, name};
  }
  return {least, ""};
}

}  // namespace

bool launched_by_mpi(Env& env) {
  return !env.variable("OMPI_COMM_WORLD_SIZE").empty() || !env.variable("PMIX_RANK").empty() ||
         !env.variable("PMI_RANK").empty();
}

bool launched_by_ranks(Env& env) {
  return !env.variable("OMPI_PARENT_PORT").empty();
}

bool launched_by_srun(Env& env) {
  return env.variable("OMPI_COMM_WORLD_SIZE").empty() && first_number(env, {tasks_name}, 1).number > 1;
}

Result<void> check_tasks_are_ranks(Env& env) {
  if (launched_by_mpi(env) || !launched_by_srun(env)) return {};
  const int tasks = first_number(env, {tasks_name}, 1).number;
  return fail(
      ExitCode::config,
      "this process (host {}) is one of {} tasks that srun started ({}={}), and srun gave them no PMIx, by "
      "which ranks find each other: each would train a run of its own in the same directory. Start them "
      "with srun --mpi=pmix (srun --mpi=list says whether this Slurm has it), or use holdfast launch -np {} "
      "in the job. Where each task is to train another run, unset {}",
      env.host_name(), tasks, tasks_name, tasks, tasks, tasks_name);
}

int launched_rank(Env& env) {
  return first_number(env, rank_names, 0).number;
}

int launched_ranks(Env& env) {
  return launched_by_mpi(env) ? first_number(env, ranks_names, 1).number : 1;
}

int launched_ranks_on_host(Env& env) {
  return launched_by_mpi(env) ? first_number(env, ranks_on_host_names, 1).number : 1;
}

int launched_rank_on_host(Env& env) {
  return launched_by_mpi(env) ? first_number(env, rank_on_host_names, 0).number : 0;
}

// Uses the namespace of PMIx, without the part after its last @, which numbers what one mpirun has started.
// Other launchers are told apart by the process on this host that started all of the job's ranks.
std::string launched_job(Env& env) {
  if (!launched_by_mpi(env)) return fmt::format("alone-{}", env.process_id());
  const std::string job = env.variable("PMIX_NAMESPACE");
  if (!job.empty()) return job.substr(0, job.rfind('@'));
  const std::optional<ProcessFacts> self = env.processes().facts(env.process_id());
  const ProcessIdentity starter = ProcessIdentity::of(env.processes(), self.has_value() ? self->parent : 0);
  return fmt::format("job-{}-{}", starter.id, starter.started_ticks);
}

std::string launched_as(Env& env) {
  const StatedNumber ranks = first_number(env, ranks_names, 1);
  if (ranks.name.empty()) return fmt::format("rank {}", launched_rank(env));
  return fmt::format("rank {} of {} ({}={})", launched_rank(env), ranks.number, ranks.name, ranks.number);
}

}  // namespace holdfast::parallel
