#include "lockstep/cloud/user_data.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::cloud {
namespace {

constexpr const char* kKey =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExample";

TEST(UserData, HasNoPlaceLeftOpenAndPassesTheShell) {
  UserDataOptions options;
  options.user = "ubuntu";
  options.authorized_key = std::string(kKey) + " somebody's laptop\n";
  const auto text = make_user_data(options);
  ASSERT_TRUE(text) << text.error().to_string();
  EXPECT_TRUE(text->starts_with("#!/bin/sh\n"));
  EXPECT_EQ(text->find("@FOLDER@"), std::string::npos);
  for (const char* name :
       {"FOLDER",
        "USER",
        "LEASE",
        "LONGEST",
        "PERIOD",
        "PATIENCE",
        "DIGITS",
        "KEY",
        "LINE"}) {
    EXPECT_EQ(text->find("@" + std::string(name) + "@"), std::string::npos);
  }
  EXPECT_NE(text->find("+ 1800))"), std::string::npos);
  EXPECT_NE(text->find(std::string("'") + kKey + "'"), std::string::npos);
  EXPECT_EQ(text->find("laptop"), std::string::npos);
  EXPECT_LT(text->size(), kMostUserData / 4);
  const auto file = std::filesystem::temp_directory_path() /
                    ("lockstep-user-data-" + std::to_string(::getpid()));
  std::ofstream(file) << *text;
  EXPECT_EQ(std::system(("sh -n " + file.string()).c_str()), 0);
  std::filesystem::remove(file);
}

TEST(UserData, BadOptionsAreRefused) {
  const auto refused = [](auto change) {
    UserDataOptions options;
    change(options);
    const auto text = make_user_data(options);
    return !text && text.error().code() == ErrorCode::kInvalidInput;
  };
  using Options = UserDataOptions;
  EXPECT_TRUE(refused([](Options& o) { o.lease = std::chrono::seconds(1); }));
  EXPECT_TRUE(refused([](Options& o) { o.lease = std::chrono::hours(25); }));
  EXPECT_TRUE(refused([](Options& o) { o.period = Duration::zero(); }));
  EXPECT_TRUE(refused([](Options& o) { o.user = "a b"; }));
  EXPECT_TRUE(refused([](Options& o) { o.user = "-x"; }));
  EXPECT_TRUE(refused([](Options& o) { o.user = "a'; reboot; '"; }));
  EXPECT_TRUE(refused([](Options& o) { o.folder = "relative"; }));
  EXPECT_TRUE(refused([](Options& o) { o.folder = "/a$(b)"; }));
  EXPECT_TRUE(refused([](Options& o) { o.authorized_key = "hello"; }));
  EXPECT_TRUE(
      refused([](Options& o) { o.authorized_key = "ssh-rsa AAAA';reboot;'"; }));
  EXPECT_TRUE(refused(
      [](Options& o) { o.authorized_key = "ssh-rsa AAAA\nssh-rsa AAAB"; }));
  EXPECT_TRUE(refused([](Options& o) { o.authorized_key = "ssh-rsa"; }));
  EXPECT_TRUE(refused([](Options& o) {
    o.authorized_key = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA";
  }));
  EXPECT_TRUE(refused([](Options& o) {
    o.authorized_key = "ssh-rsa AAAA" + std::string(17000, 'x');
  }));
}

TEST(Lease, TextIsReadBack) {
  EXPECT_EQ(lease_text(1.7e9 + 0.9), "lockstep-lease 1 1700000000\n");
  EXPECT_EQ(*parse_lease(lease_text(1.7e9)), 1.7e9);
  for (const char* text :
       {"",
        "1700000000",
        "lockstep-lease 2 1700000000",
        "lockstep-lease 1 ",
        "lockstep-lease 1 -5",
        "lockstep-lease 1 017",
        "lockstep-lease 1 17x",
        "lockstep-lease 1 999999999999",
        "lockstep-lease 1 1700000000\nmore"}) {
    EXPECT_FALSE(parse_lease(text)) << text;
  }
}

TEST(Lease, RenewingReplacesTheFile) {
  os::FakeFileSystem files;
  ASSERT_TRUE(renew_lease("/x", 1.8e9, files));
  EXPECT_EQ(*files.read("/x/lease/until"), "lockstep-lease 1 1800000000\n");
  files.set_space(0);
  EXPECT_FALSE(renew_lease("/x", 1.9e9, files));
  EXPECT_EQ(*files.read("/x/lease/until"), "lockstep-lease 1 1800000000\n");
}

}  // namespace
}  // namespace lockstep::cloud
