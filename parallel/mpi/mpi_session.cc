#include "parallel/mpi/mpi_session.h"

#include <mpi.h>

#include <mpi-ext.h>  // does not include mpi.h, which it needs

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <initializer_list>

#include "parallel/mpi/deadline.h"
#include "parallel/mpi/mpi_communicator.h"

namespace holdfast {
namespace {

// The leading number of an environment variable ("4" of Slurm's "4(x2)"); 0 when there is none.
int leading_number(Env& env, const char* name) {
  const std::string text = env.variable(name);
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return std::max(number, 0);
}

int first_number(Env& env, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const int number = leading_number(env, name); number > 0) return number;
  }
  return 1;
}

// "Open MPI v5.0.11, package: ..." -> "Open MPI 5.0.11"; other libraries: their first line.
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string name(text, static_cast<std::size_t>(length));
  name.resize(std::min(name.find_first_of(",\n"), name.size()));
  if (const std::size_t version = name.find(" v");
      name.starts_with("Open MPI") && version != std::string::npos) {
    name.erase(version + 1, 1);
  }
  return name;
}

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

class Session final : public MpiSession {
 public:
  Session(Env& env, MpiFacts facts)
      : env_(&env), facts_(std::move(facts)), world_(MPI_COMM_WORLD, facts_.fault_tolerant) {}

  // Never finalises: a session that goes without finish() saw an error, and MPI_Finalize could wait for the
  // dead.
  ~Session() override = default;

  Communicator& world() override { return world_; }
  MpiFacts facts() const override { return facts_; }

  Result<void> finish(std::int64_t timeout_ms) override {
    const Deadline deadline(
        *env_, timeout_ms,
        fmt::format("rank {} of {} (host {}): leaving MPI took longer than {} ms: another rank never "
                    "came to its end; this process ends itself",
                    world_.rank(), world_.size(), env_->host_name(), timeout_ms));
    world_.close();
    if (const int code = MPI_Finalize(); code != MPI_SUCCESS) {
      return fail(ExitCode::communication, "leaving MPI failed: {}", mpi_text(code));
    }
    return {};
  }

  [[noreturn]] void leave_after_error(ExitCode code) override {
    world_.abandon();
    std::fflush(nullptr);
    if (world_.rank() != 0) env_->sleep_us(1'000'000);
    _exit(static_cast<int>(code));  // no destructors: kernels may still run on a thread of their own
  }

 private:
  Env* env_;
  MpiFacts facts_;
  MpiCommunicator world_;
};

}  // namespace

bool launched_by_mpi(Env& env) {
  return !env.variable("OMPI_COMM_WORLD_SIZE").empty() || !env.variable("PMIX_RANK").empty() ||
         !env.variable("PMI_RANK").empty();
}

int launched_ranks(Env& env) {
  if (!launched_by_mpi(env)) return 1;
  return first_number(env, {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
}

int launched_ranks_on_host(Env& env) {
  if (!launched_by_mpi(env)) return 1;
  return first_number(env, {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_TASKS_PER_NODE"});
}

MpiFacts mpi_library_facts() {
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
  return {.library = library_name(), .fault_tolerant = true};
#else
  return {.library = library_name(), .fault_tolerant = false};
#endif
}

Result<std::unique_ptr<MpiSession>> MpiSession::start(Env& env, std::int64_t join_timeout_ms) {
  int provided = MPI_THREAD_SINGLE;
  int code = MPI_SUCCESS;
  {
    const Deadline deadline(
        env, join_timeout_ms,
        fmt::format("rank {} (host {}): waited {} ms in MPI_Init for the other ranks of {}: one of them "
                    "failed before it "
                    "joined (its own output says why) or its host is out of reach; this process ends itself",
                    env.variable("OMPI_COMM_WORLD_RANK"), env.host_name(), join_timeout_ms,
                    launched_ranks(env)));
    code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  }
  if (code != MPI_SUCCESS) return fail(ExitCode::communication, "MPI did not start: {}", mpi_text(code));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_SERIALIZED) {
    return fail(
        ExitCode::communication,
        "{} was built without MPI_THREAD_SERIALIZED, which is needed: run tools/bootstrap, which installs an "
        "Open MPI that has it",
        library_name());
  }
  MpiFacts facts = mpi_library_facts();
  const std::string switched_on = env.variable("OMPI_MCA_mpi_ft_enable");  // set by mpirun --with-ft ulfm
  facts.fault_tolerant = facts.fault_tolerant && (switched_on == "1" || switched_on == "true");
  return std::unique_ptr<MpiSession>(std::make_unique<Session>(env, std::move(facts)));
}

}  // namespace holdfast
