#pragma once

// What a provider tells about: types that can be had, machines, and all else
// that carries our tag. Plain values.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"

namespace lockstep::cloud {

using Tags = std::map<std::string, std::string>;

// Everything that we make carries the first of these; audits go by it.
inline constexpr std::string_view kClusterTag = "lockstep:cluster";
inline constexpr std::string_view kNodeTag = "lockstep:node";
inline constexpr std::string_view kTokenTag = "lockstep:token";
inline constexpr std::string_view kOwnerTag = "lockstep:owner";

enum class Market { kOnDemand, kSpot };
std::string_view to_string(Market market);  // "on-demand", "spot"

struct Accelerator {
  std::string name;  // "T4"
  int count = 0;
  Bytes memory;  // of each
};

// A type of machine that can be had.
struct Offer {
  std::string type;
  int cpus = 0;
  Bytes memory;
  std::vector<Accelerator> accelerators;
  std::string architecture;        // "x86_64", "arm64"
  std::vector<std::string> zones;  // that have it; empty: no zones here
  bool spot = false;
};

// In the unit that the cloud counts in.
struct Quota {
  std::string name;  // as the cloud calls it
  std::string unit;  // "vCPUs"
  double limit = 0;
  double used = 0;
  double left() const { return limit > used ? limit - used : 0; }
};

struct Image {
  std::string id;
  std::string name;
  std::string architecture;
  std::string root_device;  // "/dev/sda1"
  Bytes disk;               // the least that it needs
  std::string user;         // who logs in: "ubuntu"
};

struct ImageWish {
  std::string id;            // empty: the newest that fits
  std::string architecture;  // of the type; another one is an error
  bool gpu = false;          // with the driver
};

enum class InstanceState {
  kPending,
  kRunning,
  kStopping,
  kStopped,
  kEnding,
  kGone,
};
std::string_view to_string(InstanceState state);

struct Instance {
  std::string id;
  std::string type;
  std::string zone;
  InstanceState state = InstanceState::kPending;
  std::string reason;  // of its end, in the cloud's words
  Market market = Market::kOnDemand;
  std::string spot_request;
  std::string private_address;
  std::string public_address;
  double launched = 0;  // Unix seconds
  std::string token;    // of the order that made it
  Tags tags;
  // It costs money, or will.
  bool is_live() const {
    return state != InstanceState::kGone && state != InstanceState::kEnding;
  }
};

// What an account can be charged for or cluttered with.
enum class ResourceKind {
  kInstance,
  kSpotRequest,
  kVolume,
  kKeyPair,
  kSecurityGroup,
};
inline constexpr ResourceKind kResourceKinds[] = {
    ResourceKind::kInstance,
    ResourceKind::kSpotRequest,
    ResourceKind::kVolume,
    ResourceKind::kKeyPair,
    ResourceKind::kSecurityGroup,
};
std::string_view to_string(ResourceKind kind);  // "spot request"

struct Resource {
  ResourceKind kind = ResourceKind::kInstance;
  std::string id;
  std::string name;    // or type, or size: what a person knows it by
  std::string state;   // in the cloud's words
  std::string zone;    // empty: of the whole region
  double created = 0;  // Unix seconds; 0: not told
  Tags tags;
  // It is over, or on its way out, and costs nothing any more.
  bool is_over = false;
};

// Whether `tags` has all of `wanted`; an empty value stands for any.
bool matches(const Tags& tags, const Tags& wanted);

// Which ones: all of `tags`; an empty value stands for any. Ids narrow it; an
// id that is not there (any more) gives nothing.
struct Selection {
  Tags tags;
  std::vector<std::string> ids;
};

}  // namespace lockstep::cloud
