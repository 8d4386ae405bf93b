#include "lockstep/reach/ignore.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::reach {
namespace {

// Whether `c` is in the class that begins after "[" at the start of
// `pattern`; on return `length` is the class with its "]". A class without an
// end is none: length 0.
bool in_class(std::string_view pattern, char c, size_t& length) {
  size_t at = 0;
  length = 0;
  bool inverted = false;
  if (at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^')) {
    inverted = true;
    ++at;
  }
  bool found = false;
  const size_t first = at;
  while (at < pattern.size() && (pattern[at] != ']' || at == first)) {
    if (pattern[at] == '\\' && at + 1 < pattern.size()) {
      ++at;
    }
    const char low = pattern[at++];
    char high = low;
    if (at + 1 < pattern.size() && pattern[at] == '-' &&
        pattern[at + 1] != ']') {
      ++at;
      if (pattern[at] == '\\' && at + 1 < pattern.size()) {
        ++at;
      }
      high = pattern[at++];
    }
    found = found || (low <= c && c <= high);
  }
  if (at >= pattern.size()) {
    return false;
  }
  length = at + 1;
  return found != inverted;
}

bool match(std::string_view pattern, std::string_view path, bool at_start);

// "**" between slashes (or at an end) crosses folders.
bool match_folders(std::string_view rest, std::string_view path) {
  if (rest.empty()) {
    return true;  // "a/**": everything below a
  }
  rest.remove_prefix(1);  // "/"
  while (true) {
    if (match(rest, path, true)) {
      return true;
    }
    const size_t slash = path.find('/');
    if (slash == std::string_view::npos) {
      return false;
    }
    path.remove_prefix(slash + 1);
  }
}

// `at_start`: the pattern stands at the start of a part of the path.
bool match(std::string_view pattern, std::string_view path, bool at_start) {
  while (!pattern.empty()) {
    if (at_start && pattern.starts_with("**") &&
        (pattern.size() == 2 || pattern[2] == '/')) {
      return match_folders(pattern.substr(2), path);
    }
    const char kind = pattern.front();
    if (kind == '*') {
      while (pattern.starts_with('*')) {
        pattern.remove_prefix(1);
      }
      while (true) {
        if (match(pattern, path, false)) {
          return true;
        }
        if (path.empty() || path.front() == '/') {
          return false;
        }
        path.remove_prefix(1);
      }
    }
    if (path.empty()) {
      return false;
    }
    const char c = path.front();
    size_t used = 1;
    if (kind == '[' && c != '/') {
      size_t length = 0;
      const bool inside = in_class(pattern.substr(1), c, length);
      if (length > 0 ? !inside : c != '[') {
        return false;
      }
      used += length;
    } else if (kind == '?') {
      if (c == '/') {
        return false;
      }
    } else {
      if (kind == '\\' && pattern.size() > 1) {
        pattern.remove_prefix(1);
      }
      if (pattern.front() != c) {
        return false;
      }
    }
    at_start = c == '/';
    pattern.remove_prefix(used);
    path.remove_prefix(1);
  }
  return path.empty();
}

// Spaces at the end do not count, unless one is escaped.
std::string_view without_end(std::string_view line) {
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  while (line.ends_with(' ') &&
         !(line.size() > 1 && line[line.size() - 2] == '\\')) {
    line.remove_suffix(1);
  }
  return line;
}

}  // namespace

bool matches_glob(std::string_view pattern, std::string_view path) {
  return match(pattern, path, true);
}

void IgnoreRules::add(std::string_view text, std::string_view folder) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = without_end(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') {
      continue;
    }
    Rule rule;
    if (line.front() == '!') {
      rule.negated = true;
      line.remove_prefix(1);
    }
    if (line.ends_with('/')) {
      rule.folders_only = true;
      line.remove_suffix(1);
    }
    rule.anchored = line.find('/') != std::string_view::npos;
    if (line.starts_with('/')) {
      line.remove_prefix(1);
    }
    if (line.empty()) {
      continue;
    }
    rule.pattern = line;
    rule.folder = folder.empty() ? "" : std::string(folder) + "/";
    rules_.push_back(std::move(rule));
  }
}

bool IgnoreRules::ignores(std::string_view path, bool is_folder) const {
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) {
    if (!path.starts_with(rule->folder) || (rule->folders_only && !is_folder)) {
      continue;
    }
    std::string_view below = path.substr(rule->folder.size());
    if (!rule->anchored) {
      below = below.substr(below.rfind('/') + 1);
    }
    if (matches_glob(rule->pattern, below)) {
      return !rule->negated;
    }
  }
  return false;
}

}  // namespace lockstep::reach
