#include "lockstep/cloud/ec2/spot_notices.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/cloud/ec2/calls.h"

namespace lockstep::cloud::ec2 {
namespace {

using nlohmann::json;

// None when the document is not there: nothing was said.
Result<std::optional<json>> read_document(
    fetch::InstanceMetadata& metadata,
    const std::string& path) {
  auto text = metadata.get(path);
  if (!text) {
    if (text.error().code() == ErrorCode::kNotFound) {
      return std::optional<json>();
    }
    return Error(std::move(text.error()));
  }
  json document = json::parse(*text, nullptr, false);
  if (!document.is_object()) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("{} says '{}', which is not JSON", path, *text));
  }
  return std::optional<json>(std::move(document));
}

std::string text_of(const json& document, const char* key) {
  return document.contains(key) && document[key].is_string()
             ? document[key].get<std::string>()
             : "";
}

}  // namespace

Result<std::optional<Notice>> SpotNotices::look() {
  LOCKSTEP_ASSIGN(
      const auto action,
      read_document(metadata_, "meta-data/spot/instance-action"));
  if (action) {
    Notice notice;
    notice.kind = Notice::Kind::kInterruption;
    notice.action = text_of(*action, "action");
    notice.at = parse_time(text_of(*action, "time"));
    return std::optional<Notice>(notice);
  }
  LOCKSTEP_ASSIGN(
      const auto hint,
      read_document(metadata_, "meta-data/events/recommendations/rebalance"));
  if (hint) {
    Notice notice;
    notice.kind = Notice::Kind::kRebalance;
    notice.at = parse_time(text_of(*hint, "noticeTime"));
    return std::optional<Notice>(notice);
  }
  return std::optional<Notice>();
}

}  // namespace lockstep::cloud::ec2
