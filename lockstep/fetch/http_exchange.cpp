#include "lockstep/fetch/http_exchange.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/fetch/curl_library.h"
#include "lockstep/fetch/http_head.h"
#include "lockstep/fetch/plain_http.h"

namespace lockstep::fetch {
namespace {

// Answers that no sink takes are documents, not data.
constexpr size_t kLargestBody = size_t{64} << 20;
constexpr size_t kLarge = size_t{1} << 20;
constexpr long kBuffer = 1L << 18;  // stays in the processor's cache

// One exchange as its callbacks see it.
struct Exchange {
  const HttpRequest* request = nullptr;
  HttpResponse response;
  uint64_t sent = 0;  // of a body_source
  bool source_failed = false;
  bool sink_refused = false;
  bool too_large = false;
  bool stopped = false;
};

size_t on_header(char* data, size_t size, size_t count, void* self) {
  take_head_line(static_cast<Exchange*>(self)->response, {data, size * count});
  return size * count;
}

size_t on_body(char* data, size_t size, size_t count, void* self) {
  auto& exchange = *static_cast<Exchange*>(self);
  const std::string_view bytes(data, size * count);
  const HttpRequest& request = *exchange.request;
  const bool taken = request.sink || request.target != nullptr;
  if (taken && is_success(exchange.response.status)) {
    exchange.sink_refused =
        !(request.sink ? request.sink(bytes) : feed(*request.target, bytes));
    return exchange.sink_refused ? 0 : bytes.size();
  }
  if (exchange.response.body.size() + bytes.size() > kLargestBody) {
    exchange.too_large = true;
    return 0;
  }
  exchange.response.body += bytes;
  return bytes.size();
}

size_t on_send(char* into, size_t size, size_t count, void* self) {
  auto& exchange = *static_cast<Exchange*>(self);
  const BodySource& source = *exchange.request->body_source;
  const size_t wanted =
      std::min<uint64_t>(size * count, source.size - exchange.sent);
  if (wanted > 0 && !source.read(exchange.sent, {into, wanted})) {
    exchange.source_failed = true;
    return CURL_READFUNC_ABORT;
  }
  exchange.sent += wanted;
  return wanted;
}

// libcurl sends a body again when a kept connection turns out to be closed.
int on_seek(void* self, curl_off_t offset, int origin) {
  auto& exchange = *static_cast<Exchange*>(self);
  if (origin != SEEK_SET || offset < 0) {
    return CURL_SEEKFUNC_CANTSEEK;
  }
  exchange.sent = static_cast<uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& exchange = *static_cast<Exchange*>(self);
  exchange.stopped = exchange.request->stopped && exchange.request->stopped();
  return exchange.stopped ? 1 : 0;
}

Error failure(
    const Exchange& exchange,
    CURLcode code,
    const std::string& text) {
  // Queries may hold what others should not read; the address is enough.
  const std::string& url = exchange.request->url;
  const auto failed = [&](ErrorCode error, const std::string& what) {
    return Error(
        error, fmt::format("{}: {}", url.substr(0, url.find('?')), what));
  };
  if (exchange.stopped) {
    return failed(ErrorCode::kInterrupted, "stopped");
  }
  if (exchange.sink_refused) {
    return failed(ErrorCode::kIo, "what came could not be stored");
  }
  if (exchange.source_failed) {
    return failed(ErrorCode::kIo, "what is sent could not be read");
  }
  if (exchange.too_large) {
    return failed(
        ErrorCode::kCorrupt,
        fmt::format(
            "the answer is longer than {}", format_bytes(Bytes{kLargestBody})));
  }
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      return failed(ErrorCode::kUnavailable, text).with_retry();
    case CURLE_OPERATION_TIMEDOUT:
      return failed(ErrorCode::kTimeout, text).with_retry();
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_SSL_CONNECT_ERROR:
      return failed(ErrorCode::kAborted, text).with_retry();
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return failed(ErrorCode::kInvalidInput, text);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return failed(ErrorCode::kPermission, text)
          .with_fix(
              "check the clock and the certificates (AWS_CA_BUNDLE names a "
              "file of them)");
    default:
      return failed(ErrorCode::kAborted, text);
  }
}

class HeaderList {
 public:
  explicit HeaderList(const CurlLibrary& curl) : curl_(curl) {}
  HeaderList(const HeaderList&) = delete;
  ~HeaderList() { curl_.slist_free_all(list_); }
  void add(const std::string& line) {
    list_ = curl_.slist_append(list_, line.c_str());
  }
  curl_slist* get() const { return list_; }

 private:
  const CurlLibrary& curl_;
  curl_slist* list_ = nullptr;
};

// Handles are kept because each holds its connections; a thread takes one
// for the time of an exchange, the last one given back first.
class CurlTransport : public HttpTransport {
 public:
  Result<HttpResponse> exchange(const HttpRequest& request) override;

 private:
  CURL* take(const CurlLibrary& curl);
  void give_back(CURL* handle);

  std::mutex mutex_;
  std::vector<CURL*> idle_;
  PlainHttp plain_;
};

CURL* CurlTransport::take(const CurlLibrary& curl) {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      CURL* handle = idle_.back();
      idle_.pop_back();
      curl.easy_reset(handle);
      return handle;
    }
  }
  return curl.easy_init();
}

void CurlTransport::give_back(CURL* handle) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(handle);
}

void set_source(const CurlLibrary& curl, CURL* handle, Exchange& exchange) {
  curl.easy_setopt(handle, CURLOPT_UPLOAD, 1L);
  curl.easy_setopt(
      handle,
      CURLOPT_INFILESIZE_LARGE,
      static_cast<curl_off_t>(exchange.request->body_source->size));
  curl.easy_setopt(handle, CURLOPT_READFUNCTION, on_send);
  curl.easy_setopt(handle, CURLOPT_READDATA, &exchange);
  curl.easy_setopt(handle, CURLOPT_SEEKFUNCTION, on_seek);
  curl.easy_setopt(handle, CURLOPT_SEEKDATA, &exchange);
  curl.easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, kBuffer);
}

void set_method(
    const CurlLibrary& curl,
    CURL* handle,
    const HttpRequest& request) {
  const bool carries = request.method == "PUT" || request.method == "POST" ||
                       !request.body.empty();
  if (request.method == "HEAD") {
    curl.easy_setopt(handle, CURLOPT_NOBODY, 1L);
    return;
  }
  if (carries) {
    curl.easy_setopt(
        handle,
        CURLOPT_POSTFIELDSIZE_LARGE,
        static_cast<curl_off_t>(request.body.size()));
    curl.easy_setopt(
        handle,
        CURLOPT_POSTFIELDS,
        request.body.empty() ? "" : request.body.data());
    if (request.body.size() > kLarge) {
      curl.easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, kBuffer);
    }
  }
  curl.easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
}

void set_headers(HeaderList& list, const HttpRequest& request) {
  bool typed = false;
  for (const auto& [name, value] : request.headers) {
    typed = typed || lower(name) == "content-type";
    // libcurl leaves out "Name:" and sends "Name;" without a value.
    list.add(value.empty() ? name + ";" : name + ": " + value);
  }
  if (!typed) {
    list.add("Content-Type:");  // none, instead of libcurl's own
  }
  list.add("Expect:");  // no pause before a body is sent
}

Result<HttpResponse> CurlTransport::exchange(const HttpRequest& request) {
  if (PlainHttp::serves(request)) {
    if (auto done = plain_.exchange(request)) {
      return std::move(*done);
    }
  }
  LOCKSTEP_ASSIGN(const CurlLibrary* library, curl_library());
  const CurlLibrary& curl = *library;
  CURL* handle = take(curl);
  if (handle == nullptr) {
    return Error(ErrorCode::kInternal, "libcurl did not start");
  }
  Exchange exchange;
  exchange.request = &request;
  std::array<char, CURL_ERROR_SIZE> text{};
  HeaderList headers(curl);
  set_headers(headers, request);
  const auto milliseconds = [](Duration value) {
    return std::max(1L, static_cast<long>(to_seconds(value) * 1000));
  };
  curl.easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl.easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl.easy_setopt(handle, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  // Keys of objects may hold "..", which is part of their name.
  curl.easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);
  curl.easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl.easy_setopt(handle, CURLOPT_TCP_NODELAY, 1L);
  curl.easy_setopt(
      handle, CURLOPT_USERAGENT, ("lockstep/" + version()).c_str());
  curl.easy_setopt(
      handle, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(request.connect_timeout));
  curl.easy_setopt(
      handle, CURLOPT_TIMEOUT_MS, milliseconds(request.total_timeout));
  curl.easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl.easy_setopt(
      handle,
      CURLOPT_LOW_SPEED_TIME,
      std::max(1L, static_cast<long>(to_seconds(request.stall_timeout))));
  curl.easy_setopt(handle, CURLOPT_ERRORBUFFER, text.data());
  curl.easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
  curl.easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl.easy_setopt(handle, CURLOPT_HEADERDATA, &exchange);
  curl.easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl.easy_setopt(handle, CURLOPT_WRITEDATA, &exchange);
  if (request.stopped) {
    curl.easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl.easy_setopt(handle, CURLOPT_XFERINFODATA, &exchange);
    curl.easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  }
  if (request.sink || request.target != nullptr) {
    curl.easy_setopt(handle, CURLOPT_BUFFERSIZE, kBuffer);
  }
  if (request.direct) {
    curl.easy_setopt(handle, CURLOPT_PROXY, "");
  }
  if (request.fresh) {
    curl.easy_setopt(handle, CURLOPT_FRESH_CONNECT, 1L);
  }
  if (!request.ca_file.empty()) {
    curl.easy_setopt(handle, CURLOPT_CAINFO, request.ca_file.c_str());
  }
  if (request.body_source != nullptr) {
    set_source(curl, handle, exchange);
    curl.easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  } else {
    set_method(curl, handle, request);
  }
  const CURLcode code = curl.easy_perform(handle);
  give_back(handle);
  if (code != CURLE_OK) {
    return failure(
        exchange,
        code,
        text[0] != '\0' ? text.data() : curl.easy_strerror(code));
  }
  return std::move(exchange.response);
}

}  // namespace

bool feed(BodyTarget& target, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::span<char> room = target.room();
    const size_t count = std::min(room.size(), bytes.size());
    if (count == 0) {
      return false;
    }
    std::memcpy(room.data(), bytes.data(), count);
    bytes.remove_prefix(count);
    if (!target.filled(count)) {
      return false;
    }
  }
  return true;
}

HttpTransport& real_transport() {
  // Never destroyed: threads may still be in an exchange when main returns.
  static auto* transport = new CurlTransport;
  return *transport;
}

struct FakeTransport::State {
  Answer answer;
  mutable std::mutex mutex;
  std::vector<Asked> asked;
};

FakeTransport::FakeTransport(Answer answer)
    : state_(std::make_unique<State>()) {
  state_->answer = std::move(answer);
}
FakeTransport::~FakeTransport() = default;

Result<HttpResponse> FakeTransport::exchange(const HttpRequest& request) {
  const std::lock_guard lock(state_->mutex);
  Asked asked{request, std::string(request.body)};
  asked.request.body = {};
  if (const BodySource* source = request.body_source; source != nullptr) {
    asked.body.resize(source->size);
    if (!source->read(0, asked.body)) {
      return Error(ErrorCode::kIo, "what is sent could not be read");
    }
    asked.request.body_source = nullptr;
  }
  asked.request.sink = nullptr;
  asked.request.target = nullptr;
  state_->asked.push_back(asked);
  Result<HttpResponse> response = state_->answer(state_->asked.back());
  const bool taken = request.sink || request.target != nullptr;
  if (response && taken && is_success(response->status)) {
    if (!(request.sink ? request.sink(response->body)
                       : feed(*request.target, response->body))) {
      return Error(ErrorCode::kIo, "what came could not be stored");
    }
    response->body.clear();
  }
  return response;
}

std::vector<FakeTransport::Asked> FakeTransport::asked() const {
  const std::lock_guard lock(state_->mutex);
  return state_->asked;
}

}  // namespace lockstep::fetch
