// Has what `holdfast kernel` hands out: the C header for plug-ins, the contract of an op, and a folder with a kernel.
#pragma once

#include <string>
#include <string_view>

#include "kernels/op.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::bench::kernel_kit {

// Returns the text of kernels/include/holdfast_kernel.h, and of a file of tools/kernel_kit/templates by its name there;
// empty: there is none. CMake writes the function.
std::string_view text_of_file(std::string_view name);
inline std::string_view plugin_header() {
  return text_of_file("holdfast_kernel.h");
}

// Returns the op of a name. ExitCode::config, with a near one, where there is none.
Result<OpId> op_of_name(std::string_view name);

// Returns the part of the header that is about an op: what it computes, and its struct.
std::string contract_of(OpId op);

// Returns whether kernel_folder() writes a whole kernel for the op, and not a skeleton that computes no call.
bool has_whole_kernel(OpId op);

struct FolderTerms {
  OpId op = OpId::count;
  std::string language = "cpp";
  std::string folder = {};   // made where it is missing; none of its files may be there
  std::string program = {};  // that `make check` runs
};
// Writes kernel.cc, Makefile, README.md and holdfast_kernel.h. ExitCode::config where the language is not known or the
// folder has one of these files.
Result<void> make_kernel_folder(Env& env, const FolderTerms& terms);

}  // namespace holdfast::bench::kernel_kit
