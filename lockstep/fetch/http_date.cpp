#include "lockstep/fetch/http_date.h"

#include <ctime>

namespace lockstep::fetch {

std::optional<int64_t> parse_http_date(const std::string& text) {
  std::tm parts{};
  const char* end =
      ::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  if (end == nullptr || *end != '\0') {
    return std::nullopt;
  }
  return ::timegm(&parts);
}

std::optional<int64_t> parse_iso_date(const std::string& text) {
  std::tm parts{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr) {
    return std::nullopt;
  }
  if (*end == '.') {
    do {
      ++end;
    } while (*end >= '0' && *end <= '9');
  }
  const std::string zone = end;
  if (zone != "Z" && zone != "+00:00") {
    return std::nullopt;
  }
  return ::timegm(&parts);
}

}  // namespace lockstep::fetch
