#pragma once

// A command's own messages, as they stand, on stderr (the log adds time and
// level). One that cannot be written is lost, where fmt::print would throw it
// at whoever still has something to end.

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace lockstep {

template <typename... Args>
void to_stderr(fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stderr);
}

}  // namespace lockstep
