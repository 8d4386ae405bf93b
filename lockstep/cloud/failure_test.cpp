#include "lockstep/cloud/failure.h"

#include <gtest/gtest.h>

namespace lockstep::cloud {
namespace {

constexpr Failure kAll[] = {
    Failure::kCapacity,
    Failure::kQuota,
    Failure::kCredentials,
    Failure::kPermission,
    Failure::kThrottled,
    Failure::kNotFound,
    Failure::kBadRequest,
    Failure::kTransient,
};

TEST(Failure, ClassComesBackThroughContextAndFix) {
  for (const Failure failure : kAll) {
    const Error error = cloud_error(failure, "the cloud's own words")
                            .with_context("launching")
                            .with_fix("do this");
    EXPECT_EQ(failure_of(error), failure);
    EXPECT_NE(
        error.to_string().find("the cloud's own words"), std::string::npos);
  }
}

TEST(Failure, OnlyWhatPassesMayBeTriedAgain) {
  for (const Failure failure : kAll) {
    EXPECT_EQ(
        cloud_error(failure, "x").retry(),
        failure == Failure::kThrottled || failure == Failure::kTransient)
        << to_string(failure);
  }
}

TEST(Failure, ErrorsOfOthersHaveNoClass) {
  EXPECT_FALSE(failure_of(Error(ErrorCode::kIo, "quota: of a disk")));
  EXPECT_FALSE(failure_of(Error(ErrorCode::kUnavailable, "quota of a disk")));
  EXPECT_FALSE(is_shortage(Error(ErrorCode::kUnavailable, "no answer")));
  EXPECT_TRUE(is_shortage(cloud_error(Failure::kQuota, "x")));
  EXPECT_TRUE(is_shortage(cloud_error(Failure::kCapacity, "x")));
  EXPECT_FALSE(is_shortage(cloud_error(Failure::kThrottled, "x")));
}

}  // namespace
}  // namespace lockstep::cloud
