#include "lockstep/base/id.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep {
namespace {

TEST(RunId, IsReadableSortableAndUnique) {
  const std::string id = make_run_id("My Job!", 1700000000);
  EXPECT_TRUE(id.starts_with("my-job--20231114-221320-")) << id;
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    seen.insert(make_run_id("x", 0));
  }
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(Key, RoundTripsAsHex) {
  const Key key = make_key();
  Key back{};
  ASSERT_TRUE(from_hex(to_hex(key), back));
  EXPECT_EQ(key, back);
  EXPECT_FALSE(from_hex("abc", back));
  EXPECT_FALSE(from_hex(std::string(64, 'g'), back));
}

}  // namespace
}  // namespace lockstep
