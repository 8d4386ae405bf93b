#pragma once

// The head of an answer, line by line, as libcurl and our own reader hand it
// over. Internal to fetch; pure.

#include <string_view>

#include "lockstep/fetch/http_exchange.h"

namespace lockstep::fetch {

inline bool is_success(int status) {
  return status >= 200 && status < 300;
}

// A status line starts the answer anew ("100 Continue" comes before what
// counts); any other line adds a header, its name in lower case.
void take_head_line(HttpResponse& response, std::string_view line);

}  // namespace lockstep::fetch
