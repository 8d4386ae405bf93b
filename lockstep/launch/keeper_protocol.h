#pragma once

// Words between an agent and its keeper over a socket pair: frames of a u32
// length and CBOR (environments may hold bytes that are not text). Both ends
// are the same binary, so there is no version.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"

namespace lockstep::launch {

// One end. Owns the descriptor. Writes block (frames are small beside the
// socket's buffer, but for start), reads do not.
class KeeperChannel {
 public:
  explicit KeeperChannel(int descriptor) : descriptor_(descriptor) {}
  ~KeeperChannel();
  KeeperChannel(const KeeperChannel&) = delete;
  KeeperChannel& operator=(const KeeperChannel&) = delete;

  Result<void> send(const nlohmann::json& message);
  // Appends whole messages that have come; an error when the peer is gone or
  // sent what cannot be a frame (what came before it is still appended).
  Result<void> receive(std::vector<nlohmann::json>& messages);
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
  std::string buffer_;
};

nlohmann::json encode_start(const StartRequest& request);
StartRequest decode_start(const nlohmann::json& message);
nlohmann::json encode_end(int signal, Duration grace);
nlohmann::json encode_renew(Duration left, Duration patience);
nlohmann::json encode_exit(const RankExited& exit);
RankExited decode_exit(const nlohmann::json& message);

}  // namespace lockstep::launch
