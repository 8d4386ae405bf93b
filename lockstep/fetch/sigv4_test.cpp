#include "lockstep/fetch/sigv4.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace lockstep::fetch {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// The keys and the moment of AWS's published test suite.
SigningKeys suite_keys() {
  return {
      "AKIDEXAMPLE", Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"), {}};
}

SigningInput suite_input(const std::string& path = "/", Query query = {}) {
  SigningInput input;
  input.method = "GET";
  input.host = "example.amazonaws.com";
  input.path = path;
  input.query = std::move(query);
  input.payload_hash = sha256_hex("");
  input.service = "service";
  input.region = "us-east-1";
  input.unix_seconds = 1440938160;  // 2015-08-30 12:36:00
  return input;
}

std::string authorization(const SigningInput& input, const SigningKeys& keys) {
  return sign(input, keys).back().second;
}

TEST(SigV4, TestSuiteOfAws) {
  EXPECT_EQ(
      authorization(suite_input(), suite_keys()),
      "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/"
      "aws4_request, SignedHeaders=host;x-amz-date, Signature="
      "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  // The query is sorted.
  EXPECT_THAT(
      authorization(
          suite_input("/", {{"Param2", "value2"}, {"Param1", "value1"}}),
          suite_keys()),
      EndsWith(
          "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"));
}

// The examples of the S3 documentation.
SigningInput s3_input() {
  SigningInput input = suite_input();
  input.host = "examplebucket.s3.amazonaws.com";
  input.service = "s3";
  input.unix_seconds = 1369353600;  // 2013-05-24
  return input;
}

SigningKeys s3_keys() {
  return {
      "AKIAIOSFODNN7EXAMPLE",
      Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
      {}};
}

TEST(SigV4, ExamplesOfS3) {
  SigningInput get = s3_input();
  get.path = "/test.txt";
  get.headers = {{"Range", "bytes=0-9"}};
  EXPECT_THAT(
      authorization(get, s3_keys()),
      EndsWith(
          "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
  SigningInput put = s3_input();
  put.method = "PUT";
  put.path = "/test$file.text";
  put.headers = {
      {"Date", "Fri, 24 May 2013 00:00:00 GMT"},
      {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
  put.payload_hash = sha256_hex("Welcome to Amazon S3.");
  EXPECT_THAT(
      authorization(put, s3_keys()),
      EndsWith(
          "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
  SigningInput lifecycle = s3_input();
  lifecycle.query = {{"lifecycle", ""}};
  EXPECT_THAT(
      authorization(lifecycle, s3_keys()),
      EndsWith(
          "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  SigningInput list = s3_input();
  list.query = {{"prefix", "J"}, {"max-keys", "2"}};
  EXPECT_THAT(
      authorization(list, s3_keys()),
      EndsWith(
          "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST(SigV4, KeysOfObjectsAreNotNormalised) {
  SigningInput input = s3_input();
  input.path = "/a/../b//c d+e";
  EXPECT_THAT(
      canonical_request(input, {}), HasSubstr("\n/a/../b//c%20d%2Be\n"));
  input.service = "other";
  EXPECT_THAT(canonical_request(input, {}), HasSubstr("\n/b/c%2520d%252Be\n"));
}

TEST(SigV4, HeadersAreSortedTrimmedAndJoined) {
  const std::string text = canonical_request(
      s3_input(),
      {{"Zeta", "  a   b  "}, {"alpha", "1"}, {"Beta", "x"}, {"beta", "y"}});
  EXPECT_THAT(text, HasSubstr("\nalpha:1\nbeta:x,y\nzeta:a b\n"));
  EXPECT_THAT(text, HasSubstr("\nalpha;beta;zeta\n"));
}

TEST(SigV4, SessionTokenIsSignedAndSent) {
  SigningKeys keys = s3_keys();
  keys.session_token = Secret("TOKEN");
  const Headers headers = sign(s3_input(), keys);
  bool sent = false;
  for (const auto& [name, value] : headers) {
    sent = sent || (name == "X-Amz-Security-Token" && value == "TOKEN");
  }
  EXPECT_TRUE(sent);
  EXPECT_THAT(headers.back().second, HasSubstr(";x-amz-security-token,"));
}

TEST(SigV4, QueryIsSortedAfterItsEncoding) {
  EXPECT_EQ(
      encode_query({{"b", "2"}, {"a b", "x/y"}, {"a", "2"}, {"a", "1"}}),
      "a=1&a=2&a%20b=x%2Fy&b=2");
  EXPECT_EQ(encode_query({}), "");
  EXPECT_EQ(uri_encode("\xc3\xa9~-._/", true), "%C3%A9~-._/");
}

TEST(Secret, IsNeverShown) {
  const Secret secret("hush");
  EXPECT_EQ(fmt::format("{}", secret), "***");
  std::ostringstream out;
  out << secret;
  EXPECT_THAT(out.str(), Not(HasSubstr("hush")));
  EXPECT_EQ(::testing::PrintToString(secret), "***");
}

}  // namespace
}  // namespace lockstep::fetch
