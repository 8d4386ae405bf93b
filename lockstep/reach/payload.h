#pragma once

// The program that travels: lockstep itself, read and packed once for all
// hosts. Safe from any thread.

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::reach {

class Payload {
 public:
  static Result<std::shared_ptr<Payload>> open(const os::Path& program);

  std::string_view bytes() const;
  const std::string& hash() const { return hash_; }
  // Gzipped. Kept beside the other files of lockstep: the next launch reads it.
  Result<std::string_view> packed();

 private:
  explicit Payload(os::MappedFile file);
  os::MappedFile file_;
  std::string hash_;
  std::mutex mutex_;
  std::string packed_;
};

}  // namespace lockstep::reach
