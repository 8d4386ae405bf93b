#include "lockstep/launch/tail.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace lockstep::launch {
namespace {

constexpr size_t kLongestLine = 1 << 16;
constexpr size_t kLongestWord = 1 << 12;  // that is kept whole

uint64_t size_of(int descriptor) {
  struct stat facts{};
  return ::fstat(descriptor, &facts) == 0 ? static_cast<uint64_t>(facts.st_size)
                                          : 0;
}

// Secrets are masked in each piece of a line by itself: none is to be cut.
std::string take_last_word(std::string& text) {
  const size_t space = text.find_last_of(" \t\r");
  if (space == std::string::npos || text.size() - space > kLongestWord) {
    return "";
  }
  std::string word = text.substr(space + 1);
  text.resize(space + 1);
  return word;
}

}  // namespace

bool Tail::open() {
  if (!file_) {
    file_ = os::Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }
  return static_cast<bool>(file_);
}

size_t Tail::end_of_line(std::string_view text) const {
  if (ends_ == Ends::kNewlines) {
    return text.find('\n');
  }
  const auto end =
      std::ranges::find_if(text, [](char c) { return c == '\n' || c == '\r'; });
  return end == text.end() ? std::string_view::npos
                           : static_cast<size_t>(end - text.begin());
}

std::vector<std::string> Tail::read(size_t room) {
  std::vector<std::string> lines;
  if (!open()) {
    return lines;
  }
  char block[1 << 16];
  while (room > 0) {
    const ssize_t size = ::pread(
        file_.get(),
        block,
        std::min(room, sizeof block),
        static_cast<off_t>(offset_));
    if (size <= 0) {
      break;
    }
    offset_ += static_cast<uint64_t>(size);
    room -= static_cast<size_t>(size);
    std::string_view text(block, static_cast<size_t>(size));
    while (!text.empty()) {
      if (std::exchange(returned_, false) && text.front() == '\n') {
        text.remove_prefix(1);
        continue;
      }
      const size_t end = end_of_line(text);
      partial_.append(text.substr(0, end));
      if (end == std::string_view::npos && partial_.size() < kLongestLine) {
        break;
      }
      returned_ = end != std::string_view::npos && text[end] == '\r';
      std::string begun;
      if (end == std::string_view::npos) {
        begun = take_last_word(partial_);
      }
      lines.push_back(std::move(partial_));
      partial_ = std::move(begun);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
  }
  return lines;
}

std::vector<std::string> Tail::rest() {
  if (partial_.empty()) {
    return {};
  }
  std::vector<std::string> lines = {std::move(partial_)};
  partial_.clear();
  return lines;
}

uint64_t Tail::left() {
  if (!open()) {
    return 0;
  }
  const uint64_t size = size_of(file_.get());
  return size > offset_ ? size - offset_ : 0;
}

uint64_t Tail::skip(uint64_t keep) {
  const uint64_t ahead = left();
  if (ahead <= keep) {
    return 0;
  }
  offset_ += ahead - keep;
  partial_.clear();
  returned_ = false;
  return ahead - keep;
}

std::vector<std::string>
last_lines(const os::Path& path, size_t count, uint64_t offset) {
  constexpr uint64_t kMost = 1 << 14;
  Tail tail(path, offset);
  const bool cut = tail.skip(kMost) > 0;
  std::vector<std::string> lines = tail.read(kMost);
  if (cut && !lines.empty()) {
    lines.erase(lines.begin());  // began in the middle
  }
  std::ranges::move(tail.rest(), std::back_inserter(lines));
  while (!lines.empty() && lines.back().empty()) {
    lines.pop_back();
  }
  if (lines.size() > count) {
    lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(count));
  }
  return lines;
}

}  // namespace lockstep::launch
