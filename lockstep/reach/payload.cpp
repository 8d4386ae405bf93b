#include "lockstep/reach/payload.h"

#include "lockstep/reach/content.h"
#include "lockstep/reach/prune.h"

namespace lockstep::reach {

Result<std::shared_ptr<Payload>> Payload::open(const os::Path& program) {
  LOCKSTEP_ASSIGN(os::MappedFile file, os::MappedFile::open(program));
  return std::shared_ptr<Payload>(new Payload(std::move(file)));
}

Payload::Payload(os::MappedFile file) : file_(std::move(file)) {
  hash_ = sha256_of(bytes());
}

std::string_view Payload::bytes() const {
  const auto bytes = file_.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<std::string_view> Payload::packed() {
  const std::lock_guard lock(mutex_);
  if (packed_.empty()) {
    const os::Path kept = lockstep_home() / "packed" / (hash_ + ".gz");
    mark_used(kept);
    prune(kept.parent_path());
    if (auto text = os::real_files().read(kept); text && !text->empty()) {
      packed_ = std::move(*text);
      return packed_;
    }
    LOCKSTEP_ASSIGN(packed_, gzip(bytes()));
    if (os::real_files().make_directories(kept.parent_path())) {
      (void)os::real_files().write_atomic(kept, packed_).has_value();
    }
  }
  return packed_;
}

}  // namespace lockstep::reach
