// A store in memory that speaks as much of S3 as transfers need and checks
// nothing, so that bench/s3.py measures clients: put, get with ranges, head,
// list, multipart uploads. One thread a connection. Prints its port; ends when
// its standard input does.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Object {
  std::vector<std::shared_ptr<const std::string>> parts;
  std::vector<std::string> metadata;  // whole header lines
  uint64_t size = 0;
  std::string etag;
};

struct Store {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Object>> objects;  // by path
  struct Upload {
    std::vector<std::string> metadata;
    std::map<int, std::shared_ptr<const std::string>> parts;
  };
  std::map<std::string, Upload> uploads;
  std::atomic<uint64_t> counter{0};

  // Not an MD5, so no client takes it for one.
  std::string next_etag() { return fmt::format("e{}", ++counter); }
};

struct Request {
  std::string method;
  std::string path;
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;
  std::shared_ptr<std::string> body;
};

std::string decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16);
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool send_all(int peer, std::vector<iovec> pieces) {
  size_t first = 0;
  while (first < pieces.size()) {
    msghdr message{};
    message.msg_iov = pieces.data() + first;
    message.msg_iovlen = std::min<size_t>(pieces.size() - first, 64);
    ssize_t sent = ::sendmsg(peer, &message, MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    while (first < pieces.size() &&
           static_cast<size_t>(sent) >= pieces[first].iov_len) {
      sent -= static_cast<ssize_t>(pieces[first++].iov_len);
    }
    if (first < pieces.size()) {
      pieces[first].iov_base =
          static_cast<char*>(pieces[first].iov_base) + sent;
      pieces[first].iov_len -= static_cast<size_t>(sent);
    }
  }
  return true;
}

class Connection {
 public:
  Connection(Store& store, int peer) : store_(store), peer_(peer) {}
  void run() {
    while (read_request() && answer()) {}
    ::close(peer_);
  }

 private:
  bool read_request();
  bool answer();
  bool put();
  bool get();
  bool post();
  bool list();
  bool
  reply(int status, const std::string& headers, std::string_view body = "") {
    const std::string head = fmt::format(
        "HTTP/1.1 {} X\r\n{}Content-Length: {}\r\n\r\n",
        status,
        headers,
        body.size());
    return send_all(
        peer_,
        {{const_cast<char*>(head.data()), head.size()},
         {const_cast<char*>(body.data()), body.size()}});
  }
  std::vector<std::string> metadata() const {
    std::vector<std::string> out;
    for (const auto& [name, value] : request_.headers) {
      if (name.starts_with("x-amz-meta-")) {
        out.push_back(fmt::format("{}: {}\r\n", name, value));
      }
    }
    return out;
  }

  Store& store_;
  int peer_;
  std::string buffer_;  // what came beyond the request before
  Request request_;
};

bool Connection::read_request() {
  size_t end = std::string::npos;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    char piece[16384];
    const ssize_t count = ::recv(peer_, piece, sizeof(piece), 0);
    if (count <= 0) {
      return false;
    }
    buffer_.append(piece, static_cast<size_t>(count));
  }
  request_ = {};
  std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  for (size_t at = 0, line = 0; at < head.size(); ++line) {
    const size_t stop = head.find("\r\n", at);
    const std::string text = head.substr(at, stop - at);
    at = stop + 2;
    if (line == 0) {
      const size_t a = text.find(' ');
      const size_t b = text.rfind(' ');
      request_.method = text.substr(0, a);
      const std::string target = text.substr(a + 1, b - a - 1);
      const size_t mark = std::min(target.find('?'), target.size());
      request_.path = decode(target.substr(0, mark));
      for (size_t from = mark + 1; from < target.size();) {
        const size_t to = std::min(target.find('&', from), target.size());
        const std::string pair = target.substr(from, to - from);
        const size_t equals = std::min(pair.find('='), pair.size());
        request_.query[decode(pair.substr(0, equals))] =
            decode(pair.substr(std::min(equals + 1, pair.size())));
        from = to + 1;
      }
      continue;
    }
    const size_t colon = text.find(':');
    std::string name = text.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
      return static_cast<char>(std::tolower(c));
    });
    const size_t value = text.find_first_not_of(' ', colon + 1);
    request_.headers[name] =
        value == std::string::npos ? "" : text.substr(value);
  }
  if (request_.headers.contains("expect")) {
    const std::string go = "HTTP/1.1 100 Continue\r\n\r\n";
    send_all(peer_, {{const_cast<char*>(go.data()), go.size()}});
  }
  size_t length = 0;
  if (const auto found = request_.headers.find("content-length");
      found != request_.headers.end()) {
    length = std::stoull(found->second);
  }
  request_.body = std::make_shared<std::string>();
  bool whole = true;
  request_.body->resize_and_overwrite(length, [&](char* into, size_t size) {
    size_t done = std::min(size, buffer_.size());
    std::copy_n(buffer_.data(), done, into);
    buffer_.erase(0, done);
    while (done < size) {
      const ssize_t count = ::recv(peer_, into + done, size - done, 0);
      if (count <= 0) {
        whole = false;
        break;
      }
      done += static_cast<size_t>(count);
    }
    return done;
  });
  return whole;
}

bool Connection::put() {
  const std::string etag = store_.next_etag();
  const std::lock_guard lock(store_.mutex);
  if (request_.query.contains("partNumber")) {
    store_.uploads[request_.query["uploadId"]]
        .parts[std::stoi(request_.query["partNumber"])] = request_.body;
  } else {
    auto object = std::make_shared<Object>();
    object->parts = {request_.body};
    object->size = request_.body->size();
    object->metadata = metadata();
    object->etag = etag;
    store_.objects[request_.path] = std::move(object);
  }
  return reply(200, fmt::format("ETag: \"{}\"\r\n", etag));
}

bool Connection::post() {
  const std::lock_guard lock(store_.mutex);
  if (request_.query.contains("uploads")) {
    const std::string id = store_.next_etag();
    store_.uploads[id].metadata = metadata();
    return reply(
        200,
        "",
        fmt::format(
            "<InitiateMultipartUploadResult><UploadId>{}</UploadId>"
            "</InitiateMultipartUploadResult>",
            id));
  }
  Store::Upload upload = std::move(store_.uploads[request_.query["uploadId"]]);
  store_.uploads.erase(request_.query["uploadId"]);
  auto object = std::make_shared<Object>();
  object->metadata = std::move(upload.metadata);
  object->etag = store_.next_etag();
  for (auto& [number, part] : upload.parts) {
    object->size += part->size();
    object->parts.push_back(std::move(part));
  }
  const std::string etag = object->etag;
  store_.objects[request_.path] = std::move(object);
  return reply(
      200,
      "",
      fmt::format(
          "<CompleteMultipartUploadResult><ETag>\"{}\"</ETag>"
          "</CompleteMultipartUploadResult>",
          etag));
}

bool Connection::list() {
  const std::string bucket = request_.path + "/";
  const std::string after = request_.query["continuation-token"];
  std::string body = "<ListBucketResult>";
  std::string last;
  int count = 0;
  bool more = false;
  {
    const std::lock_guard lock(store_.mutex);
    const std::string prefix = bucket + request_.query["prefix"];
    for (auto at = after.empty() ? store_.objects.lower_bound(prefix)
                                 : store_.objects.upper_bound(bucket + after);
         at != store_.objects.end() && at->first.starts_with(prefix);
         ++at) {
      if (++count > 1000) {
        more = true;
        break;
      }
      last = at->first.substr(bucket.size());
      body += fmt::format(
          "<Contents><Key>{}</Key><LastModified>2026-11-15T10:00:00.000Z"
          "</LastModified><ETag>\"{}\"</ETag><Size>{}</Size></Contents>",
          last,
          at->second->etag,
          at->second->size);
    }
  }
  body += fmt::format("<IsTruncated>{}</IsTruncated>", more);
  if (more) {
    body +=
        fmt::format("<NextContinuationToken>{}</NextContinuationToken>", last);
  }
  return reply(200, "", body + "</ListBucketResult>");
}

bool Connection::get() {
  if (request_.query.contains("list-type")) {
    return list();
  }
  std::shared_ptr<const Object> object;
  {
    const std::lock_guard lock(store_.mutex);
    const auto found = store_.objects.find(request_.path);
    if (found != store_.objects.end()) {
      object = found->second;
    }
  }
  if (!object) {
    return reply(404, "");
  }
  uint64_t begin = 0;
  uint64_t end = object->size;
  int status = 200;
  std::string headers = fmt::format(
      "ETag: \"{}\"\r\nLast-Modified: Sun, 15 Nov 2026 10:00:00 GMT\r\n",
      object->etag);
  for (const std::string& line : object->metadata) {
    headers += line;
  }
  if (const auto range = request_.headers.find("range");
      range != request_.headers.end()) {
    const std::string& text = range->second;  // bytes=a-b
    const size_t dash = text.find('-');
    begin = std::stoull(text.substr(6, dash - 6));
    if (dash + 1 < text.size()) {
      end = std::min<uint64_t>(end, std::stoull(text.substr(dash + 1)) + 1);
    }
    status = 206;
    headers += fmt::format(
        "Content-Range: bytes {}-{}/{}\r\n", begin, end - 1, object->size);
  }
  const std::string head = fmt::format(
      "HTTP/1.1 {} X\r\n{}Content-Length: {}\r\n\r\n",
      status,
      headers,
      end - begin);
  std::vector<iovec> pieces = {{const_cast<char*>(head.data()), head.size()}};
  uint64_t at = 0;
  for (const auto& part : object->parts) {
    const uint64_t from = std::max(begin, at);
    const uint64_t to = std::min<uint64_t>(end, at + part->size());
    if (from < to && request_.method == "GET") {
      pieces.push_back(
          {const_cast<char*>(part->data()) + (from - at), to - from});
    }
    at += part->size();
  }
  return send_all(peer_, std::move(pieces));
}

bool Connection::answer() {
  if (request_.method == "PUT") {
    return put();
  }
  if (request_.method == "POST") {
    return post();
  }
  if (request_.method == "DELETE") {
    const std::lock_guard lock(store_.mutex);
    store_.objects.erase(request_.path);
    return reply(204, "");
  }
  return get();
}

// Memory that was never used costs the kernel more than a whole transfer, and
// would be counted as the clients' time: the heap is touched once, now, and is
// never given back.
void warm_memory() {
  constexpr size_t kSize = size_t{4} << 30;
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
  const auto all = static_cast<volatile char*>(std::malloc(kSize));
  for (size_t at = 0; all != nullptr && at < kSize; at += 4096) {
    all[at] = 1;
  }
  std::free(const_cast<char*>(all));
}

}  // namespace

int main() {
  warm_memory();
  Store store;
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (listener < 0 ||
      ::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener, 128) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) !=
          0) {
    std::perror("s3_server");
    return 1;
  }
  fmt::print("{}\n", ntohs(address.sin_port));
  std::fflush(stdout);
  std::thread([&] {
    while (true) {
      const int peer = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0) {
        return;
      }
      const int on = 1;
      ::setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      std::thread([&store, peer] { Connection(store, peer).run(); }).detach();
    }
  }).detach();
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {}
  std::fflush(stdout);
  ::_exit(0);
}
