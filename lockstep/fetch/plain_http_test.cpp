#include "lockstep/fetch/plain_http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "lockstep/os/socket.h"

namespace lockstep::fetch {
namespace {

using ::testing::HasSubstr;

// Answers from a script, over real sockets: for each connection the answers
// that it gives, one a request; then it closes.
class Server {
 public:
  using Script = std::vector<std::vector<std::string>>;
  explicit Server(Script script) {
    os::Address address;
    address.host = "127.0.0.1";
    listener_ = std::move(*os::real_network().listen(address));
    thread_ = std::jthread([this, script = std::move(script)] {
      for (const auto& answers : script) {
        auto connection =
            listener_->accept(os::Deadline::after(std::chrono::seconds(10)));
        if (!connection) {
          return;
        }
        ++accepted_;
        for (const std::string& answer : answers) {
          read_request(**connection);
          (void)(*connection)
              ->write_all(
                  std::as_bytes(std::span(answer)),
                  os::Deadline::after(std::chrono::seconds(10)));
        }
      }
    });
  }
  ~Server() { listener_->close(); }
  std::string url() const {
    return "http://127.0.0.1:" + std::to_string(listener_->address().port);
  }
  int accepted() const { return accepted_; }
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void read_request(os::Connection& connection) {
    std::string text;
    std::byte one{};
    while (!text.ends_with("\r\n\r\n")) {
      const auto count = connection.read_some(
          {&one, 1}, os::Deadline::after(std::chrono::seconds(10)));
      if (!count || *count == 0) {
        return;
      }
      text += static_cast<char>(one);
    }
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(text));
  }
  std::unique_ptr<os::Listener> listener_;
  std::atomic<int> accepted_{0};
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::jthread thread_;
};

// Takes so many bytes, a few at a time.
class Room : public BodyTarget {
 public:
  explicit Room(size_t size) : bytes_(size, '?') {}
  std::span<char> room() override {
    const size_t left = bytes_.size() - done_;
    return {bytes_.data() + done_, std::min<size_t>(left, 1000)};
  }
  bool filled(size_t count) override {
    done_ += count;
    return true;
  }
  std::string taken() const { return bytes_.substr(0, done_); }

 private:
  std::string bytes_;
  size_t done_ = 0;
};

std::string answer(const std::string& body, const std::string& status = "200") {
  return "HTTP/1.1 " + status +
         " X\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nEtag: e\r\n\r\n" + body;
}

HttpRequest get(const std::string& url, BodyTarget& target) {
  HttpRequest request;
  request.url = url;
  request.target = &target;
  request.connect_timeout = std::chrono::seconds(5);
  request.stall_timeout = std::chrono::seconds(5);
  return request;
}

TEST(PlainHttp, ServesWhatItIsSureOf) {
  Room room(1);
  EXPECT_TRUE(PlainHttp::serves(get("http://h/x?y", room)));
  EXPECT_TRUE(PlainHttp::serves(get("http://h:9000", room)));
  for (const char* url :
       {"https://h/",
        "http://",
        "http://h:x/",
        "http://h:70000/",
        "http://u@h/",
        "http://[::1]/",
        "http://h?x"}) {
    EXPECT_FALSE(PlainHttp::serves(get(url, room))) << url;
  }
  HttpRequest put = get("http://h/", room);
  put.method = "PUT";
  EXPECT_FALSE(PlainHttp::serves(put));
  HttpRequest without = get("http://h/", room);
  without.target = nullptr;
  EXPECT_FALSE(PlainHttp::serves(without));
  ::setenv("all_proxy", "http://p:1", 1);
  EXPECT_FALSE(PlainHttp::serves(get("http://h/", room)));
  HttpRequest direct = get("http://h/", room);
  direct.direct = true;
  EXPECT_TRUE(PlainHttp::serves(direct));
  ::unsetenv("all_proxy");
}

TEST(PlainHttp, BodiesComeOverOneConnection) {
  const std::string large(300000, 'l');
  Server server(
      {{answer(large), "HTTP/1.1 100 Continue\r\n\r\n" + answer("s")}});
  PlainHttp plain;
  Room first(large.size());
  HttpRequest request = get(server.url() + "/a%20b?c=d", first);
  request.headers = {{"Range", "bytes=0-9"}};
  auto done = plain.exchange(request);
  ASSERT_TRUE(done && *done);
  EXPECT_EQ((*done)->status, 200);
  EXPECT_EQ((*done)->header("etag"), "e");
  EXPECT_EQ((*done)->body, "");
  EXPECT_EQ(first.taken(), large);
  const std::string asked = server.requests().at(0);
  EXPECT_THAT(asked, HasSubstr("GET /a%20b?c=d HTTP/1.1\r\n"));
  EXPECT_THAT(asked, HasSubstr("Range: bytes=0-9\r\n"));
  EXPECT_THAT(asked, HasSubstr("Host: 127.0.0.1:"));
  Room second(10);
  auto again = plain.exchange(get(server.url(), second));
  ASSERT_TRUE(again && *again);
  EXPECT_EQ(second.taken(), "s");
  EXPECT_EQ(server.accepted(), 1);
}

TEST(PlainHttp, AConnectionThatWasClosedMeanwhile) {
  Server server({{answer("one")}, {answer("two")}});
  PlainHttp plain;
  for (const char* text : {"one", "two"}) {
    Room room(10);
    auto done = plain.exchange(get(server.url(), room));
    ASSERT_TRUE(done && *done) << (*done).error().to_string();
    EXPECT_EQ(room.taken(), text);
  }
  EXPECT_EQ(server.accepted(), 2);
}

TEST(PlainHttp, ARefusalIsAnAnswer) {
  Server server({{answer("<Error/>", "404")}});
  PlainHttp plain;
  Room room(10);
  auto done = plain.exchange(get(server.url(), room));
  ASSERT_TRUE(done && *done);
  EXPECT_EQ((*done)->status, 404);
  EXPECT_EQ((*done)->body, "<Error/>");
  EXPECT_EQ(room.taken(), "");
}

TEST(PlainHttp, OtherWaysToTellTheEndAreForLibcurl) {
  for (const char* head :
       {"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
        "HTTP/1.1 200 X\r\n\r\nuntil it closes",
        "HTTP/1.1 200 X\r\nContent-Length: -1\r\n\r\n"}) {
    Server server({{head}});
    PlainHttp plain;
    Room room(10);
    EXPECT_FALSE(plain.exchange(get(server.url(), room)).has_value()) << head;
    EXPECT_EQ(room.taken(), "");
  }
}

ErrorCode code_of(const std::string& text, size_t room_size, bool& retry) {
  Server server({{text}});
  PlainHttp plain;
  Room room(room_size);
  auto done = plain.exchange(get(server.url(), room));
  if (!done || *done) {
    return ErrorCode::kInternal;
  }
  retry = done->error().retry();
  return done->error().code();
}

TEST(PlainHttp, WhatGoesWrong) {
  bool retry = false;
  const std::string cut = answer(std::string(100, 'c')).substr(0, 90);
  EXPECT_EQ(code_of(cut, 200, retry), ErrorCode::kAborted);
  EXPECT_TRUE(retry);
  EXPECT_EQ(code_of("HTTP/1.1 200", 9, retry), ErrorCode::kAborted);
  EXPECT_EQ(code_of("", 9, retry), ErrorCode::kAborted);
  EXPECT_TRUE(retry);
  EXPECT_EQ(code_of("SSH-2.0 hello\r\n\r\n", 9, retry), ErrorCode::kAborted);
  EXPECT_EQ(code_of(answer("too much"), 3, retry), ErrorCode::kIo);
  EXPECT_FALSE(retry);
  EXPECT_EQ(
      code_of("HTTP/1.1 200 X\r\nA: " + std::string(100000, 'a'), 9, retry),
      ErrorCode::kCorrupt);
}

TEST(PlainHttp, NobodyThereAndNobodyWaits) {
  std::string url;
  {
    const Server gone(Server::Script{});
    url = gone.url();
  }
  PlainHttp plain;
  Room room(10);
  auto none = plain.exchange(get(url, room));
  ASSERT_TRUE(none && !*none);
  EXPECT_EQ(none->error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(none->error().retry());
  // Half of the body comes; whoever asked wants no more.
  const std::string half = answer("whole body").substr(0, 50);
  Server server({{half, half}});
  HttpRequest request = get(server.url(), room);
  request.stopped = [&] { return !room.taken().empty(); };
  auto stopped = plain.exchange(request);
  ASSERT_TRUE(stopped && !*stopped);
  EXPECT_EQ(stopped->error().code(), ErrorCode::kInterrupted);
}

}  // namespace
}  // namespace lockstep::fetch
