#include "lockstep/launch/python_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using testing::HasSubstr;

TEST(PythonModule, IsTheFileOfTheRepository) {
  EXPECT_THAT(
      std::string(python_module()), HasSubstr("class LightningCallback"));
  EXPECT_EQ(python_module().back(), '\n');
}

TEST(PythonModule, IsPlacedAndReplaced) {
  os::FakeFileSystem files;
  ASSERT_TRUE(place_python_module(files, "/node/python"));
  EXPECT_EQ(*files.read("/node/python/lockstep.py"), python_module());
  ASSERT_TRUE(files.write_atomic("/node/python/lockstep.py", "old"));
  ASSERT_TRUE(place_python_module(files, "/node/python"));
  EXPECT_EQ(*files.read("/node/python/lockstep.py"), python_module());
}

TEST(PythonModule, ComesAfterWhatTheUserHas) {
  Environment none;
  add_python_folder("/node/python", none);
  EXPECT_EQ(none["PYTHONPATH"], "/node/python");
  EXPECT_EQ(none[kPythonFolder], "/node/python");
  Environment some = {{"PYTHONPATH", "/mine"}};
  add_python_folder("/node/python", some);
  EXPECT_EQ(some["PYTHONPATH"], "/mine:/node/python");
}

}  // namespace
}  // namespace lockstep::launch
