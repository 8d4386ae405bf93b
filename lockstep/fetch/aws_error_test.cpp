#include "lockstep/fetch/aws_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::fetch {
namespace {

using ::testing::HasSubstr;

HttpResponse answer(int status, std::string body) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

TEST(AwsFault, OfS3) {
  const AwsFault fault = read_fault(answer(
      403,
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AccessDenied"
      "</Code><Message>Access Denied</Message><RequestId>7F</RequestId>"
      "</Error>"));
  EXPECT_EQ(fault.fault_class, FaultClass::kPermission);
  const Error error = fault.to_error("s3:PutObject", "s3://b/k");
  EXPECT_EQ(error.code(), ErrorCode::kPermission);
  EXPECT_EQ(
      error.to_string(),
      "s3:PutObject s3://b/k: Access Denied (AccessDenied, 403, request 7F); "
      "allow s3:PutObject in the policy of this user or role");
}

TEST(AwsFault, OfEc2) {
  const AwsFault fault = read_fault(answer(
      503,
      "<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>"
      "Request limit exceeded.</Message></Error></Errors><RequestID>a-b"
      "</RequestID></Response>"));
  EXPECT_EQ(fault.fault_class, FaultClass::kThrottled);
  EXPECT_EQ(fault.message, "Request limit exceeded.");
  EXPECT_EQ(fault.request_id, "a-b");
}

TEST(AwsFault, OfSts) {
  const AwsFault fault = read_fault(answer(
      400,
      "<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredToken</Code>"
      "<Message>over</Message></Error><RequestId>r</RequestId>"
      "</ErrorResponse>"));
  EXPECT_EQ(fault.fault_class, FaultClass::kExpired);
  EXPECT_EQ(fault.request_id, "r");
}

TEST(AwsFault, OfMotosSts) {
  const AwsFault fault = read_fault(answer(
      403,
      "<ErrorResponse><Errors><Error><Code>AccessDenied</Code><Message>User: u "
      "is not authorized</Message></Error></Errors></ErrorResponse>"));
  EXPECT_EQ(fault.message, "User: u is not authorized");
}

TEST(AwsFault, OfJson) {
  const AwsFault fault = read_fault(answer(
      400,
      "{\"__type\":\"com.amazonaws.pricing#ThrottlingException\",\"message\":"
      "\"Rate exceeded\"}"));
  EXPECT_EQ(fault.code, "ThrottlingException");
  EXPECT_EQ(fault.message, "Rate exceeded");
  EXPECT_EQ(fault.fault_class, FaultClass::kThrottled);
}

TEST(AwsFault, WithoutABodyTheStatusSpeaks) {
  const AwsFault fault = read_fault(answer(404, ""));
  EXPECT_EQ(fault.fault_class, FaultClass::kNotFound);
  EXPECT_EQ(
      fault.to_error("s3:GetObject", "s3://b/k").to_string(),
      "s3:GetObject s3://b/k: the server answered 404");
  EXPECT_EQ(
      read_fault(answer(502, "<html><body>Bad Gateway<br></body></html>"))
          .fault_class,
      FaultClass::kServer);
}

TEST(AwsFault, RegionOfTheBucket) {
  const AwsFault fault = read_fault(answer(
      400,
      "<Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting "
      "'eu-west-1'</Message><Region>eu-west-1</Region></Error>"));
  EXPECT_EQ(fault.fault_class, FaultClass::kRegion);
  EXPECT_THAT(
      fault.to_error("s3:ListBucket", "s3://b").to_string(),
      HasSubstr("AWS_REGION=eu-west-1"));
  HttpResponse head = answer(400, "");
  head.headers["x-amz-bucket-region"] = "eu-west-1";
  EXPECT_EQ(read_fault(head).fault_class, FaultClass::kRegion);
}

TEST(AwsFault, ClassesOfCodes) {
  EXPECT_EQ(
      classify(400, "InvalidInstanceID.NotFound", ""), FaultClass::kNotFound);
  EXPECT_EQ(classify(400, "InvalidGroup.Duplicate", ""), FaultClass::kConflict);
  EXPECT_EQ(classify(400, "VcpuLimitExceeded", ""), FaultClass::kQuota);
  EXPECT_EQ(
      classify(500, "InsufficientInstanceCapacity", ""), FaultClass::kCapacity);
  EXPECT_EQ(classify(400, "UnfulfillableCapacity", ""), FaultClass::kCapacity);
  EXPECT_EQ(classify(400, "InvalidParameterValue", ""), FaultClass::kInvalid);
  EXPECT_EQ(
      classify(403, "SignatureDoesNotMatch", "The request signature we ..."),
      FaultClass::kCredentials);
  EXPECT_EQ(
      classify(403, "SignatureDoesNotMatch", "Signature expired: 2015 is ..."),
      FaultClass::kClockSkew);
  EXPECT_EQ(classify(412, "", ""), FaultClass::kConflict);
  EXPECT_EQ(classify(503, "", ""), FaultClass::kThrottled);
}

}  // namespace
}  // namespace lockstep::fetch
