#include "lockstep/launch/console_file.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/log.h"

namespace lockstep::launch {

using nlohmann::json;

os::Path console_path(const record::RunDirectory& run) {
  return run.path() / "console.jsonl";
}

Result<std::unique_ptr<ConsoleFile>> ConsoleFile::open(
    const record::RunDirectory& run,
    const os::Clock& clock) {
  LOCKSTEP_ASSIGN(
      std::unique_ptr<os::Appender> file,
      os::real_files().open_append(console_path(run)));
  return std::unique_ptr<ConsoleFile>(new ConsoleFile(std::move(file), clock));
}

void ConsoleFile::write(const char* kind, const std::string& text) {
  const json line = {
      {"time", clock_.unix_seconds()}, {"kind", kind}, {"text", text}};
  const auto written = file_->append(
      line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
  if (!written) {
    log_warning(written.error().to_string());
  }
}

void ConsoleReader::show(
    Console& console,
    const std::string& there,
    const std::string& here) {
  constexpr size_t kBlock = 1 << 18;
  for (const std::string& text : tail_.read(kBlock)) {
    const json line = json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("text") ||
        !line["text"].is_string()) {
      continue;
    }
    auto said = line["text"].get<std::string>();
    for (size_t at = 0;
         !there.empty() && (at = said.find(there, at)) != std::string::npos;
         at += here.size()) {
      said.replace(at, there.size(), here);
    }
    const auto kind = line.find("kind");
    if (kind != line.end() && *kind == "alarm") {
      console.alarm(said);
    } else {
      console.say(said);
    }
  }
}

}  // namespace lockstep::launch
