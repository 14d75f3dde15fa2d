#include "parallel/mpi/mpi_session.h"

#include <fmt/core.h>
#include <mpi.h>

#include <mpi-ext.h>  // does not include mpi.h, which it needs

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "parallel/comm/launcher.h"
#include "parallel/mpi/mpi_calls.h"
#include "parallel/mpi/mpi_world.h"
#include "runtime/os/paths.h"

namespace holdfast::parallel {
namespace {

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

class Session final : public MpiSession {
 public:
  Session(Env& env, MpiFacts facts, WaitListener* listener)
      : env_(&env),
        facts_(std::move(facts)),
        listener_(listener),
        world_(env, facts_.fault_tolerant, listener) {}
  void join_those_that_started_it(std::int64_t timeout_ms, const Preparation& preparation) {
    world_.join(timeout_ms, preparation);
  }

  // Does not finalise: a session that ends without finish() saw an error, and MPI_Finalize could wait for
  // dead ranks.
  ~Session() override = default;

  Communicator& world() override { return world_.current(); }
  ShrinkingWorld* shrinking_world() override { return facts_.fault_tolerant ? &world_ : nullptr; }
  MpiFacts facts() const override { return facts_; }

  Result<void> finish(std::int64_t timeout_ms) override {
    const Deadline deadline(
        *env_, timeout_ms, {listener_, "MPI's end"},
        fmt::format("rank {} of {} (host {}): leaving MPI took longer than {} ms: another rank never "
                    "came to its end; this process ends itself",
                    launched_rank(*env_), launched_ranks(*env_), env_->host_name(), timeout_ms));
    world_.close();
    if (const int code = MPI_Finalize(); code != MPI_SUCCESS) {
      return fail(ExitCode::communication, "leaving MPI failed: {}", mpi_text(code));
    }
    return {};
  }

  [[noreturn]] void leave_after_error(ExitCode code) override {
    world_.current().revoke_only();
    std::fflush(nullptr);
    if (world_.current().rank() != 0) env_->sleep_us(1'000'000);
    _exit(static_cast<int>(code));  // no destructors: kernels may still run on a thread of their own
  }

 private:
  Env* env_;
  MpiFacts facts_;
  WaitListener* listener_;
  MpiWorld world_;
};

// Sets what MPI reads from the environment, before it does, and before this process has threads of MPI's.
void prepare_environment(Env& env) {
  // Open MPI looks for its settings in the home directory and does not start without one. Only root can put
  // settings into /.
  if (env.variable("HOME").empty()) {
    const std::string home = home_of_user();
    setenv("HOME", home.empty() ? "/" : home.c_str(), 1);
  }
  // Makes a failing MPI_Init return instead of ending the process; MPI_Comm_set_errhandler comes too late for
  // it.
  setenv("OMPI_MCA_mpi_initial_errhandler", "mpi_errors_return", 0);
}

// A launcher and a library that do not know each other make as many groups of one as there are ranks.
Result<void> check_launcher(Env& env) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size >= launched_ranks(env)) return {};  // more: the launcher did not say how many
  return fail(
      ExitCode::config,
      "this process (host {}) was started as {}, but {}, which holdfast was built with, sees {} rank{}: "
      "the launcher belongs to another MPI. Start with tools/mpirun -np {}, or with the mpirun of that "
      "Open MPI{}",
      env.host_name(), launched_as(env), library_name(), size, size == 1 ? "" : "s", launched_ranks(env),
      launched_by_srun(env) ? ", or with srun --mpi=pmix" : "");
}

}  // namespace

MpiFacts facts_of_linked_mpi() {
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
  return {.library = library_name(), .fault_tolerant = true};
#else
  return {.library = library_name(), .fault_tolerant = false};
#endif
}

Result<std::unique_ptr<MpiSession>> start_mpi_session(Env& env, std::int64_t join_timeout_ms,
                                                      WaitListener* listener,
                                                      const Preparation& preparation) {
  prepare_environment(env);
  const bool is_joiner = launched_by_ranks(env);
  int provided = MPI_THREAD_SINGLE;
  int code = MPI_SUCCESS;
  {
    const Deadline deadline(
        env, join_timeout_ms, {listener, "MPI's start"},
        fmt::format("rank {} (host {}): waited {} ms in MPI_Init for the other ranks of {}: one of them "
                    "failed before it "
                    "joined (its own output says why) or its host is unreachable; this process ends itself",
                    launched_rank(env), env.host_name(), join_timeout_ms, launched_ranks(env)),
        {}, is_joiner ? std::function<void()>([&env] { env.kill_self(); }) : nullptr);
    code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  }
  if (code != MPI_SUCCESS) {
    return fail(
        ExitCode::communication,
        "{} did not start in this process (host {}), which was started as {}: {}; if the launcher belongs "
        "to another MPI, start with tools/mpirun",
        library_name(), env.host_name(), launched_as(env), mpi_text(code));
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_SERIALIZED) {
    return fail(
        ExitCode::communication,
        "{} was built without MPI_THREAD_SERIALIZED, which is needed: run tools/bootstrap, which installs an "
        "Open MPI that has it",
        library_name());
  }
  HF_TRY_VOID(check_launcher(env));
  MpiFacts facts = facts_of_linked_mpi();
  const std::string switched_on = env.variable("OMPI_MCA_mpi_ft_enable");  // set by mpirun --with-ft ulfm
  facts.fault_tolerant = facts.fault_tolerant && (switched_on == "1" || switched_on == "true");
  auto session = std::make_unique<Session>(env, std::move(facts), listener);
  if (is_joiner) session->join_those_that_started_it(join_timeout_ms, preparation);
  return std::unique_ptr<MpiSession>(std::move(session));
}

// The one symbol of libholdfast_mpi.so that can be seen from outside.

extern "C" const MpiModule* holdfast_mpi_module();

const MpiModule* holdfast_mpi_module() {
  static constexpr MpiModule module = {.facts = facts_of_linked_mpi, .start = start_mpi_session};
  return &module;
}

}  // namespace holdfast::parallel
