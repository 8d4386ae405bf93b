#pragma once

// Text that must never be seen: a key, a session token. It prints as ***
// wherever fmt or a stream shows it; whoever needs the bytes says reveal(),
// which is easy to find in a review. A value; one thread.

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <utility>

namespace lockstep::fetch {

class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string text) : text_(std::move(text)) {}
  const std::string& reveal() const { return text_; }
  bool empty() const { return text_.empty(); }
  bool operator==(const Secret&) const = default;

 private:
  std::string text_;
};

inline std::ostream& operator<<(std::ostream& out, const Secret&) {
  return out << "***";
}

}  // namespace lockstep::fetch

template <>
struct fmt::formatter<lockstep::fetch::Secret> : fmt::formatter<const char*> {
  template <class Context>
  auto format(const lockstep::fetch::Secret&, Context& context) const {
    return fmt::formatter<const char*>::format("***", context);
  }
};
