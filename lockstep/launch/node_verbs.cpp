#include "lockstep/launch/node_verbs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "lockstep/launch/detached.h"
#include "lockstep/launch/program.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::seconds;

constexpr Duration kHeadPatience = seconds(30);
constexpr Duration kAgentPatience = seconds(60);
// Of the standard streams a far end leaves this one as ssh gave it: it breaks
// when the session does.
constexpr int kCaller = STDERR_FILENO;

Result<json> check(const json& request) {
  LOCKSTEP_TRY(check_program(
      request.at("program").get<std::string>(),
      request.at("workdir").get<std::string>(),
      request.at("path").get<std::string>()));
  return json::object();
}

// A link, so that what was brought is there once however often it is mounted.
Result<json> mount(const json& request) {
  const os::Path target = request.at("target").get<std::string>();
  const os::Path workdir = request.at("workdir").get<std::string>();
  const os::Path place =
      (workdir / request.at("name").get<std::string>()).lexically_normal();
  LOCKSTEP_TRY(os::real_files().make_directories(place.parent_path()));
  std::error_code error;
  if (fs::exists(fs::symlink_status(place, error)) &&
      !fs::is_symlink(fs::symlink_status(place, error))) {
    return Error(
               ErrorCode::kExists,
               fmt::format("file_mounts: {} is there already", place.string()))
        .with_fix("choose another name, or leave it out of workdir");
  }
  const os::Path temporary =
      fmt::format("{}.tmp-{}", place.string(), ::getpid());
  fs::create_symlink(target, temporary, error);
  if (!error) {
    fs::rename(temporary, place, error);
  }
  if (error) {
    return Error(
        ErrorCode::kIo,
        fmt::format(
            "file_mounts: cannot make {}: {}",
            place.string(),
            error.message()));
  }
  return json{{"path", place.string()}};
}

Result<json> start_head(const os::Path& program, const json& request) {
  LOCKSTEP_ASSIGN(
      const std::string line,
      start_detached(
          {program.string(), "head"},
          request.at("spec").get<std::string>(),
          os::Deadline::after(kHeadPatience),
          kCaller));
  LOCKSTEP_ASSIGN(const HeadAnswer answer, parse_head_line(line));
  return json{{"port", answer.port}, {"addresses", answer.addresses}};
}

Result<json> start_agent(const os::Path& program, const json& request) {
  LOCKSTEP_ASSIGN(
      const std::string line,
      start_detached(
          {program.string(), "agent"},
          request.at("spec").get<std::string>(),
          os::Deadline::after(kAgentPatience),
          kCaller));
  if (line.starts_with("joined")) {
    return json::object();
  }
  constexpr std::string_view kFailed = "failed: ";
  return Error(
      ErrorCode::kUnavailable,
      line.starts_with(kFailed) ? line.substr(kFailed.size()) : line);
}

}  // namespace

Result<HeadAnswer> parse_head_line(const std::string& line) {
  std::istringstream words(line);
  std::string first;
  HeadAnswer answer;
  if (words >> first && first == "listening" && words >> answer.port) {
    std::string address;
    while (words >> address) {
      answer.addresses.push_back(address);
    }
    return answer;
  }
  constexpr std::string_view kFailed = "failed: ";
  return Error(
      ErrorCode::kUnavailable,
      line.starts_with(kFailed) ? line.substr(kFailed.size())
                                : fmt::format("the head said '{}'", line));
}

reach::Handlers node_verbs(os::Path own_program) {
  return {
      {"check", check},
      {"mount", mount},
      {"head",
       [own_program](const json& request) {
         return start_head(own_program, request);
       }},
      {"agent", [own_program](const json& request) {
         return start_agent(own_program, request);
       }}};
}

}  // namespace lockstep::launch
