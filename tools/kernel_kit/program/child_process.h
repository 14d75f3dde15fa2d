// ChildProcess: a second process of this program, in which the kernels of a plug-in run. They may end it at any time and
// with any exit code, and print what they like, so only files count: what it says before each step, what it found, and
// what kept it from its work.
//
//   HF_TRY(const ChildEnd end, run_child(env, {.words = {"check-here", path}}));
//   if (end.result.has_value()) ...
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

struct ChildTerms {
  std::vector<std::string> words = {};  // subcommand of the child, and its arguments; --folder=F is added
  std::int64_t silence_s = 300;         // so long may one step of it last
  bool shows_progress = false;          // on stderr, every few seconds, what it said last
};

// ChildEnd says how the child ended: with a result, or by what a plug-in has done, or by somebody else.
struct ChildEnd {
  std::optional<Json> result = {};
  std::string fault =
      {};  // what the plug-in did, "ended the process by signal 11 (SIGSEGV) ..."; empty: nothing
};

// Runs the child and waits for it. An error is one that the child told of, one of the machine, or ExitCode::communication with a
// sentence where somebody else ended the child, which says nothing about the plug-in.
Result<ChildEnd> run_child(Env& env, const ChildTerms& terms);

// The child's side.
using Tell = std::function<Result<void>(const std::string& what)>;
// Calls work(tell) and writes its result, or its error, into the folder. Before each step `tell` gets what comes.
Result<int> work_as_child(Env& env, const std::string& folder,
                          const std::function<Result<Json>(const Tell& tell)>& work);

}  // namespace holdfast::cli
