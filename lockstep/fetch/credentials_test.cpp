#include "lockstep/fetch/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/fetch/instance_metadata.h"

namespace lockstep::fetch {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

HttpResponse answer(int status, std::string body = "") {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

std::string document(const std::string& id, const std::string& expiration) {
  return "{\"Code\":\"Success\",\"AccessKeyId\":\"" + id +
         "\",\"SecretAccessKey\":\"s\",\"Token\":\"t\",\"Expiration\":\"" +
         expiration + "\"}";
}

// A home of its own and a network that only the test answers.
class Chain : public ::testing::Test {
 protected:
  Chain()
      : network_([this](const FakeTransport::Asked& asked) {
          return answer_ ? answer_(asked)
                         : Result<HttpResponse>(
                               Error(ErrorCode::kUnavailable, "nobody")
                                   .with_retry());
        }) {
    std::string name = (fs::temp_directory_path() / "lockstep-XXXXXX").string();
    home_ = ::mkdtemp(name.data());
    fs::create_directory(home_ / ".aws");
    environment_["HOME"] = home_.string();
  }
  ~Chain() override { fs::remove_all(home_); }

  fs::path write(
      const std::string& name,
      const std::string& text,
      unsigned mode = 0600) {
    const fs::path path = home_ / ".aws" / name;
    std::ofstream(path) << text;
    fs::permissions(path, static_cast<fs::perms>(mode));
    return path;
  }
  std::unique_ptr<CredentialSource> source(const std::string& profile = "") {
    auto settings = load_settings(environment_, profile);
    EXPECT_TRUE(settings) << settings.error().to_string();
    return find_credentials(*settings, network_, clock_);
  }
  std::string key_id(const std::string& profile = "") {
    const auto found = source(profile)->get();
    return found ? found->keys.key_id : found.error().to_string();
  }
  // The metadata service of an instance with a role.
  void be_instance(std::string expiration) {
    answer_ = [this, expiration](
                  const FakeTransport::Asked& asked) -> Result<HttpResponse> {
      const std::string& url = asked.request.url;
      EXPECT_TRUE(asked.request.direct);
      if (url.ends_with("/latest/api/token")) {
        EXPECT_EQ(asked.request.method, "PUT");
        return answer(200, "TOKEN");
      }
      bool token = false;
      for (const auto& [name, value] : asked.request.headers) {
        token =
            token || (name == "X-aws-ec2-metadata-token" && value == "TOKEN");
      }
      if (!token) {
        return answer(401);
      }
      if (url.ends_with("/iam/security-credentials/")) {
        return answer(200, "my-role\n");
      }
      if (url.ends_with("/iam/security-credentials/my-role")) {
        ++fetched_;
        return answer(
            200, document("ROLE" + std::to_string(fetched_), expiration));
      }
      return answer(404);
    };
  }

  fs::path home_;
  std::map<std::string, std::string> environment_;
  os::FakeClock clock_;  // 2023-11-14 22:13:20
  std::function<Result<HttpResponse>(const FakeTransport::Asked&)> answer_;
  FakeTransport network_;
  int fetched_ = 0;
};

TEST_F(Chain, TheEnvironmentComesFirst) {
  write(
      "credentials",
      "[default]\naws_access_key_id=F\naws_secret_access_key=s\n");
  EXPECT_EQ(key_id(), "F");
  environment_["AWS_ACCESS_KEY_ID"] = "E";
  environment_["AWS_SECRET_ACCESS_KEY"] = "s";
  environment_["AWS_SESSION_TOKEN"] = "t";
  const auto found = source()->get();
  EXPECT_EQ(found->keys.key_id, "E");
  EXPECT_EQ(found->keys.session_token.reveal(), "t");
  EXPECT_EQ(key_id("default"), "F");  // asked for by name
}

TEST_F(Chain, HalfAPairIsAnError) {
  environment_["AWS_ACCESS_KEY_ID"] = "E";
  EXPECT_EQ(
      key_id(),
      "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not; set both or "
      "none");
  environment_.erase("AWS_ACCESS_KEY_ID");
  write("credentials", "[default]\naws_access_key_id=F\n");
  EXPECT_THAT(key_id(), HasSubstr("profile default has no aws_secret_access"));
}

TEST_F(Chain, AFileThatOthersCanReadIsRefused) {
  const auto path = write(
      "credentials",
      "[default]\naws_access_key_id=F\naws_secret_access_key=hush\n",
      0644);
  const auto found = source()->get();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kPermission);
  EXPECT_EQ(found.error().fix(), "chmod 600 " + path.string());
  EXPECT_THAT(found.error().to_string(), Not(HasSubstr("hush")));
  // A config without keys may be read by all.
  fs::remove(path);
  write("config", "[default]\nregion=x\n", 0644);
  EXPECT_THAT(key_id(), HasSubstr("no credentials"));
}

TEST_F(Chain, SaysWhereItLooked) {
  EXPECT_THAT(
      key_id(),
      AllOf(
          HasSubstr("AWS_ACCESS_KEY_ID (not set)"),
          HasSubstr((home_ / ".aws/credentials").string()),
          HasSubstr("169.254.169.254"),
          HasSubstr("aws configure")));
  environment_["AWS_EC2_METADATA_DISABLED"] = "true";
  const size_t before = network_.asked().size();
  EXPECT_THAT(key_id(), HasSubstr("AWS_EC2_METADATA_DISABLED"));
  EXPECT_EQ(network_.asked().size(), before);
}

TEST_F(Chain, RoleByAnotherProfile) {
  write(
      "credentials", "[base]\naws_access_key_id=B\naws_secret_access_key=s\n");
  write(
      "config",
      "[profile dev]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n"
      "external_id = x7\nregion = eu-west-1\n");
  environment_["AWS_PROFILE"] = "dev";
  answer_ = [](const FakeTransport::Asked& asked) -> Result<HttpResponse> {
    EXPECT_EQ(asked.request.url, "https://sts.eu-west-1.amazonaws.com/");
    EXPECT_THAT(
        asked.body,
        AllOf(
            HasSubstr("Action=AssumeRole&"),
            HasSubstr("ExternalId=x7"),
            HasSubstr("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr")));
    EXPECT_THAT(
        asked.request.headers.back().second, HasSubstr("Credential=B/"));
    return answer(
        200,
        "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>T"
        "</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>tt"
        "</SessionToken><Expiration>2023-11-14T23:13:20Z</Expiration>"
        "</Credentials></AssumeRoleResult></AssumeRoleResponse>");
  };
  const auto chain = source();
  EXPECT_EQ(chain->get()->keys.key_id, "T");
  EXPECT_EQ(chain->get()->keys.session_token.reveal(), "tt");
  EXPECT_EQ(network_.asked().size(), 1U);  // kept while it is good
  clock_.advance(std::chrono::minutes(56));
  EXPECT_TRUE(chain->get());
  EXPECT_EQ(network_.asked().size(), 2U);
}

TEST_F(Chain, ARoleThatIsRefusedKeepsTheCloudsWords) {
  write(
      "credentials", "[base]\naws_access_key_id=B\naws_secret_access_key=s\n");
  write("config", "[default]\nrole_arn = arn:r\nsource_profile = base\n");
  answer_ = [](const FakeTransport::Asked&) -> Result<HttpResponse> {
    return answer(
        403,
        "<ErrorResponse><Error><Code>AccessDenied</Code><Message>User: b is "
        "not authorized to perform: sts:AssumeRole</Message></Error>"
        "</ErrorResponse>");
  };
  EXPECT_THAT(
      key_id(),
      AllOf(HasSubstr("profile default"), HasSubstr("User: b is not")));
}

TEST_F(Chain, ProfilesInACircle) {
  write(
      "config",
      "[profile a]\nrole_arn=x\nsource_profile=b\n[profile b]\nrole_arn=y\n"
      "source_profile=a\n");
  EXPECT_THAT(key_id("a"), HasSubstr("a -> b -> a"));
}

TEST_F(Chain, SourcesThatAreNone) {
  write(
      "config",
      "[profile a]\nrole_arn=x\n[profile "
      "b]\nrole_arn=x\ncredential_source=Moon\n"
      "[profile c]\nsso_session=s\n[profile d]\nrole_arn=x\nsource_profile=e\n"
      "mfa_serial=arn:mfa\n[profile f]\nrole_arn=x\nsource_profile=gone\n");
  EXPECT_THAT(key_id("a"), HasSubstr("needs source_profile"));
  EXPECT_THAT(key_id("b"), HasSubstr("accepted: Environment"));
  EXPECT_THAT(key_id("c"), HasSubstr("export-credentials --profile c"));
  EXPECT_THAT(key_id("d"), HasSubstr("arn:mfa"));
  EXPECT_THAT(
      key_id("f"), HasSubstr("source_profile gone is not there or has"));
}

TEST_F(Chain, TheInstancesRoleIsRenewedBeforeItsEnd) {
  be_instance("2023-11-14T23:13:20Z");
  const auto chain = source();
  const auto first = chain->get();
  ASSERT_TRUE(first) << first.error().to_string();
  EXPECT_EQ(first->keys.key_id, "ROLE1");
  EXPECT_EQ(first->source, "role my-role of this instance");
  clock_.advance(std::chrono::minutes(54));
  EXPECT_EQ(chain->get()->keys.key_id, "ROLE1");
  clock_.advance(std::chrono::minutes(2));
  EXPECT_EQ(chain->get()->keys.key_id, "ROLE2");
}

TEST_F(Chain, KeysAreUsedToTheirEndWhileNoNewOnesCome) {
  be_instance("2023-11-14T23:13:20Z");
  const auto chain = source();
  ASSERT_TRUE(chain->get());
  answer_ = nullptr;
  clock_.advance(std::chrono::minutes(57));
  EXPECT_EQ(chain->get()->keys.key_id, "ROLE1");
  const size_t asked = network_.asked().size();
  EXPECT_TRUE(chain->get());
  EXPECT_EQ(network_.asked().size(), asked);  // not at every call
  clock_.advance(std::chrono::minutes(4));
  EXPECT_FALSE(chain->get());
}

TEST_F(Chain, WhatWasDroppedIsFetchedAnew) {
  be_instance("2023-11-14T23:13:20Z");
  const auto chain = source();
  ASSERT_TRUE(chain->get());
  chain->drop();
  EXPECT_EQ(chain->get()->keys.key_id, "ROLE2");
}

TEST_F(Chain, TheContainersEndpoint) {
  environment_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1:9/c";
  environment_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "AUTH";
  answer_ = [](const FakeTransport::Asked& asked) -> Result<HttpResponse> {
    EXPECT_EQ(asked.request.headers.at(0).second, "AUTH");
    return answer(200, document("CONTAINER", "2023-11-14T23:13:20Z"));
  };
  EXPECT_EQ(key_id(), "CONTAINER");
}

TEST_F(Chain, DocumentsOfTheInstance) {
  be_instance("");
  InstanceMetadata metadata(*load_settings(environment_), network_, clock_);
  EXPECT_EQ(*metadata.get("meta-data/iam/security-credentials/"), "my-role\n");
  const auto notice = metadata.get("meta-data/spot/instance-action");
  ASSERT_FALSE(notice);
  EXPECT_EQ(notice.error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace lockstep::fetch
