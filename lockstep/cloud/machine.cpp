#include "lockstep/cloud/machine.h"

namespace lockstep::cloud {

std::string_view to_string(Market market) {
  return market == Market::kSpot ? "spot" : "on-demand";
}

std::string_view to_string(InstanceState state) {
  switch (state) {
    case InstanceState::kPending:
      return "pending";
    case InstanceState::kRunning:
      return "running";
    case InstanceState::kStopping:
      return "stopping";
    case InstanceState::kStopped:
      return "stopped";
    case InstanceState::kEnding:
      return "ending";
    case InstanceState::kGone:
      return "gone";
  }
  return "unknown";
}

std::string_view to_string(ResourceKind kind) {
  switch (kind) {
    case ResourceKind::kInstance:
      return "instance";
    case ResourceKind::kSpotRequest:
      return "spot request";
    case ResourceKind::kVolume:
      return "volume";
    case ResourceKind::kKeyPair:
      return "key pair";
    case ResourceKind::kSecurityGroup:
      return "security group";
  }
  return "unknown";
}

bool matches(const Tags& tags, const Tags& wanted) {
  for (const auto& [key, value] : wanted) {
    const auto found = tags.find(key);
    if (found == tags.end() || (!value.empty() && found->second != value)) {
      return false;
    }
  }
  return true;
}

}  // namespace lockstep::cloud
