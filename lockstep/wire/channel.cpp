#include "lockstep/wire/channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "lockstep/wire/frame.h"
#include "lockstep/wire/proof.h"

namespace lockstep::wire {
namespace {

constexpr size_t kHeader = 4;
constexpr size_t kTag = 16;
constexpr size_t kBlock = 1 << 16;
// Of one pump: a peer that sends without end must not starve the others.
constexpr size_t kMostRead = 1 << 20;
constexpr size_t kKeptCapacity = 1 << 20;

// The tags of one direction, in order.
class Tagger {
 public:
  explicit Tagger(const Proof& key) {
    EVP_MAC* kind = ::EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    context_ = ::EVP_MAC_CTX_new(kind);
    ::EVP_MAC_free(kind);
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        ::OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        ::OSSL_PARAM_construct_end()};
    good_ = context_ != nullptr &&
            ::EVP_MAC_init(context_, key.data(), key.size(), parameters) == 1;
  }
  ~Tagger() { ::EVP_MAC_CTX_free(context_); }
  Tagger(const Tagger&) = delete;
  Tagger& operator=(const Tagger&) = delete;

  // Of the next message. None when the library refuses to make one.
  std::optional<std::array<uint8_t, kTag>> next(std::string_view payload) {
    std::array<uint8_t, 8> number{};
    for (size_t i = 0; i < number.size(); ++i) {
      number[i] = static_cast<uint8_t>(number_ >> (8 * i));
    }
    ++number_;
    Proof whole{};
    size_t size = 0;
    // Without a key it takes up the last one.
    if (!good_ || ::EVP_MAC_init(context_, nullptr, 0, nullptr) != 1 ||
        ::EVP_MAC_update(context_, number.data(), number.size()) != 1 ||
        ::EVP_MAC_update(
            context_,
            reinterpret_cast<const unsigned char*>(payload.data()),
            payload.size()) != 1 ||
        ::EVP_MAC_final(context_, whole.data(), &size, whole.size()) != 1) {
      return {};
    }
    std::array<uint8_t, kTag> tag{};
    std::copy_n(whole.begin(), kTag, tag.begin());
    return tag;
  }

 private:
  EVP_MAC_CTX* context_ = nullptr;
  bool good_ = false;
  uint64_t number_ = 0;
};

std::string peer_of(int descriptor) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* generic = reinterpret_cast<sockaddr*>(&storage);
  if (::getpeername(descriptor, generic, &length) != 0) {
    return "";
  }
  if (storage.ss_family == AF_UNIX) {
    return "unix";
  }
  char host[NI_MAXHOST] = "?";
  char port[NI_MAXSERV] = "?";
  ::getnameinfo(
      generic,
      length,
      host,
      sizeof host,
      port,
      sizeof port,
      NI_NUMERICHOST | NI_NUMERICSERV);
  return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                       : fmt::format("{}:{}", host, port);
}

template <class T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class SocketChannel : public Channel {
 public:
  SocketChannel(
      os::Descriptor socket,
      ChannelRole role,
      const Key& key,
      std::string purpose)
      : socket_(std::move(socket)),
        role_(role),
        key_(key),
        purpose_(std::move(purpose)) {
    ::fcntl(
        socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
    const int on = 1;  // refused by a Unix socket, which needs none
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    peer_ = peer_of(socket_.get());
    if (role_ == ChannelRole::kClient) {
      ours_.challenge = make_key();
      append(out_, ours_);
    }
  }

  int descriptor() const override { return socket_.get(); }
  bool ready() const override { return state_ == State::kOpen; }
  bool wants_to_write() const override { return out_at_ < out_.size(); }
  size_t queued() const override {
    return out_.size() - out_at_ + early_bytes_;
  }
  std::string peer() const override {
    return peer_.empty() ? "the other end" : peer_;
  }

  Result<void> send(std::string_view payload) override {
    if (failure_) {
      return *failure_;
    }
    if (payload.size() > kMaxFrame) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "a message of {} bytes is over the limit of {}",
              payload.size(),
              kMaxFrame));
    }
    if (state_ != State::kOpen) {
      early_.emplace_back(payload);
      early_bytes_ += payload.size();
      return {};
    }
    LOCKSTEP_TRY(add_frame(payload));
    flush();
    return {};
  }

  Result<void> pump(std::vector<std::string>& messages) override {
    if (failure_) {
      return *failure_;
    }
    Result<void> result = read(messages);
    flush();  // of a refusal, too
    if (result && broken_) {
      result = *broken_;
    }
    if (!result) {
      failure_ = result.error();
      socket_.reset();
    }
    return result;
  }

 private:
  enum class State { kHello, kProof, kAnswer, kOpen };

  Error refused(const std::string& why) const {
    return Error(ErrorCode::kPermission, fmt::format("{} {}", peer(), why));
  }

  void flush() {
    while (wants_to_write() && !broken_) {
      const ssize_t count = ::send(
          socket_.get(),
          out_.data() + out_at_,
          out_.size() - out_at_,
          MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count >= 0) {
        out_at_ += static_cast<size_t>(count);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        break;
      } else if (errno != EINTR) {
        // What the peer said before it went is still read.
        broken_ = unavailable("writing to", errno);
      }
    }
    if (!wants_to_write()) {
      out_.clear();
      out_at_ = 0;
      if (out_.capacity() > kKeptCapacity) {
        out_.shrink_to_fit();
      }
    } else if (out_at_ > kMostRead) {
      out_.erase(0, out_at_);
      out_at_ = 0;
    }
  }

  Error unavailable(const char* what, int number) const {
    const Error said = os_error(fmt::format("{} {}", what, peer()), number);
    return Error(ErrorCode::kUnavailable, said.message()).with_retry();
  }

  Result<void> read(std::vector<std::string>& messages) {
    char block[kBlock];
    size_t total = 0;
    while (total < kMostRead) {
      const ssize_t count =
          ::recv(socket_.get(), block, sizeof block, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return {};
      }
      if (count < 0) {
        return unavailable("reading from", errno);
      }
      if (count == 0) {
        return Error(
            ErrorCode::kUnavailable,
            fmt::format(
                "{} closed the connection{}",
                peer(),
                ready() ? "" : " before the hand-shake was done"));
      }
      total += static_cast<size_t>(count);
      in_.append(block, static_cast<size_t>(count));
      LOCKSTEP_TRY(take(messages));
    }
    return {};
  }

  // All whole parts of what came.
  Result<void> take(std::vector<std::string>& messages) {
    if (peer_.empty()) {
      peer_ = peer_of(socket_.get());
    }
    size_t at = 0;
    while (true) {
      const std::string_view rest = std::string_view(in_).substr(at);
      size_t used = 0;
      const Result<void> result = state_ == State::kOpen
                                      ? take_frame(rest, used, messages)
                                      : take_greeting(rest, used);
      at += used;
      if (!result || used == 0) {
        in_.erase(0, at);
        if (in_.empty() && in_.capacity() > kKeptCapacity) {
          in_.shrink_to_fit();
        }
        return result;
      }
    }
  }

  template <class T>
  static bool take_value(std::string_view text, size_t& used, T& value) {
    if (text.size() < sizeof value) {
      return false;
    }
    std::memcpy(&value, text.data(), sizeof value);
    used = sizeof value;
    return true;
  }

  Result<void> take_greeting(std::string_view text, size_t& used) {
    const bool client = role_ == ChannelRole::kClient;
    Talk talk{.key = &key_, .purpose = purpose_, .client = {}, .server = {}};
    talk.client = client ? ours_.challenge : theirs_.challenge;
    talk.server = client ? theirs_.challenge : ours_.challenge;
    if (state_ == State::kHello) {
      // A stranger is known by its first bytes.
      const size_t size = std::min(text.size(), kMagic.size());
      if (!std::equal(
              kMagic.begin(),
              kMagic.begin() + static_cast<ptrdiff_t>(size),
              reinterpret_cast<const uint8_t*>(text.data()))) {
        return refused(kStranger);
      }
      if (!take_value(text, used, theirs_)) {
        return {};
      }
      if (client) {
        talk.server = theirs_.challenge;
        append(out_, talk.prove("client"));
        state_ = State::kAnswer;
      } else {
        ours_.challenge = make_key();
        append(out_, ours_);
        state_ = State::kProof;
      }
      return {};
    }
    if (state_ == State::kProof) {
      Proof proof{};
      if (!take_value(text, used, proof)) {
        return {};
      }
      if (!equal(proof, talk.prove("client"))) {
        // Told, so that an honest client with an old key need not guess.
        append(out_, Answer{});
        return refused(kWrongKey);
      }
      append(out_, Answer{.accepted = 1, .proof = talk.prove("server")});
      return open(talk);
    }
    Answer answer;
    if (!take_value(text, used, answer)) {
      return {};
    }
    if (answer.accepted != 1) {
      return refused(kRefusedKey);
    }
    if (!equal(answer.proof, talk.prove("server"))) {
      return refused(kWrongKey);
    }
    return open(talk);
  }

  Result<void> open(const Talk& talk) {
    const bool client = role_ == ChannelRole::kClient;
    // Words that prove() is never asked for by a hand-shake.
    const Proof up = talk.prove("channel to server");
    const Proof down = talk.prove("channel to client");
    sent_.emplace(client ? up : down);
    received_.emplace(client ? down : up);
    state_ = State::kOpen;
    for (const std::string& payload : early_) {
      LOCKSTEP_TRY(add_frame(payload));
    }
    early_.clear();
    early_.shrink_to_fit();
    early_bytes_ = 0;
    return {};
  }

  Result<void> add_frame(std::string_view payload) {
    const auto tag = sent_->next(payload);
    if (!tag) {
      return Error(ErrorCode::kInternal, "OpenSSL does not make an HMAC");
    }
    for (size_t i = 0; i < kHeader; ++i) {
      out_ += static_cast<char>((payload.size() >> (8 * i)) & 0xff);
    }
    out_ += payload;
    append(out_, *tag);
    return {};
  }

  Result<void> take_frame(
      std::string_view text,
      size_t& used,
      std::vector<std::string>& messages) {
    if (text.size() < kHeader) {
      return {};
    }
    size_t size = 0;
    for (size_t i = 0; i < kHeader; ++i) {
      size |= size_t{static_cast<uint8_t>(text[i])} << (8 * i);
    }
    if (size > kMaxFrame) {
      return refused(
          fmt::format(
              "announced a message of {} bytes, the limit is {}",
              size,
              kMaxFrame));
    }
    if (text.size() - kHeader < size + kTag) {
      return {};
    }
    const std::string_view payload = text.substr(kHeader, size);
    const auto tag = received_->next(payload);
    if (!tag ||
        ::CRYPTO_memcmp(
            tag->data(), text.data() + kHeader + size, tag->size()) != 0) {
      return refused("sent a message that was changed, repeated or put in");
    }
    messages.emplace_back(payload);
    used = kHeader + size + kTag;
    return {};
  }

  os::Descriptor socket_;
  ChannelRole role_;
  Key key_;
  std::string purpose_;
  std::string peer_;  // empty: not connected yet
  State state_ = State::kHello;
  Hello ours_, theirs_;
  std::optional<Tagger> sent_, received_;
  std::string in_;
  std::string out_;
  size_t out_at_ = 0;               // of out_, that the socket took
  std::vector<std::string> early_;  // messages before the channel is open
  size_t early_bytes_ = 0;
  std::optional<Error> broken_;   // nothing can be written any more
  std::optional<Error> failure_;  // for good
};

}  // namespace

std::unique_ptr<Channel> Channel::make(
    os::Descriptor socket,
    ChannelRole role,
    const Key& key,
    std::string purpose) {
  return std::make_unique<SocketChannel>(
      std::move(socket), role, key, std::move(purpose));
}

}  // namespace lockstep::wire
