#include "lockstep/fetch/aws_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::fetch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Home : public ::testing::Test {
 protected:
  Home() {
    std::string name =
        (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    std::filesystem::create_directory(folder_ / ".aws");
    environment_["HOME"] = folder_.string();
  }
  ~Home() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / ".aws" / name) << text;
    std::filesystem::permissions(
        folder_ / ".aws" / name,
        std::filesystem::perms::owner_read |
            std::filesystem::perms::owner_write);
  }
  std::filesystem::path folder_;
  std::map<std::string, std::string> environment_;
};

TEST(Profiles, SectionsRemarksAndNestedValues) {
  const auto file = parse_profiles(
      "# a remark\n[default]\nregion = eu-west-1 # here\n"
      "[profile  \"dev\"]\ns3 =\n  addressing_style = path\n"
      "  max = 3\nRegion=x\n\n; another\n[services local]\n"
      "s3 =\n  endpoint_url = http://h:1/#not\n",
      "config");
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_EQ(file->at("default").at("region"), "eu-west-1");
  EXPECT_EQ(file->at("dev").at("s3.addressing_style"), "path");
  EXPECT_EQ(file->at("dev").at("region"), "x");
  EXPECT_EQ(
      file->at("services local").at("s3.endpoint_url"), "http://h:1/#not");
}

TEST(Profiles, ABadLineIsNamedButNotShown) {
  const auto file =
      parse_profiles("[default]\nwJalrXUtnFEMI\n", "/h/.aws/credentials");
  ASSERT_FALSE(file);
  EXPECT_THAT(
      file.error().to_string(), HasSubstr("/h/.aws/credentials:2: expected"));
  EXPECT_THAT(file.error().to_string(), Not(HasSubstr("wJalr")));
  EXPECT_FALSE(parse_profiles("a = b\n", "x"));
  EXPECT_FALSE(parse_profiles("[open\n", "x"));
}

TEST_F(Home, NothingThereIsFine) {
  const auto settings = load_settings(environment_);
  ASSERT_TRUE(settings) << settings.error().to_string();
  EXPECT_EQ(settings->region(), "");
  EXPECT_EQ(
      settings->endpoint("s3", "eu-west-1"),
      "https://s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(
      settings->endpoint("ec2", "cn-north-1"),
      "https://ec2.cn-north-1.amazonaws.com.cn");
  EXPECT_FALSE(settings->custom_endpoint("s3"));
}

TEST_F(Home, RegionAndEndpointByEnvironmentThenProfile) {
  write(
      "config",
      "[default]\nregion = a\nendpoint_url = http://p:1/\n[profile dev]\n"
      "region = b\nservices = mine\n[services mine]\ns3 =\n"
      "  endpoint_url = http://s:2\n");
  EXPECT_EQ(load_settings(environment_)->region(), "a");
  EXPECT_EQ(load_settings(environment_)->endpoint("ec2", "a"), "http://p:1");
  EXPECT_EQ(load_settings(environment_, "dev")->region(), "b");
  EXPECT_EQ(
      load_settings(environment_, "dev")->endpoint("s3", "b"), "http://s:2");
  environment_["AWS_PROFILE"] = "dev";
  EXPECT_EQ(load_settings(environment_)->region(), "b");
  environment_["AWS_DEFAULT_REGION"] = "c";
  EXPECT_EQ(load_settings(environment_)->region(), "c");
  environment_["AWS_REGION"] = "d";
  EXPECT_EQ(load_settings(environment_)->region(), "d");
  environment_["AWS_ENDPOINT_URL"] = "http://e:3";
  EXPECT_EQ(load_settings(environment_)->endpoint("s3", "d"), "http://e:3");
  environment_["AWS_ENDPOINT_URL_S3"] = "http://f:4";
  EXPECT_EQ(load_settings(environment_)->endpoint("s3", "d"), "http://f:4");
  EXPECT_TRUE(load_settings(environment_)->custom_endpoint("s3"));
}

TEST_F(Home, AProfileThatIsNotThere) {
  write("config", "[profile dev]\nregion = b\n");
  environment_["AWS_PROFILE"] = "dvv";
  const auto settings = load_settings(environment_);
  ASSERT_FALSE(settings);
  EXPECT_EQ(settings.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(settings.error().to_string(), HasSubstr("'dvv'"));
  EXPECT_THAT(settings.error().to_string(), HasSubstr("there is: dev"));
}

TEST_F(Home, FilesElsewhere) {
  std::ofstream(folder_ / "mine") << "[default]\nregion = z\n";
  environment_["AWS_CONFIG_FILE"] = "~/mine";
  EXPECT_EQ(load_settings(environment_)->region(), "z");
}

}  // namespace
}  // namespace lockstep::fetch
