// Tests which faults of kernels a run directory keeps, and what is no such file.
#include "runtime/run/kernel_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/core/record.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

KernelFault fault_of_op(const std::string& op, const std::string& digest = "0123456789abcdef") {
  return {.kernel = {.op = op, .implementation = "mine", .digest = digest, .library = "a b/mine.so"},
          .how = KernelEnd::crash,
          .rank = 1,
          .host = "a",
          .step = 9};
}

TEST(KernelNames, ALineHoldsAllOfIt) {
  const KernelName name = fault_of_op("rotary").kernel;
  EXPECT_EQ(kernel_of_line(line_of(name)), name);
  EXPECT_EQ(text_of(name), "kernel mine of rotary, of the plug-in a b/mine.so");
  for (const char* line : {"", "rotary", "rotary mine", "rotary mine "})
    EXPECT_TRUE(kernel_of_line(line).empty()) << line;
}

TEST(KernelFaults, AreOfOneBuildOfAKernel) {
  KernelFaults known = {fault_of_op("rotary")};
  KernelFault same = fault_of_op("rotary"), other = fault_of_op("rotary", "ff");
  same.rank = 3;
  EXPECT_THAT(add_faults(known, {same, other, other}), ElementsAre(other));
  EXPECT_THAT(known, ElementsAre(fault_of_op("rotary"), other));
}

TEST(KernelFaults, AreKeptOnceUntilTheyAreForgotten) {
  const TemporaryDirectory directory;
  Env& env = posix_env();
  const RunPaths paths{directory.path()};
  EXPECT_THAT(read_kernel_faults(env, paths), IsEmpty());
  KernelFault again = fault_of_op("rotary");
  again.step = 12;
  ASSERT_TRUE(keep_kernel_faults(env, paths, {fault_of_op("rotary"), fault_of_op("add")}).ok());
  ASSERT_TRUE(keep_kernel_faults(env, paths, {again}).ok());
  EXPECT_THAT(read_kernel_faults(env, paths), ElementsAre(fault_of_op("add"), fault_of_op("rotary")));
  EXPECT_THAT(forget_kernel_faults(env, paths, "rotary").value(), ElementsAre(fault_of_op("rotary")));
  EXPECT_THAT(forget_kernel_faults(env, paths, "").value(), ElementsAre(fault_of_op("add")));
  EXPECT_THAT(read_kernel_faults(env, paths), IsEmpty());
}

// A record that a kernel has overwritten, or that somebody else has written, gives neither a name nor a path.
TEST(KernelFaults, OfOthersDoNotCount) {
  const TemporaryDirectory directory;
  Env& env = posix_env();
  const RunPaths paths{directory.path()};
  ASSERT_TRUE(
      keep_kernel_faults(env, paths, {fault_of_op("../x"), fault_of_op(""), fault_of_op("add", "")}).ok());
  ASSERT_TRUE(keep_kernel_faults(env, {directory.path() + "/none"}, {fault_of_op("add")}).ok());
  EXPECT_FALSE(env.status(directory.path() + "/none").value().exists);
  ASSERT_TRUE(env.make_directories(paths.kernel_faults()).ok());
  KernelFault strange = fault_of_op("add");
  strange.how = static_cast<KernelEnd>(77);
  const std::string name = paths.kernel_faults() + "/add-mine-0123456789abcdef.json";
  for (const std::string& text : {std::string("{"), std::string("[]"), record_to_text(strange),
                                  record_to_text(fault_of_op("rotary"))}) {
    ASSERT_TRUE(env.replace_text(name, text).ok());
    EXPECT_THAT(read_kernel_faults(env, paths), IsEmpty()) << text;
  }
}

}  // namespace
}  // namespace holdfast::test
