#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real_nccl.h"

namespace holdfast::test {
namespace {

using test::load_real_nccl;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// What a build without the CUDA toolkit, or without NCCL's header, says of every library.
testing::Matcher<const std::string&> without() {
  return AnyOf(HasSubstr("the CUDA device could not be loaded"),
               HasSubstr("was built without NCCL: build it where the CUDA toolkit and nccl.h are found"));
}

TEST(NcclLoader, AMissingLibraryIsASentence) {
  const auto library = load_real_nccl("/nowhere/libnccl.so.2");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.error().code, ExitCode::config);
  EXPECT_THAT(library.error().message,
              AnyOf(without(), AllOf(HasSubstr("could not be loaded from /nowhere/libnccl.so.2"),
                                     HasSubstr("No such file"), HasSubstr("install libnccl 2.18"))));
}

TEST(NcclLoader, AnotherLibraryInItsPlaceIsASentence) {
  const auto library = load_real_nccl("libm.so.6");
  ASSERT_FALSE(library.ok());
  EXPECT_THAT(library.error().message, AnyOf(without(), HasSubstr("undefined symbol: ncclGetVersion")));
}

// Wherever this runs, the answer is a library that works or one sentence of what is missing.
TEST(NcclLoader, TheLibraryOfThisMachine) {
  const auto library = load_real_nccl();
  if (library.ok()) {
    EXPECT_GE((*library)->version(), NcclLibrary::version_min);
    int devices = 0;
    EXPECT_EQ((*library)->device_count(devices), 0);
    EXPECT_GE(devices, 1);
    return;
  }
  EXPECT_EQ(library.error().code, ExitCode::config);
  EXPECT_THAT(library.error().message, AnyOf(without(), HasSubstr("could not be loaded from libnccl.so.2"),
                                             HasSubstr("was found, but no CUDA device to use it with")));
}

}  // namespace
}  // namespace holdfast::test
