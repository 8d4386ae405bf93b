#include "lockstep/wire/frame.h"

#include <thread>

#include "lockstep/wire/network_kinds_test.h"

namespace lockstep::wire {
namespace {

using Frames = OverNetworks;
INSTANTIATE_TEST_SUITE_P(All, Frames, ::testing::Bool(), network_name);

TEST_P(Frames, KeepTheirBounds) {
  pair();
  ASSERT_TRUE(write_frame(*client_, "one", soon()));
  ASSERT_TRUE(write_frame(*client_, "", soon()));
  ASSERT_TRUE(write_frame(*client_, std::string("t\0o", 3), soon()));
  EXPECT_EQ(read_frame(*server_, soon()).value(), "one");
  EXPECT_EQ(read_frame(*server_, soon()).value(), "");
  EXPECT_EQ(read_frame(*server_, soon()).value(), std::string("t\0o", 3));
}

TEST_P(Frames, AreLittleEndian) {
  pair();
  ASSERT_TRUE(write_frame(*client_, std::string(258, 'x'), soon()));
  EXPECT_EQ(receive(*server_, 5), std::string("\x02\x01\0\0x", 5));
}

TEST_P(Frames, OfTheLargestSize) {
  pair();
  std::string payload(kMaxFrame, 'x');
  std::thread writer(
      [&] { EXPECT_TRUE(write_frame(*client_, payload, soon())); });
  EXPECT_TRUE(read_frame(*server_, soon()).value() == payload);
  writer.join();
  EXPECT_EQ(
      write_frame(*client_, payload + "x", soon()).error().code(),
      ErrorCode::kInvalidInput);
}

TEST_P(Frames, OverTheLimitAreRefused) {
  pair();
  send(*client_, "\xff\xff\xff\xff");
  auto frame = read_frame(*server_, soon());
  ASSERT_FALSE(frame);
  EXPECT_EQ(frame.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(frame.error().message().find("4294967295"), std::string::npos);
  ASSERT_TRUE(write_frame(*client_, "12345", soon()));
  EXPECT_EQ(
      read_frame(*server_, soon(), 4).error().code(), ErrorCode::kCorrupt);
}

TEST_P(Frames, CutShortAreUnavailable) {
  pair();
  send(*client_, std::string("\x05\0\0\0abc", 7));
  client_->close();
  EXPECT_EQ(
      read_frame(*server_, soon()).error().code(), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace lockstep::wire
