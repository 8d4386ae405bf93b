#pragma once

// What `lockstep doctor --hosts` asks a far end: versions of tools, and whether
// and how fast other hosts reach it. A listener serves only those who begin
// with its nonce, echoes and counts, and nothing else. One object a session.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/reach/far_end.h"

namespace lockstep::reach {

class Probes {
 public:
  Probes();
  ~Probes();
  Probes(const Probes&) = delete;
  Probes& operator=(const Probes&) = delete;

  // {names: [..]}: {name: first line of its --version, "" when absent}.
  static Result<nlohmann::json> tools(const nlohmann::json& request);
  // {first, last, nonce}: {port}; 0 and 0: any port. One at a time.
  Result<nlohmann::json> listen(const nlohmann::json& request);
  // {addresses: [..], port, nonce, seconds}: {address, latency (seconds, one
  // way and back), bandwidth (bytes a second; 0: not measured)}. kUnavailable
  // says how each address failed.
  static Result<nlohmann::json> dial(const nlohmann::json& request);

  void add_to(Handlers& handlers);

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace lockstep::reach
