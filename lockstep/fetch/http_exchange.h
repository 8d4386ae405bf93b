#pragma once

// One HTTP request and its answer, without any thought about retries: what
// everything that speaks to a cloud stands on. The real transport keeps its
// connections and is safe from any thread, one exchange a thread at a time;
// the fake beside it plays answers from a script.
//
// An Error means that no whole answer came: kUnavailable (nobody there: the
// request was not sent), kAborted (a reset, a cut body: it may have arrived),
// kTimeout, kInterrupted (stopped() said so), kIo (the sink refused), kNotFound
// (no libcurl); retry() says whether the same may work later. Any status is an
// answer, also 500.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

using Headers = std::vector<std::pair<std::string, std::string>>;

// A body that is read while it is sent, so that it stands in no memory of ours.
struct BodySource {
  uint64_t size = 0;
  // Fills `into` from there on; asked in order, and from the start again when
  // it is sent again. False ends the exchange with kIo.
  std::function<bool(uint64_t offset, std::span<char> into)> read;
};

// Memory that a body is received into, by its owner's measure.
class BodyTarget {
 public:
  virtual ~BodyTarget() = default;
  // Where the next bytes may go; empty: no more is taken.
  virtual std::span<char> room() = 0;
  // So many stand at the start of the room now. False ends the exchange.
  virtual bool filled(size_t count) = 0;
};
// Copies all of them there; false: not all are taken.
bool feed(BodyTarget& target, std::string_view bytes);

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // encoded, sent as it stands
  Headers headers;  // Host among them where it was signed
  std::string_view body;
  const BodySource* body_source =
      nullptr;  // instead of body; outlives the call
  // Takes the body of a 2xx answer instead of HttpResponse::body, in pieces;
  // false ends the exchange with kIo.
  std::function<bool(std::string_view)> sink;
  // Instead of a sink, for large bodies; outlives the call. Full: kIo.
  BodyTarget* target = nullptr;
  std::function<bool()> stopped;  // asked now and then
  Duration connect_timeout = std::chrono::seconds(10);
  Duration stall_timeout = std::chrono::seconds(30);  // no byte for so long
  Duration total_timeout = std::chrono::hours(1);
  bool direct = false;  // past any proxy: for addresses of this machine
  bool fresh = false;   // on a new connection: never sent twice by libcurl
  os::Path ca_file;     // instead of the system's certificates
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // empty where a sink took it
  // Empty when the header is absent.
  const std::string& header(const std::string& lower_case_name) const {
    static const std::string none;
    const auto found = headers.find(lower_case_name);
    return found == headers.end() ? none : found->second;
  }
};

class HttpTransport {
 public:
  virtual ~HttpTransport() = default;
  virtual Result<HttpResponse> exchange(const HttpRequest& request) = 0;
};

// Over libcurl, HTTP/1.1, proxies of the environment honoured, redirects not
// followed; plain http into a target without it (fetch/plain_http.h). One for
// the whole process.
HttpTransport& real_transport();

// Answers from a function; keeps what was asked (bodies copied). Thread-safe
// as far as the function is: it is called under a lock.
class FakeTransport : public HttpTransport {
 public:
  struct Asked {
    HttpRequest request;  // its body is empty: see below
    std::string body;
  };
  using Answer = std::function<Result<HttpResponse>(const Asked& asked)>;
  explicit FakeTransport(Answer answer);
  ~FakeTransport() override;
  Result<HttpResponse> exchange(const HttpRequest& request) override;
  std::vector<Asked> asked() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::fetch
