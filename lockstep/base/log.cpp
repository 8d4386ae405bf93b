#include "lockstep/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace lockstep {
namespace {

spdlog::logger& logger() {
  static auto instance = [] {
    auto made = spdlog::stderr_color_mt("lockstep");
    made->set_pattern("%H:%M:%S %^%l%$ %v");
    return made;
  }();
  return *instance;
}

// The place helps only who debugs: shown from -v on.
void write(
    spdlog::level::level_enum level,
    const std::string& message,
    std::source_location where) {
  if (logger().level() <= spdlog::level::debug) {
    std::string_view file = where.file_name();
    if (auto slash = file.rfind('/'); slash != std::string_view::npos) {
      file = file.substr(slash + 1);
    }
    logger().log(level, "{}:{} {}", file, where.line(), message);
  } else {
    logger().log(level, "{}", message);
  }
}

}  // namespace

void init_log(const LogOptions& options) {
  spdlog::level::level_enum level = spdlog::level::info;
  switch (options.level) {
    case LogLevel::kDebug:
      level = spdlog::level::debug;
      break;
    case LogLevel::kInfo:
      level = spdlog::level::info;
      break;
    case LogLevel::kWarning:
      level = spdlog::level::warn;
      break;
    case LogLevel::kError:
      level = spdlog::level::err;
      break;
  }
  logger().set_level(level);
  logger().flush_on(spdlog::level::debug);
  if (options.rank >= 0) {
    logger().set_pattern(fmt::format("%H:%M:%S %^%l%$ r{} %v", options.rank));
  }
}

void log_debug(const std::string& message, std::source_location where) {
  write(spdlog::level::debug, message, where);
}
void log_info(const std::string& message, std::source_location where) {
  write(spdlog::level::info, message, where);
}
void log_warning(const std::string& message, std::source_location where) {
  write(spdlog::level::warn, message, where);
}
void log_error(const std::string& message, std::source_location where) {
  write(spdlog::level::err, message, where);
}

std::string version() {
  return LOCKSTEP_VERSION;
}

}  // namespace lockstep
