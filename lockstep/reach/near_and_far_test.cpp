#include "lockstep/reach/near_and_far_test.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "lockstep/reach/far_end.h"

namespace lockstep::reach {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFakeSsh = R"sh(#!/bin/sh
folder=${0%/*}
echo call >>"$folder/calls"
while [ $# -gt 2 ]; do shift; done
case $1 in
  unknown)
    echo "ssh: Could not resolve hostname unknown: Name or service not known" >&2
    exit 255 ;;
  refused)
    echo "me@refused: Permission denied (publickey)." >&2
    exit 255 ;;
  busy)
    if [ ! -e "$folder/was-busy" ]; then
      touch "$folder/was-busy"
      echo "kex_exchange_identification: Connection closed by remote host" >&2
      exit 255
    fi ;;
  silent) exec sleep 600 ;;
  noisy) printf "Welcome to noisy!\nno end of line" ;;
  other)
    mkdir -p "$folder/tools"
    printf '#!/bin/sh\necho riscv64\n' >"$folder/tools/uname"
    chmod 755 "$folder/tools/uname"
    PATH=$folder/tools:$PATH ;;
  plain)
    mkdir -p "$folder/few"
    for tool in sh uname mkdir head chmod mv rm cat; do
      ln -sf "$(command -v $tool)" "$folder/few/$tool"
    done
    PATH=$folder/few ;;
esac
unset LOCKSTEP_HOME
HOME=$folder/homes/$1
case $1 in file) HOME=$folder/calls ;; esac
export HOME PATH
exec /bin/sh -c "$2"
)sh";

}  // namespace

NearAndFar::NearAndFar() {
  std::string name = ::testing::TempDir() + "lockstep-reach-XXXXXX";
  folder_ = ::mkdtemp(name.data());
  write(folder_ / "ssh", kFakeSsh);
  ::chmod((folder_ / "ssh").c_str(), 0755);
  ::setenv("LOCKSTEP_SSH", (folder_ / "ssh").c_str(), 1);
  ::setenv("LOCKSTEP_HOME", (folder_ / "near").c_str(), 1);
  fs::create_directories(folder_ / "homes");
}

NearAndFar::~NearAndFar() {
  ::unsetenv("LOCKSTEP_SSH");
  ::unsetenv("LOCKSTEP_HOME");
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

ReachOptions NearAndFar::options() const {
  ReachOptions options;
  options.program = fs::read_symlink("/proc/self/exe");
  options.patience = std::chrono::seconds(60);
  return options;
}

std::unique_ptr<Session> NearAndFar::session(const std::string& host) {
  auto made = reach(host, options());
  EXPECT_TRUE(made) << made.error().to_string();
  return made ? std::move(*made) : nullptr;
}  // namespace

os::Path NearAndFar::home(const std::string& host) const {
  return folder_ / "homes" / host / ".cache" / "lockstep";
}

size_t NearAndFar::calls() const {
  const std::string text = read(folder_ / "calls");
  return static_cast<size_t>(std::ranges::count(text, '\n'));
}

void NearAndFar::write(const os::Path& path, const std::string& text) const {
  fs::create_directories(path.parent_path());
  ASSERT_TRUE(os::real_files().write_atomic(path, text));
}

std::string NearAndFar::read(const os::Path& path) const {
  return os::real_files().read(path).value_or("");
}

}  // namespace lockstep::reach

// The far end of the sessions that the tests make.
int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "far-end") == 0) {
    using nlohmann::json;
    return lockstep::reach::serve_far_end([](int) {
      return lockstep::reach::Handlers{
          {"echo",
           [](const json& request) -> lockstep::Result<json> {
             std::puts("printed by mistake");
             return request;
           }},
          {"fail",
           [](const json&) -> lockstep::Result<json> {
             return lockstep::Error(
                        lockstep::ErrorCode::kNoSpace, "the disk is full")
                 .with_fix("buy another")
                 .with_context("writing x");
           }},
          {"take",
           [](const json&) -> lockstep::Result<json> {
             return json::object();
           }},
          {"throw",
           [](const json& request) -> lockstep::Result<json> {
             return request.at("not there");
           }},
          {"die", [](const json&) -> lockstep::Result<json> { ::_exit(9); }}};
    });
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
