#include "lockstep/reach/ssh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/reach/loader.h"

namespace lockstep::reach {
namespace {

using ::testing::HasSubstr;

struct Case {
  Stage stage;
  const char* words;
  const char* what;
  const char* fix;
};

class Failures : public ::testing::TestWithParam<Case> {};

TEST_P(Failures, NameTheHostKeepTheWordsAndSayWhatToDo) {
  const Error error =
      explain_failure("node7", GetParam().stage, GetParam().words);
  EXPECT_THAT(error.message(), HasSubstr("node7"));
  EXPECT_THAT(error.message(), HasSubstr(GetParam().what));
  EXPECT_THAT(error.fix(), HasSubstr(GetParam().fix));
  // The exit code of machines that failed.
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Failures,
    ::testing::Values(
        Case{
            Stage::kConnect,
            "ssh: Could not resolve hostname node7: Name or service not known",
            "Name or service not known",
            "~/.ssh/config"},
        Case{
            Stage::kConnect,
            "Warning: Permanently added 'node7'\n"
            "root@node7: Permission denied (publickey).\r\n",
            "refused (root@node7: Permission denied (publickey).)",
            "ssh-copy-id node7"},
        Case{
            Stage::kConnect,
            "@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
            "Host key verification failed.\n",
            "not the one that is known",
            "ssh-keygen -R node7"},
        Case{
            Stage::kConnect,
            "No ED25519 host key is known for node7 and you have requested "
            "strict checking.\nHost key verification failed.\n",
            "not known here",
            "ssh node7"},
        Case{
            Stage::kConnect,
            "ssh: connect to host node7 port 22: Connection refused\n",
            "port 22: Connection refused",
            "sshd"},
        Case{
            Stage::kConnect,
            "ssh: connect to host node7 port 22: Connection timed out\n",
            "no answer",
            "firewall"},
        Case{
            Stage::kPlace,
            "gzip: stdout: No space left on device\n",
            "no space for lockstep",
            "LOCKSTEP_FAR_HOME"},
        Case{
            Stage::kPlace,
            "mkdir: cannot create directory '/x': Read-only file system\n",
            "read-only",
            "LOCKSTEP_FAR_HOME"},
        Case{
            Stage::kPlace,
            "mkdir: cannot create directory '/x': Permission denied\n",
            "cannot be written to",
            "LOCKSTEP_FAR_HOME"},
        Case{
            Stage::kStart,
            "/x/lockstep: /lib/libc.so.6: version `GLIBC_2.36' not found\n",
            "libc is older",
            "oldest system"},
        Case{
            Stage::kConnect,
            "something that nobody has seen\n",
            "something that nobody has seen",
            "ssh node7 true"}));

TEST(Bootstrap, IsOneLineThatAnyShellTakes) {
  const auto command = bootstrap_command({"abc", "MARK", ""});
  ASSERT_TRUE(command);
  const std::string inner = command->substr(
      sizeof("exec /bin/sh -c '") - 1,
      command->size() - sizeof("exec /bin/sh -c '"));
  EXPECT_EQ(inner.find_first_of("'\\!\n"), std::string::npos) << inner;
  EXPECT_THAT(*command, HasSubstr("$HOME/.cache/lockstep"));
}

TEST(Bootstrap, TakesOnlyPlainHomes) {
  EXPECT_THAT(*bootstrap_command({"abc", "MARK", "~/x"}), HasSubstr("$HOME/x"));
  const auto bad = bootstrap_command({"abc", "MARK", "/a b;rm"});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), ErrorCode::kInvalidInput);
}

TEST(SshCommand, PutsTheUsersOptionsFirst) {
  ReachOptions options;
  options.ssh_options = {"-o", "ControlPersist=no"};
  const auto command = ssh_command(options, true);
  ASSERT_TRUE(command) << command.error().to_string();
  EXPECT_EQ((*command)[2], "ControlPersist=no");
  EXPECT_THAT(*command, ::testing::Contains("BatchMode=yes"));
}

TEST(Loader, ReadsWhatItLists) {
  const auto libraries = parse_loader_list(
      "\tlinux-vdso.so.1 (0x1)\n"
      "\tlibtorch.so => /opt/torch/lib/libtorch.so (0x2)\n"
      "\tlibc.so.6 => /lib/libc.so.6 (0x3)\n"
      "\t/lib64/ld-linux-x86-64.so.2 (0x4)\n"
      "\tlibstdc++.so.6 => /lib (x)/libstdc++.so.6 (0x5)\n");
  ASSERT_TRUE(libraries);
  ASSERT_EQ(libraries->size(), 2U);
  EXPECT_EQ((*libraries)[0].name, "libtorch.so");
  EXPECT_EQ((*libraries)[0].path, "/opt/torch/lib/libtorch.so");
  EXPECT_EQ((*libraries)[1].path, "/lib (x)/libstdc++.so.6");
  const auto lacking = parse_loader_list("\tlibx.so.1 => not found\n");
  ASSERT_FALSE(lacking);
  EXPECT_THAT(lacking.error().message(), HasSubstr("libx.so.1"));
}

TEST(Loader, FindsTheLibrariesOfAProgram) {
  // This test itself loads libstdc++ or has it inside; libc never counts.
  const auto libraries = libraries_of("/proc/self/exe");
  ASSERT_TRUE(libraries) << libraries.error().to_string();
  for (const Library& library : *libraries) {
    EXPECT_FALSE(library.name.starts_with("libc.so")) << library.name;
    EXPECT_TRUE(std::filesystem::exists(library.path)) << library.path;
  }
  EXPECT_EQ(*interpreter_of("#!/bin/sh\n"), "");
  EXPECT_EQ(*interpreter_of(""), "");
  EXPECT_FALSE(
      interpreter_of(std::string_view("\177ELF\2\1\1\0\0\0\0\0\0\0\0\0", 16)));
}

}  // namespace
}  // namespace lockstep::reach
