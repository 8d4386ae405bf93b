#include "lockstep/os/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace lockstep::os {
namespace {

TEST(TemporaryFolder, IsThereWhateverTmpdirSays) {
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", "/usr", 1);
  EXPECT_EQ(temporary_folder(), "/usr");
  ::setenv("TMPDIR", "/nowhere/at/all", 1);
  EXPECT_EQ(temporary_folder(), "/tmp");
  if (before == nullptr) {
    ::unsetenv("TMPDIR");
  } else {
    ::setenv("TMPDIR", kept.c_str(), 1);
  }
}

}  // namespace
}  // namespace lockstep::os
