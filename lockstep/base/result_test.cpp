#include "lockstep/base/result.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace lockstep {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) {
    return Error(ErrorCode::kInvalidInput, "odd");
  }
  return value / 2;
}

Result<int> quarter(int value) {
  LOCKSTEP_ASSIGN(const int once, half(value).with_context("first"));
  return half(once).with_context("second");
}

Result<void> both(int value) {
  LOCKSTEP_TRY(half(value));
  LOCKSTEP_TRY(quarter(value));
  return {};
}

TEST(Result, CarriesValueThroughTry) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_TRUE(both(8));
}

TEST(Result, CarriesErrorWithContextOutermostFirst) {
  auto result = quarter(6).with_context("job.yaml");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().to_string(), "job.yaml: second: odd");
  EXPECT_EQ(quarter(3).error().to_string(), "first: odd");
  EXPECT_FALSE(both(6));
}

TEST(Error, SaysWhatToDoAndWhetherToRetry) {
  auto error = Error(ErrorCode::kNotFound, "no data").with_fix("run x");
  EXPECT_EQ(error.to_string(), "no data; run x");
  EXPECT_FALSE(error.retry());
  EXPECT_TRUE(std::move(error).with_retry().retry());
}

TEST(OsError, ClassifiesErrno) {
  EXPECT_EQ(os_error("x", ENOSPC).code(), ErrorCode::kNoSpace);
  EXPECT_EQ(os_error("x", ENOENT).code(), ErrorCode::kNotFound);
  EXPECT_TRUE(os_error("x", ECONNREFUSED).retry());
  EXPECT_EQ(
      os_error("open a", ENOENT).message(),
      "open a: No such file or directory");
}

}  // namespace
}  // namespace lockstep
