#include "lockstep/wire/handshake.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <span>
#include <string>

#include "lockstep/os/file.h"
#include "lockstep/wire/proof.h"

namespace lockstep::wire {
namespace {

template <class T>
Result<void> send(os::Connection& connection, const T& value, os::Deadline d) {
  return connection.write_all(std::as_bytes(std::span(&value, 1)), d);
}

template <class T>
Result<void> receive(os::Connection& connection, T& value, os::Deadline d) {
  return connection.read_all(std::as_writable_bytes(std::span(&value, 1)), d);
}

Error refused(const os::Connection& connection, const char* why) {
  return Error(
      ErrorCode::kPermission, fmt::format("{} {}", connection.peer(), why));
}

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
  Answer verdict;
  LOCKSTEP_TRY(receive(connection, verdict, deadline));
  if (verdict.accepted != 1) {
    return refused(connection, kRefusedKey);
  }
  if (!equal(verdict.proof, talk.prove("server"))) {
    return refused(connection, kWrongKey);
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
    LOCKSTEP_TRY(send(connection, Answer{}, deadline));
    return refused(connection, kWrongKey);
  }
  return send(
      connection,
      Answer{.accepted = 1, .proof = talk.prove("server")},
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
