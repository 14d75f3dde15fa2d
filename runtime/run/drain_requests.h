// Requests that the run leave a host, as files in the run directory: `holdfast drain` writes them, and a rank
// whose host is to be taken away (preemption_notice.h); `holdfast launch` carries them out and answers in
// them.
//
// A request is a file RUN/requests/drain-HOST with one line, which is replaced by rename:
//   asked SECONDS     by a person: the host is left within that time, 0: whenever the next step is made
//   notice            by a rank: the host goes away whatever the run does
//   begun             the run ends after its next step, for a start without the host
//   drained STEP      the run goes on without it, from this step
//   refused SENTENCE  the run cannot do without it
// Only the launcher writes after the first two. The host stays out for as long as the file is there; the
// launcher removes those of an earlier launch, unless that was killed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

struct DrainRequest {
  enum class State { asked, notice, begun, drained, refused };
  std::string host = {};
  State state = State::asked;
  std::int64_t deadline_s = 0;  // of `asked`
  std::uint64_t step = 0;       // of `drained`
  std::string sentence = {};    // of `refused`
};

// Returns whether it is the name of a request to drain, among the files of RUN/requests.
bool is_drain_request(const std::string& file_name);
// Replaces the request about this host. ExitCode::config where the host's name is not valid.
Result<void> write_drain_request(Env& env, const RunPaths& paths, const DrainRequest& request);
// Returns all requests that are there, by host. Requests that cannot be read now are left out.
std::vector<DrainRequest> read_drain_requests(Env& env, const RunPaths& paths);
Result<void> remove_drain_request(Env& env, const RunPaths& paths, const std::string& host);

}  // namespace holdfast::run
