#include "lockstep/reach/transfer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "lockstep/reach/content.h"
#include "lockstep/reach/loader.h"
#include "lockstep/reach/message.h"
#include "lockstep/reach/sender.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// To look at what is there may mean to hash it.
constexpr Duration kLook = std::chrono::minutes(10);

Result<ProgramSet::File>
describe(const os::Path& source, std::string name, HashMemory& hashes) {
  ProgramSet::File file;
  std::error_code error;
  file.source = fs::canonical(source, error);
  if (error) {
    return os_error(
        fmt::format("cannot read {}", source.string()), error.value());
  }
  file.name = std::move(name);
  LOCKSTEP_ASSIGN(file.hash, hashes.hash(file.source));
  LOCKSTEP_ASSIGN(const Bytes size, os::real_files().size(file.source));
  file.size = size.count;
  file.executable = ::access(file.source.c_str(), X_OK) == 0;
  return file;
}

json to_request(const ProgramSet& set) {
  json files = json::array();
  for (const ProgramSet::File& file : set.files) {
    files.push_back(
        {{"name", file.name},
         {"hash", file.hash},
         {"size", file.size},
         {"at", file.source.string()}});
  }
  return {
      {"set", set.id}, {"program", set.files.front().name}, {"files", files}};
}

}  // namespace

Result<ProgramSet> program_set(const os::Path& program, const os::Path& cache) {
  HashMemory hashes(cache / "hashes");
  ProgramSet set;
  LOCKSTEP_ASSIGN(
      ProgramSet::File first,
      describe(program, "bin/" + program.filename().string(), hashes));
  set.files.push_back(std::move(first));
  LOCKSTEP_ASSIGN(const auto libraries, libraries_of(program));
  for (const Library& library : libraries) {
    LOCKSTEP_ASSIGN(
        ProgramSet::File file,
        describe(library.path, "lib/" + library.name, hashes));
    set.files.push_back(std::move(file));
  }
  hashes.save();
  std::string contents;
  for (const ProgramSet::File& file : set.files) {
    contents += fmt::format("{} {}\n", file.hash, file.name);
  }
  set.id = sha256_of(contents);
  return set;
}

Result<ProgramSet> placed_set(const os::Path& program) {
  const os::Path sets = lockstep_home() / "sets";
  const os::Path below = program.lexically_relative(sets);
  if (below.empty() || *below.begin() == "..") {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "{} is no program below {}", program.string(), sets.string()));
  }
  ProgramSet set;
  set.id = below.begin()->string();
  const os::Path folder = sets / set.id;
  HashMemory hashes(lockstep_home() / "hashes");
  // The program is the first: whoever makes the set anew goes by that.
  const auto add = [&](const std::string& name) -> Result<void> {
    LOCKSTEP_ASSIGN(
        ProgramSet::File file, describe(folder / name, name, hashes));
    set.files.push_back(std::move(file));
    return {};
  };
  LOCKSTEP_TRY(add("bin/" + program.filename().string()));
  if (os::real_files().exists(folder / "lib")) {
    LOCKSTEP_ASSIGN(const auto names, os::real_files().list(folder / "lib"));
    for (const std::string& name : names) {
      LOCKSTEP_TRY(add("lib/" + name));
    }
  }
  hashes.save();
  return set;
}

Result<os::Path>
send_program(Session& session, const ProgramSet& set, Sent* sent) {
  const json request = to_request(set);
  LOCKSTEP_ASSIGN(
      json answer, session.call("have", request, os::Deadline::after(kLook)));
  if (!answer.contains("path")) {
    std::set<std::string> missing;
    for (const json& hash : answer.value("missing", json::array())) {
      missing.insert(hash.get<std::string>());
    }
    std::vector<Blob> blobs;
    for (const ProgramSet::File& file : set.files) {
      if (missing.erase(file.hash) > 0) {
        blobs.push_back({file.source, file.hash, file.size});
      }
    }
    LOCKSTEP_TRY(check_room(session, blobs, answer.value("free", uint64_t{0})));
    LOCKSTEP_TRY(send_blobs(session, blobs, true));
    if (sent != nullptr) {
      sent->files += blobs.size();
      for (const Blob& blob : blobs) {
        sent->bytes += blob.size;
      }
    }
    LOCKSTEP_ASSIGN(
        answer, session.call("commit", request, os::Deadline::after(kLook)));
  }
  LOCKSTEP_ASSIGN(const std::string path, text_field(answer, "path"));
  return os::Path(path);
}

Result<void> run_setup(
    Session& session,
    const os::Path& folder,
    const std::string& command,
    std::string& log,
    os::Deadline deadline) {
  const auto patience =
      std::chrono::ceil<std::chrono::seconds>(deadline.left());
  // The far end gives up first, so that its words and not a broken session
  // are what the user sees.
  const auto late = os::Deadline::after(patience + std::chrono::seconds(10));
  LOCKSTEP_ASSIGN(
      const json answer,
      session.call(
          "setup",
          {{"folder", folder.string()},
           {"command", command},
           {"patience", static_cast<uint64_t>(patience.count())}},
          late));
  LOCKSTEP_ASSIGN(const std::string output, bytes_field(answer, "output"));
  log += output;
  return {};
}

}  // namespace lockstep::reach
