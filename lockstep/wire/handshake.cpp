#include "lockstep/wire/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <string>

#include "lockstep/os/file.h"

// On the wire, all of fixed size:
//   client -> server   magic, client's challenge
//   server -> client   magic, server's challenge
//   client -> server   proof
//   server -> client   1 and its proof, or 0 and zeroes when it refuses
// The client proves itself first: a stranger learns nothing made with the key.

namespace lockstep::wire {
namespace {

constexpr size_t kProofSize = 32;
constexpr std::array<uint8_t, 4> kMagic = {'L', 'S', 'K', '1'};

using Proof = std::array<uint8_t, kProofSize>;

struct Hello {
  std::array<uint8_t, 4> magic = kMagic;
  Key challenge{};
};

struct Verdict {
  uint8_t accepted = 0;
  Proof proof{};
};

// Messages are plain bytes without padding.
static_assert(sizeof(Hello) == 36 && sizeof(Verdict) == 33);

template <class T>
Result<void> send(os::Connection& connection, const T& value, os::Deadline d) {
  return connection.write_all(std::as_bytes(std::span(&value, 1)), d);
}

template <class T>
Result<void> receive(os::Connection& connection, T& value, os::Deadline d) {
  return connection.read_all(std::as_writable_bytes(std::span(&value, 1)), d);
}

// What both ends know after the hellos.
struct Talk {
  const Key* key;
  std::string_view purpose;
  Key client{};
  Key server{};

  // The role keeps one end's proof from being sent back to it; the lengths
  // of what follows the purpose are fixed, so no two talks read alike.
  Proof prove(std::string_view role) const {
    std::string text =
        fmt::format("lockstep 1 {} {}", role, purpose) + std::string(1, '\0');
    text.append(client.begin(), client.end());
    text.append(server.begin(), server.end());
    Proof proof{};
    unsigned int size = proof.size();
    ::HMAC(
        ::EVP_sha256(),
        key->data(),
        static_cast<int>(key->size()),
        reinterpret_cast<const unsigned char*>(text.data()),
        text.size(),
        proof.data(),
        &size);
    return proof;
  }
};

// In a time that does not tell how many bytes agree.
bool equal(const Proof& a, const Proof& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Error refused(const os::Connection& connection, const char* why) {
  return Error(
      ErrorCode::kPermission, fmt::format("{} {}", connection.peer(), why));
}

constexpr const char* kStranger = "does not speak the lockstep protocol";

Result<void> greet_client_steps(
    os::Connection& connection,
    Talk talk,
    os::Deadline deadline) {
  Hello ours{.challenge = make_key()};
  LOCKSTEP_TRY(send(connection, ours, deadline));
  Hello theirs;
  LOCKSTEP_TRY(receive(connection, theirs, deadline));
  if (theirs.magic != kMagic) {
    return refused(connection, kStranger);
  }
  talk.client = ours.challenge;
  talk.server = theirs.challenge;
  LOCKSTEP_TRY(send(connection, talk.prove("client"), deadline));
  Verdict verdict;
  LOCKSTEP_TRY(receive(connection, verdict, deadline));
  if (verdict.accepted != 1) {
    return refused(connection, "refused the key: it belongs to another run");
  }
  if (!equal(verdict.proof, talk.prove("server"))) {
    return refused(connection, "does not hold the key of this run");
  }
  return {};
}

Result<void> greet_server_steps(
    os::Connection& connection,
    Talk talk,
    os::Deadline deadline) {
  Hello theirs;
  LOCKSTEP_TRY(receive(connection, theirs, deadline));
  if (theirs.magic != kMagic) {
    return refused(connection, kStranger);
  }
  Hello ours{.challenge = make_key()};
  LOCKSTEP_TRY(send(connection, ours, deadline));
  talk.client = theirs.challenge;
  talk.server = ours.challenge;
  Proof proof{};
  LOCKSTEP_TRY(receive(connection, proof, deadline));
  if (!equal(proof, talk.prove("client"))) {
    // Told, so that an honest client with an old key need not guess.
    LOCKSTEP_TRY(send(connection, Verdict{}, deadline));
    return refused(connection, "does not hold the key of this run");
  }
  return send(
      connection,
      Verdict{.accepted = 1, .proof = talk.prove("server")},
      deadline);
}

Result<void> close_on_failure(os::Connection& connection, Result<void> result) {
  if (!result) {
    connection.close();
  }
  return result;
}

}  // namespace

Result<void> greet_as_client(
    os::Connection& connection,
    const Key& key,
    std::string_view purpose,
    os::Deadline deadline) {
  return close_on_failure(
      connection,
      greet_client_steps(
          connection, Talk{.key = &key, .purpose = purpose}, deadline));
}

Result<void> greet_as_server(
    os::Connection& connection,
    const Key& key,
    std::string_view purpose,
    os::Deadline deadline) {
  return close_on_failure(
      connection,
      greet_server_steps(
          connection, Talk{.key = &key, .purpose = purpose}, deadline));
}

Result<Key> read_key_file(const std::string& path) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) {
    return os_error(fmt::format("cannot read key file {}", path), errno);
  }
  if ((facts.st_mode & 077) != 0) {
    return Error(
               ErrorCode::kPermission,
               fmt::format("others may read the key file {}", path))
        .with_fix(fmt::format("run 'chmod 600 {}'", path));
  }
  LOCKSTEP_ASSIGN(std::string text, os::real_files().read(path));
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  Key key{};
  if (!from_hex(text, key)) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("key file {} does not hold 64 hexadecimal digits", path));
  }
  return key;
}

Result<void> write_key_file(const std::string& path, const Key& key) {
  return os::write_private(path, to_hex(key) + "\n");
}

}  // namespace lockstep::wire
