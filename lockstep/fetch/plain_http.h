#pragma once

// Large bodies over http, without libcurl: what comes is received straight
// into the caller's memory (BodyTarget), where libcurl hands it over in pieces
// of 16 KiB to be copied. It does what it is sure of: a GET, no proxy, an
// answer that tells its length. Everything else is libcurl's. Connections are
// kept; one that the server closed meanwhile is replaced unseen. Thread-safe.
// Internal to fetch.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/fetch/http_exchange.h"

namespace lockstep::fetch {

struct PlainLine;  // a connection and what is set on it

class PlainHttp {
 public:
  PlainHttp();
  ~PlainHttp();

  // Whether a request is of the kind.
  static bool serves(const HttpRequest& request);

  // As HttpTransport::exchange, for a request that it serves. None: the answer
  // is one that libcurl has to read, nothing of it was used; ask there.
  std::optional<Result<HttpResponse>> exchange(const HttpRequest& request);

 private:
  std::unique_ptr<PlainLine> take(const std::string& server);
  void give_back(const std::string& server, std::unique_ptr<PlainLine> line);

  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<PlainLine>>> idle_;
};

}  // namespace lockstep::fetch
