#pragma once

// The human log, on stderr: level, rank where there is one, message. Callers
// format with fmt and pass a string, so that spdlog stays inside log.cpp.
// Thread-safe after init_log; before it, lines go out at the default level.

#include <fmt/format.h>

#include <source_location>
#include <string>

namespace lockstep {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  int rank = -1;  // shown as "r3" when not negative
};

void init_log(const LogOptions& options);

void log_debug(
    const std::string& message,
    std::source_location where = std::source_location::current());
void log_info(
    const std::string& message,
    std::source_location where = std::source_location::current());
void log_warning(
    const std::string& message,
    std::source_location where = std::source_location::current());
void log_error(
    const std::string& message,
    std::source_location where = std::source_location::current());

// "0.1.0": the version of lockstep, for --version and the events.
std::string version();

}  // namespace lockstep
