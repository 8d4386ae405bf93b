#pragma once

// The frames between a rendezvous client and its server, inside the module.
//   put: 'P', u32 length of the key, key, value
//   get: 'G', u32 patience in milliseconds, key
//   reply: 'Y' and the value, or 'N' when the patience ended
// A client with more patience than kMaxPatience asks again, so that the server
// never waits long for one that is gone. Pure.

#include <string>
#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"

namespace lockstep::wire {

inline constexpr std::string_view kRendezvousPurpose = "rendezvous";
inline constexpr size_t kMaxRendezvousFrame = 1 << 20;
inline constexpr Duration kMaxPatience = std::chrono::seconds(5);

struct Request {
  bool is_put = false;
  std::string key;
  std::string value;                     // of a put
  Duration patience = Duration::zero();  // of a get
};
std::string format_request(const Request& request);
Result<Request> parse_request(std::string_view frame);

struct Reply {
  bool found = false;
  std::string value;
};
std::string format_reply(const Reply& reply);
Result<Reply> parse_reply(std::string_view frame);

}  // namespace lockstep::wire
