// Names of the kernels of plug-ins, and of their faults, in the form in which ranks, guards, launchers and files exchange
// them: whoever wants to know which kernel it was reads a field, and no sentence.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::core {

// KernelName names a kernel of a plug-in. The digest says which build of the library it is of.
struct KernelName {
  std::string op = {};              // "rmsnorm_forward"
  std::string implementation = {};  // "mine"
  std::string digest = {};          // of the library's bytes, as names of bits have it (kernels/plugin.h)
  std::string library = {};         // path, as the config has it

  bool empty() const { return op.empty(); }
  bool operator==(const KernelName&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("op", self.op);
    visit("implementation", self.implementation);
    visit("digest", self.digest);
    visit("library", self.library);
  }
};

// Returns "kernel mine of rmsnorm_forward, of the plug-in my_rmsnorm/kernel.so".
inline std::string text_of(const KernelName& kernel) {
  return fmt::format("kernel {} of {}, of the plug-in {}", kernel.implementation, kernel.op, kernel.library);
}

// Returns the name in one line, the library last, as it is put where there is little room for it; kernel_of_line() reads
// it. A line that is cut has a shorter path; one that is none gives an empty name.
inline std::string line_of(const KernelName& kernel) {
  return fmt::format("{} {} {} {}", kernel.op, kernel.implementation, kernel.digest, kernel.library);
}
inline KernelName kernel_of_line(std::string_view line) {
  const auto next_word = [&line] {
    const std::size_t end = std::min(line.find(' '), line.size());
    const std::string word(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
    return word;
  };
  KernelName kernel;
  kernel.op = next_word();
  kernel.implementation = next_word();
  kernel.digest = next_word();
  kernel.library = line;
  return kernel.digest.empty() ? KernelName() : kernel;
}

// KernelEnd says how the process of a rank ended that last ran a kernel of a plug-in, as its guard has seen it.
enum class KernelEnd : std::uint32_t {
  unknown,  // nobody has said so far
  other,    // for another reason, as by SIGKILL from outside
  crash,    // by a signal of its own making
  hang,     // the guard ended it because it hung
};
inline const char* name_of(KernelEnd end) {
  return end == KernelEnd::crash ? "crash" : end == KernelEnd::hang ? "hang" : "other";
}

// KernelFault says that a rank ended while it ran a kernel.
struct KernelFault {
  KernelName kernel = {};
  KernelEnd how = KernelEnd::unknown;  // crash or hang
  int rank = -1;                       // launched
  std::string host = {};
  std::uint64_t step = 0;  // newest that the rank had completed

  // Returns whether it names a kernel. It is asked of what comes from memory that a kernel may have written to, and from
  // files.
  bool is_valid() const {
    const auto is_word = [](std::string_view text) {
      constexpr std::size_t longest = 64;
      return !text.empty() && text.size() <= longest && std::ranges::all_of(text, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
      });
    };
    return is_word(kernel.op) && is_word(kernel.implementation) && is_word(kernel.digest) &&
           (how == KernelEnd::crash || how == KernelEnd::hang);
  }
  bool operator==(const KernelFault&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("kernel", self.kernel);
    visit("how", self.how);
    visit("rank", self.rank);
    visit("host", self.host);
    visit("step", self.step);
  }
};
using KernelFaults = std::vector<KernelFault>;

// Returns "kernel mine of rotary, of the plug-in mine.so, crashed on rank 1 (host a) after step 9".
inline std::string text_of(const KernelFault& fault) {
  return fmt::format("{}, {} on rank {} (host {}) after step {}", text_of(fault.kernel),
                     fault.how == KernelEnd::hang ? "hung" : "crashed", fault.rank, fault.host, fault.step);
}

// Returns whether both are about one build of one kernel.
inline bool is_same_kernel(const KernelFault& one, const KernelFault& other) {
  return one.kernel.op == other.kernel.op && one.kernel.implementation == other.kernel.implementation &&
         one.kernel.digest == other.kernel.digest;
}

// Adds those faults about whose kernels there is none yet, and returns what was added.
inline KernelFaults add_faults(KernelFaults& faults, const KernelFaults& more) {
  KernelFaults added;
  for (const KernelFault& each : more) {
    if (std::ranges::any_of(faults,
                            [&each](const KernelFault& known) { return is_same_kernel(known, each); }))
      continue;
    faults.push_back(each);
    added.push_back(each);
  }
  return added;
}

}  // namespace holdfast::core
