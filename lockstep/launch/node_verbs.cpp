#include "lockstep/launch/node_verbs.h"

#include <fmt/format.h>

#include <sstream>

#include "lockstep/launch/detached.h"
#include "lockstep/launch/mount_link.h"
#include "lockstep/launch/program.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;
using std::chrono::seconds;

constexpr Duration kHeadPatience = seconds(30);
constexpr Duration kAgentPatience = seconds(60);

Result<json> check(const json& request) {
  LOCKSTEP_TRY(check_program(
      request.at("program").get<std::string>(),
      request.at("workdir").get<std::string>(),
      request.at("path").get<std::string>()));
  return json::object();
}

// The workdir here is ours, and so are the links in it.
Result<json> mount(const json& request) {
  LOCKSTEP_ASSIGN(
      const os::Path place,
      link_mount(
          request.at("target").get<std::string>(),
          request.at("workdir").get<std::string>(),
          request.at("name").get<std::string>()));
  return json{{"path", place.string()}};
}

Result<json>
start_head(const os::Path& program, int caller, const json& request) {
  LOCKSTEP_ASSIGN(
      const std::string line,
      start_detached(
          {program.string(), "head"},
          request.at("spec").get<std::string>(),
          os::Deadline::after(kHeadPatience),
          caller));
  LOCKSTEP_ASSIGN(const HeadAnswer answer, parse_head_line(line));
  return json{{"port", answer.port}, {"addresses", answer.addresses}};
}

Result<json>
start_agent(const os::Path& program, int caller, const json& request) {
  const Result<std::string> line = start_detached(
      {program.string(), "agent"},
      request.at("spec").get<std::string>(),
      os::Deadline::after(kAgentPatience),
      caller);
  if (!line) {
    return line.error();
  }
  if (line->starts_with("joined")) {
    return json::object();
  }
  constexpr std::string_view kFailed = "failed: ";
  const size_t told = line->starts_with(kFailed) ? kFailed.size() : 0;
  return Error(ErrorCode::kUnavailable, line->substr(told));
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

reach::Handlers node_verbs(os::Path own_program, int caller) {
  return {
      {"check", check},
      {"mount", mount},
      {"head",
       [own_program, caller](const json& request) {
         return start_head(own_program, caller, request);
       }},
      {"agent", [own_program, caller](const json& request) {
         return start_agent(own_program, caller, request);
       }}};
}

}  // namespace lockstep::launch
