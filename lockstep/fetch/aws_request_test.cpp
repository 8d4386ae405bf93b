#include "lockstep/fetch/aws_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::fetch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kWhole = "<Answer><Value>1</Value></Answer>";

HttpResponse answer(int status, std::string body = "") {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

std::string refusal(const std::string& code, const std::string& message = "m") {
  return "<Error><Code>" + code + "</Code><Message>" + message +
         "</Message></Error>";
}

std::string header(const FakeTransport::Asked& asked, const std::string& name) {
  for (const auto& [key, value] : asked.request.headers) {
    if (key == name) {
      return value;
    }
  }
  return "";
}

// A client over a script of answers, the last one for all that follows.
class Client : public ::testing::Test {
 protected:
  using Script = std::vector<Result<HttpResponse>>;
  AwsClient make(Script script) {
    transport_ = std::make_unique<FakeTransport>(
        [script = std::move(script),
         at = size_t{0}](const FakeTransport::Asked&) mutable {
          const size_t now = std::min(at++, script.size() - 1);
          return script[now];
        });
    options_.transport = transport_.get();
    options_.clock = &clock_;
    options_.random = [] { return 0.5; };
    options_.say = [this](const std::string& line) { said_.push_back(line); };
    if (!options_.credentials) {
      options_.credentials =
          fixed_credentials({"ID", Secret("hush"), Secret("tokenhush")});
    }
    return AwsClient(options_);
  }
  static AwsRequest request() {
    AwsRequest out = query_request("ec2", "2016-11-15", "DescribeThings");
    add_parameter(out, "B", "x y");
    add_parameter(out, "A", "1");
    return out;
  }
  size_t asked() const { return transport_->asked().size(); }
  double slept() const { return clock_.unix_seconds() - 1.7e9; }

  os::FakeClock clock_;
  AwsClientOptions options_;
  std::unique_ptr<FakeTransport> transport_;
  std::vector<std::string> said_;
};

TEST_F(Client, SendsAndReads) {
  auto client = make({answer(200, kWhole)});
  const auto reply = client.call(request());
  ASSERT_TRUE(reply) << reply.error().to_string();
  EXPECT_EQ(xml_text(*reply->xml, "Answer/Value"), "1");
  const auto asked = transport_->asked()[0];
  EXPECT_EQ(asked.request.url, "https://ec2.us-east-1.amazonaws.com/");
  EXPECT_EQ(asked.request.method, "POST");
  EXPECT_EQ(asked.body, "A=1&Action=DescribeThings&B=x+y&Version=2016-11-15");
  EXPECT_THAT(
      header(asked, "Authorization"),
      AllOf(
          HasSubstr("Credential=ID/20231114/us-east-1/ec2/aws4_request"),
          Not(HasSubstr("hush"))));
  EXPECT_EQ(header(asked, "Host"), "ec2.us-east-1.amazonaws.com");
}

// Read anew for each attempt, and signed by the hash that its owner knows.
TEST_F(Client, SendsABodyFromItsSource) {
  auto client = make({answer(503), answer(200), answer(200)});
  const std::string text = "of a file";
  int reads = 0;
  BodySource source;
  source.size = text.size();
  source.read = [&](uint64_t offset, std::span<char> into) {
    ++reads;
    text.copy(into.data(), into.size(), offset);
    return true;
  };
  AwsRequest put;
  put.service = "s3";
  put.method = "PUT";
  put.endpoint = "http://store.lab:9000";
  put.body_source = &source;
  put.body_sha256 = sha256_hex(text);
  ASSERT_TRUE(client.call(put));
  put.endpoint = "https://store.lab";
  ASSERT_TRUE(client.call(put));
  const auto all = transport_->asked();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(reads, 3);
  for (const auto& one : all) {
    EXPECT_EQ(one.body, text);
  }
  EXPECT_EQ(header(all[1], "X-Amz-Content-Sha256"), sha256_hex(text));
  EXPECT_EQ(header(all[2], "X-Amz-Content-Sha256"), "UNSIGNED-PAYLOAD");
  source.read = [](uint64_t, std::span<char>) { return false; };
  EXPECT_EQ(client.call(put).error().code(), ErrorCode::kIo);
}

TEST_F(Client, WaitsLongerEachTimeWhenThrottled) {
  auto client = make(
      {answer(503, refusal("SlowDown")),
       answer(400, refusal("RequestLimitExceeded")),
       answer(200, kWhole)});
  const auto reply = client.call(request());
  ASSERT_TRUE(reply) << reply.error().to_string();
  EXPECT_EQ(reply->attempts, 3);
  // Half of 500 ms, then of 1 s.
  EXPECT_NEAR(slept(), 0.75, 0.01);
  EXPECT_THAT(
      said_,
      ElementsAre(
          HasSubstr("(SlowDown, 503); trying again in 250 ms"),
          HasSubstr("(RequestLimitExceeded, 400); trying again in 500 ms")));
}

TEST_F(Client, TheServersPauseIsHonoured) {
  HttpResponse busy = answer(503, refusal("SlowDown"));
  busy.headers["retry-after"] = "7";
  auto client = make({busy, answer(200, kWhole)});
  ASSERT_TRUE(client.call(request()));
  EXPECT_NEAR(slept(), 7, 0.01);
}

TEST_F(Client, GivesUpAfterItsAttemptsAndKeepsTheCloudsWords) {
  auto client = make({answer(500, refusal("InternalError", "we erred"))});
  const auto reply = client.call(request());
  ASSERT_FALSE(reply);
  EXPECT_EQ(asked(), 8U);
  EXPECT_TRUE(reply.error().retry());
  EXPECT_EQ(
      reply.error().to_string(),
      "tried 8 times: ec2:DescribeThings: we erred (InternalError, 500)");
}

TEST_F(Client, BrokenConnectionsAndCutBodiesAreRepeated) {
  auto client = make(
      {Error(ErrorCode::kAborted, "reset").with_retry(),
       Error(ErrorCode::kTimeout, "stalled").with_retry(),
       answer(200, "<Answer><Value>1</Val"),
       answer(200, ""),
       answer(200, kWhole)});
  const auto reply = client.call(request());
  ASSERT_TRUE(reply) << reply.error().to_string();
  EXPECT_EQ(reply->attempts, 5);
}

TEST_F(Client, NobodyThereIsTriedAFewTimes) {
  auto client = make({Error(ErrorCode::kUnavailable, "refused").with_retry()});
  const auto reply = client.call(request());
  ASSERT_FALSE(reply);
  EXPECT_EQ(asked(), 4U);
  EXPECT_EQ(reply.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(reply.error().to_string(), HasSubstr("tried 4 times"));
}

TEST_F(Client, WhatWillNotPassIsNotRepeated) {
  for (const char* code : {"AccessDenied", "InvalidParameterValue"}) {
    auto client = make({answer(400, refusal(code))});
    const auto reply = client.send(request());
    ASSERT_TRUE(reply);
    ASSERT_TRUE(reply->fault);
    EXPECT_EQ(reply->fault->code, code);
    EXPECT_EQ(asked(), 1U);
  }
  auto client = make({Error(ErrorCode::kPermission, "bad certificate")});
  EXPECT_FALSE(client.call(request()));
  EXPECT_EQ(asked(), 1U);
}

TEST_F(Client, WhatMustNotHappenTwiceIsSentAgainOnlyIfItDidNotArrive) {
  AwsRequest once = request();
  once.repeatable = false;
  {
    auto client = make({Error(ErrorCode::kAborted, "reset").with_retry()});
    EXPECT_FALSE(client.call(once));
    EXPECT_EQ(asked(), 1U);
    EXPECT_TRUE(transport_->asked()[0].request.fresh);
  }
  {
    auto client = make({answer(500, refusal("InternalError"))});
    EXPECT_FALSE(client.call(once));
    EXPECT_EQ(asked(), 1U);
  }
  auto client = make(
      {Error(ErrorCode::kUnavailable, "refused").with_retry(),
       answer(503, refusal("RequestLimitExceeded")),
       answer(200, kWhole)});
  EXPECT_TRUE(client.call(once));
  EXPECT_EQ(asked(), 3U);
}

TEST_F(Client, LearnsTheServersClockOnce) {
  HttpResponse skewed = answer(403, refusal("RequestTimeTooSkewed"));
  skewed.headers["date"] = "Tue, 14 Nov 2023 23:13:20 GMT";  // an hour ahead
  auto client = make({skewed, answer(200, kWhole)});
  ASSERT_TRUE(client.call(request()));
  EXPECT_EQ(header(transport_->asked()[0], "X-Amz-Date"), "20231114T221320Z");
  EXPECT_EQ(header(transport_->asked()[1], "X-Amz-Date"), "20231114T231320Z");
  EXPECT_EQ(client.clock_skew(), std::chrono::hours(1));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("clock is 1h")));
  EXPECT_NEAR(slept(), 0, 0.001);

  auto always = make({skewed});
  const auto reply = always.call(request());
  ASSERT_FALSE(reply);
  EXPECT_EQ(asked(), 2U);
  EXPECT_THAT(reply.error().fix(), HasSubstr("clock"));
}

TEST_F(Client, AWrongSignatureMayBeTheClock) {
  HttpResponse refused = answer(403, refusal("SignatureDoesNotMatch"));
  refused.headers["date"] = "Tue, 14 Nov 2023 22:13:22 GMT";
  {
    auto client = make({refused});
    EXPECT_FALSE(client.call(request()));
    EXPECT_EQ(asked(), 1U);
  }
  refused.headers["date"] = "Tue, 14 Nov 2023 20:13:22 GMT";
  auto client = make({refused, answer(200, kWhole)});
  EXPECT_TRUE(client.call(request()));
}

TEST_F(Client, NewKeysWhenTheOldAreOver) {
  struct Source : CredentialSource {
    int dropped = 0;
    Result<Credentials> get() override {
      return Credentials{
          {fmt::format("ID{}", dropped), Secret("s"), {}}, {}, ""};
    }
    void drop() override { ++dropped; }
  };
  const auto source = std::make_shared<Source>();
  options_.credentials = source;
  auto client =
      make({answer(400, refusal("ExpiredToken")), answer(200, kWhole)});
  ASSERT_TRUE(client.call(request()));
  EXPECT_THAT(
      header(transport_->asked()[1], "Authorization"),
      HasSubstr("Credential=ID1/"));
  auto never = make({answer(400, refusal("ExpiredToken"))});
  EXPECT_FALSE(never.call(request()));
  EXPECT_EQ(asked(), 2U);
}

TEST_F(Client, NotYetIsRepeatedUntilTheDeadline) {
  AwsRequest patient = request();
  patient.not_yet = {"InvalidInstanceID.NotFound"};
  options_.limit = std::chrono::minutes(5);
  auto client = make({answer(400, refusal("InvalidInstanceID.NotFound"))});
  const auto reply = client.send(patient);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->fault->code, "InvalidInstanceID.NotFound");
  EXPECT_GT(reply->attempts, 8);
  EXPECT_LT(slept(), 300);
  EXPECT_GT(slept(), 250);
}

TEST_F(Client, AnErrorInside200CountsAsWhatItSays) {
  auto client =
      make({answer(200, refusal("InternalError")), answer(200, kWhole)});
  const auto reply = client.call(request());
  ASSERT_TRUE(reply) << reply.error().to_string();
  EXPECT_EQ(reply->attempts, 2);
}

TEST_F(Client, StopsWhenTold) {
  int left = 2;
  options_.stopped = [&] { return left-- <= 0; };
  auto client = make({answer(503, refusal("SlowDown"))});
  const auto reply = client.call(request());
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), ErrorCode::kInterrupted);
}

TEST_F(Client, TheSinkIsRewound) {
  AwsRequest get;
  get.service = "s3";
  get.action = "s3:GetObject";
  std::string got;
  int rewinds = 0;
  get.sink = [&](std::string_view bytes) {
    got += bytes;
    return true;
  };
  get.rewind = [&] {
    ++rewinds;
    got.clear();
  };
  auto client = make(
      {Error(ErrorCode::kAborted, "cut").with_retry(), answer(200, "data")});
  ASSERT_TRUE(client.call(get));
  EXPECT_EQ(got, "data");
  EXPECT_EQ(rewinds, 1);
}

TEST_F(Client, PayloadIsHashedUnlessTlsGuardsIt) {
  AwsRequest put;
  put.service = "s3";
  put.method = "PUT";
  put.body = "abc";
  put.endpoint = "http://localhost:9000/base/";
  put.path = "/b/k d";
  auto client = make({answer(200)});
  ASSERT_TRUE(client.call(put));
  put.endpoint = "https://h:443";
  ASSERT_TRUE(client.call(put));
  const auto all = transport_->asked();
  EXPECT_EQ(header(all[0], "X-Amz-Content-Sha256"), sha256_hex("abc"));
  EXPECT_EQ(all[0].request.url, "http://localhost:9000/base/b/k%20d");
  EXPECT_EQ(header(all[1], "X-Amz-Content-Sha256"), "UNSIGNED-PAYLOAD");
  EXPECT_EQ(header(all[1], "Host"), "h");
}

TEST_F(Client, EndpointsThatAreNone) {
  auto client = make({answer(200)});
  for (const char* text :
       {"localhost:1", "ftp://h", "http://", "http://u@h", "https://h?x"}) {
    AwsRequest bad = request();
    bad.endpoint = text;
    const auto reply = client.call(bad);
    ASSERT_FALSE(reply) << text;
    EXPECT_EQ(reply.error().code(), ErrorCode::kInvalidInput);
  }
  EXPECT_EQ(asked(), 0U);
}

TEST_F(Client, JsonRequests) {
  auto client = make({answer(200, "{}")});
  const std::string body = "{\"ServiceCode\":\"AmazonEC2\"}";
  ASSERT_TRUE(client.call(
      json_request("pricing", "AWSPriceListService.GetProducts", body)));
  const auto asked = transport_->asked()[0];
  EXPECT_EQ(asked.body, body);
  EXPECT_EQ(header(asked, "X-Amz-Target"), "AWSPriceListService.GetProducts");
  EXPECT_EQ(asked.request.url, "https://api.pricing.us-east-1.amazonaws.com/");
}

}  // namespace
}  // namespace lockstep::fetch
