#include "lockstep/fetch/http_head.h"

#include <charconv>

#include "lockstep/base/text.h"

namespace lockstep::fetch {

void take_head_line(HttpResponse& response, std::string_view line) {
  if (line.starts_with("HTTP/")) {
    response.headers.clear();
    response.status = 0;
    const auto space = line.find(' ');
    if (space != std::string_view::npos && line.size() >= space + 4) {
      std::from_chars(
          line.data() + space + 1, line.data() + space + 4, response.status);
    }
  } else if (
      const auto colon = line.find(':'); colon != std::string_view::npos) {
    response.headers[lower(line.substr(0, colon))] =
        std::string(trim(line.substr(colon + 1)));
  }
}

}  // namespace lockstep::fetch
