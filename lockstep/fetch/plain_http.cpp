#include "lockstep/fetch/plain_http.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/fetch/http_head.h"
#include "lockstep/os/socket.h"

namespace lockstep::fetch {

struct PlainLine {
  std::unique_ptr<os::Connection> connection;
  int low_water = 1;  // bytes that must be there before a wait ends

  // The kernel wakes us for a whole piece instead of for every packet.
  void wait_for(size_t bytes) {
    const int wanted = static_cast<int>(std::clamp<size_t>(bytes, 1, 1 << 20));
    if (wanted != low_water && ::setsockopt(
                                   connection->descriptor(),
                                   SOL_SOCKET,
                                   SO_RCVLOWAT,
                                   &wanted,
                                   sizeof(wanted)) == 0) {
      low_water = wanted;
    }
  }
};

namespace {

constexpr size_t kHeadPiece =
    8192;  // of a head, with the first bytes of a body
constexpr size_t kLargestHead = size_t{64} << 10;
constexpr uint64_t kLargestRefusal = uint64_t{1} << 20;
constexpr Duration kSlice = std::chrono::milliseconds(200);

struct Url {
  std::string server;  // "host" or "host:port", as it stands
  os::Address address;
  std::string target;  // path and query
};

std::optional<Url> parse_url(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) {
    return std::nullopt;
  }
  const size_t begin = kScheme.size();
  const size_t end = std::min(text.find_first_of("/?#", begin), text.size());
  Url out;
  out.server = text.substr(begin, end - begin);
  out.target = end < text.size() ? text.substr(end) : "/";
  // Names of users and addresses in brackets: libcurl knows their rules.
  if (out.server.empty() || out.target.front() != '/' ||
      out.server.find_first_of("@[]") != std::string::npos) {
    return std::nullopt;
  }
  const size_t colon = out.server.find(':');
  out.address.host = out.server.substr(0, colon);
  out.address.port = 80;
  if (colon != std::string::npos) {
    const char* first = out.server.data() + colon + 1;
    const char* last = out.server.data() + out.server.size();
    const auto parsed = std::from_chars(first, last, out.address.port);
    if (parsed.ec != std::errc() || parsed.ptr != last) {
      return std::nullopt;
    }
  }
  return out;
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

enum class Ending {
  kWhole,
  kNothing,  // the connection was closed before anything came
  kForCurl,  // another way to tell the end of the body than its length
};

// One request on one connection.
class PlainExchange {
 public:
  PlainExchange(const HttpRequest& request, const Url& url, PlainLine& line)
      : request_(request),
        url_(url),
        line_(line),
        total_(os::Deadline::after(request.total_timeout)) {}

  Result<Ending> run();
  HttpResponse& response() { return response_; }
  bool keeps() const { return keeps_; }

 private:
  Error failed(ErrorCode code, std::string_view what) const {
    const std::string& url = request_.url;
    return Error(
        code, fmt::format("{}: {}", url.substr(0, url.find('?')), what));
  }
  Error cut() const {
    return failed(ErrorCode::kAborted, "the answer ended before its end")
        .with_retry();
  }
  std::string head_text() const;
  Result<size_t> receive(std::span<char> into, size_t at_least);
  Result<Ending> read_head();
  Result<bool> take_head();
  Result<void> read_body(uint64_t length);
  Result<void> read_refusal(uint64_t length);

  const HttpRequest& request_;
  const Url& url_;
  PlainLine& line_;
  os::Deadline total_;
  HttpResponse response_;
  std::string held_;  // what came and is not used yet
  bool keeps_ = false;
};

std::string PlainExchange::head_text() const {
  std::string out = fmt::format("GET {} HTTP/1.1\r\n", url_.target);
  bool has_host = false;
  for (const auto& [name, value] : request_.headers) {
    has_host = has_host || lower(name) == "host";
    out += fmt::format("{}: {}\r\n", name, value);
  }
  if (!has_host) {
    out += fmt::format("Host: {}\r\n", url_.server);
  }
  return out + fmt::format("User-Agent: lockstep/{}\r\n\r\n", version());
}

Result<size_t> PlainExchange::receive(std::span<char> into, size_t at_least) {
  line_.wait_for(at_least);
  const auto stalls = os::Deadline::after(request_.stall_timeout);
  while (true) {
    if (request_.stopped && request_.stopped()) {
      return failed(ErrorCode::kInterrupted, "stopped");
    }
    const int descriptor = line_.connection->descriptor();
    pollfd waits{descriptor, POLLIN, 0};
    ::poll(&waits, 1, static_cast<int>(kSlice / std::chrono::milliseconds(1)));
    // Also after the slice: on a slow way less is there than was waited for.
    const ssize_t count =
        ::recv(descriptor, into.data(), into.size(), MSG_DONTWAIT);
    if (count >= 0) {
      return static_cast<size_t>(count);
    }
    if (errno != EAGAIN && errno != EINTR) {
      return failed(ErrorCode::kAborted, std::strerror(errno)).with_retry();
    }
    if (stalls.passed() || total_.passed()) {
      return failed(ErrorCode::kTimeout, "nothing came for too long")
          .with_retry();
    }
  }
}

// One head out of what is held; false: it is not whole yet.
Result<bool> PlainExchange::take_head() {
  const size_t end = held_.find("\r\n\r\n");
  if (end == std::string::npos) {
    if (held_.size() > kLargestHead) {
      return failed(ErrorCode::kCorrupt, "the head of the answer has no end");
    }
    return false;
  }
  if (!held_.starts_with("HTTP/1.")) {
    return failed(ErrorCode::kAborted, "the server does not speak HTTP")
        .with_retry();
  }
  keeps_ = held_.starts_with("HTTP/1.1");
  for (size_t at = 0; at < end + 2;) {
    const size_t stop = held_.find("\r\n", at);
    take_head_line(response_, std::string_view(held_).substr(at, stop - at));
    at = stop + 2;
  }
  held_.erase(0, end + 4);
  return true;
}

Result<Ending> PlainExchange::read_head() {
  std::array<char, kHeadPiece> piece;
  bool is_first = true;
  do {
    LOCKSTEP_ASSIGN(bool whole, take_head());
    while (!whole) {
      auto count = receive(piece, 1);
      const bool closed =
          count ? *count == 0 : count.error().code() == ErrorCode::kAborted;
      if (closed && is_first) {
        return Ending::kNothing;
      }
      if (!count) {
        return std::move(count.error());
      }
      if (*count == 0) {
        return cut();
      }
      is_first = false;
      held_.append(piece.data(), *count);
      LOCKSTEP_ASSIGN(whole, take_head());
    }
  } while (response_.status >= 100 && response_.status < 200);
  if (lower(response_.header("connection")) == "close") {
    keeps_ = false;
  }
  return Ending::kWhole;
}

Result<void> PlainExchange::read_body(uint64_t length) {
  const auto refused = [&] {
    return failed(ErrorCode::kIo, "what came could not be stored");
  };
  BodyTarget& target = *request_.target;
  if (held_.size() > length) {
    return failed(ErrorCode::kCorrupt, "more came than was told");
  }
  if (!feed(target, held_)) {
    return refused();
  }
  for (uint64_t left = length - held_.size(); left > 0;) {
    std::span<char> room = target.room();
    if (room.empty()) {
      return refused();
    }
    room = room.first(std::min<uint64_t>(room.size(), left));
    LOCKSTEP_ASSIGN(const size_t count, receive(room, room.size()));
    if (count == 0) {
      return cut();
    }
    left -= count;
    if (!target.filled(count)) {
      return refused();
    }
  }
  return {};
}

Result<void> PlainExchange::read_refusal(uint64_t length) {
  std::array<char, kHeadPiece> piece;
  response_.body = std::move(held_);
  while (response_.body.size() < length) {
    LOCKSTEP_ASSIGN(const size_t count, receive(piece, 1));
    if (count == 0) {
      return cut();
    }
    response_.body.append(piece.data(), count);
  }
  return {};
}

Result<Ending> PlainExchange::run() {
  const std::string text = head_text();
  const auto sent =
      line_.connection->write_all(std::as_bytes(std::span(text)), total_);
  if (!sent) {
    return Ending::kNothing;
  }
  LOCKSTEP_ASSIGN(const Ending head, read_head());
  if (head != Ending::kWhole) {
    return head;
  }
  const std::string& told = response_.header("content-length");
  uint64_t length = 0;
  const auto parsed =
      std::from_chars(told.data(), told.data() + told.size(), length);
  const bool fits = is_success(response_.status) || length <= kLargestRefusal;
  if (!response_.header("transfer-encoding").empty() ||
      parsed.ec != std::errc() || parsed.ptr != told.data() + told.size() ||
      !fits) {
    keeps_ = false;
    return Ending::kForCurl;
  }
  auto read =
      is_success(response_.status) ? read_body(length) : read_refusal(length);
  if (!read) {
    keeps_ = false;
    return std::move(read.error());
  }
  line_.wait_for(1);
  return Ending::kWhole;
}

}  // namespace

PlainHttp::PlainHttp() = default;
PlainHttp::~PlainHttp() = default;

bool PlainHttp::serves(const HttpRequest& request) {
  return request.target != nullptr && request.method == "GET" &&
         request.body.empty() && request.body_source == nullptr &&
         !request.fresh && parse_url(request.url).has_value() &&
         (request.direct || (!is_set("http_proxy") && !is_set("all_proxy") &&
                             !is_set("ALL_PROXY")));
}

std::unique_ptr<PlainLine> PlainHttp::take(const std::string& server) {
  const std::lock_guard lock(mutex_);
  auto& lines = idle_[server];
  if (lines.empty()) {
    return nullptr;
  }
  auto line = std::move(lines.back());
  lines.pop_back();
  return line;
}

void PlainHttp::give_back(
    const std::string& server,
    std::unique_ptr<PlainLine> line) {
  const std::lock_guard lock(mutex_);
  idle_[server].push_back(std::move(line));
}

std::optional<Result<HttpResponse>> PlainHttp::exchange(
    const HttpRequest& request) {
  const auto url = parse_url(request.url);
  if (!url) {
    return std::nullopt;
  }
  while (true) {
    auto line = take(url->server);
    const bool is_kept = line != nullptr;
    if (!is_kept) {
      auto made = os::real_network().connect(
          url->address, os::Deadline::after(request.connect_timeout));
      if (!made) {
        return Result<HttpResponse>(
            Error(ErrorCode::kUnavailable, made.error().to_string())
                .with_retry());
      }
      line = std::make_unique<PlainLine>();
      line->connection = std::move(*made);
    }
    PlainExchange one(request, *url, *line);
    auto ended = one.run();
    if (!ended) {
      return Result<HttpResponse>(std::move(ended.error()));
    }
    if (one.keeps()) {
      give_back(url->server, std::move(line));
    }
    if (*ended == Ending::kForCurl) {
      return std::nullopt;
    }
    if (*ended == Ending::kWhole) {
      return Result<HttpResponse>(std::move(one.response()));
    }
    // A kept connection may be closed by now: the next one, at last a new one.
    if (!is_kept) {
      return Result<HttpResponse>(
          Error(
              ErrorCode::kAborted,
              fmt::format("{} closed the connection unasked", url->server))
              .with_retry());
    }
  }
}

}  // namespace lockstep::fetch
