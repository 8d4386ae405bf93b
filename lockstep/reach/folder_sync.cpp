// sync_folder of transfer.h: what is here, what is there, what must travel.

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <set>

#include "lockstep/reach/content.h"
#include "lockstep/reach/ignore.h"
#include "lockstep/reach/message.h"
#include "lockstep/reach/sender.h"
#include "lockstep/reach/transfer.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr Duration kPatience = std::chrono::minutes(2);
constexpr const char* kIgnoreFile = ".lockstepignore";
constexpr int kAttempts = 3;

// What lies in the folder, by name, as the far end records it.
struct Tree {
  std::map<std::string, json> entries;
  std::map<std::string, os::Path> sources;  // of files, by hash
};

class Walk {
 public:
  Walk(const os::Path& root, const std::vector<os::Path>& leave)
      : root_(root), hashes_(lockstep_home() / "hashes") {
    std::error_code error;
    for (const os::Path& path : leave) {
      leave_.insert(fs::weakly_canonical(path, error));
    }
    // Our own cache changes while we look, and is not the user's work.
    leave_.insert(fs::weakly_canonical(lockstep_home(), error));
  }

  Result<Tree> run() {
    LOCKSTEP_TRY(enter(""));
    hashes_.save();
    return std::move(tree_);
  }
  // That file of the root alone.
  Result<Tree> run_one(const std::string& name) {
    LOCKSTEP_TRY(look(name));
    hashes_.save();
    return std::move(tree_);
  }

 private:
  Result<void> enter(const std::string& folder) {
    const os::Path here = root_ / folder;
    LOCKSTEP_ASSIGN(const auto names, os::real_files().list(here));
    if (std::ranges::binary_search(names, kIgnoreFile)) {
      LOCKSTEP_ASSIGN(
          const std::string text, os::real_files().read(here / kIgnoreFile));
      rules_.add(text, folder);
    }
    for (const std::string& name : names) {
      LOCKSTEP_TRY(look(folder.empty() ? name : folder + "/" + name));
    }
    return {};
  }

  Result<void> look(const std::string& name) {
    const os::Path path = root_ / name;
    struct stat facts{};
    if (::lstat(path.c_str(), &facts) != 0) {
      return {};  // gone since it was listed
    }
    const bool is_folder = S_ISDIR(facts.st_mode);
    if (path.filename() == ".git" || rules_.ignores(name, is_folder)) {
      return {};
    }
    if (is_folder) {
      if (leave_.contains(path)) {
        return {};
      }
      tree_.entries[name] = {{"folder", true}};
      return enter(name);
    }
    if (S_ISLNK(facts.st_mode)) {
      std::error_code error;
      tree_.entries[name] = {{"link", fs::read_symlink(path, error).string()}};
      return {};
    }
    if (!S_ISREG(facts.st_mode)) {
      return {};
    }
    const auto hashed = hashes_.hash(path);
    if (!hashed && hashed.error().code() == ErrorCode::kNotFound) {
      return {};  // gone since it was listed
    }
    LOCKSTEP_ASSIGN(const std::string hash, hashed);
    constexpr int64_t kSecond = 1'000'000'000;
    tree_.entries[name] = {
        {"hash", hash},
        {"size", static_cast<uint64_t>(facts.st_size)},
        {"mode", (facts.st_mode & 0100) != 0 ? 0755U : 0644U},
        {"time",
         static_cast<int64_t>(facts.st_mtim.tv_sec) * kSecond +
             facts.st_mtim.tv_nsec}};
    tree_.sources[hash] = path;
    return {};
  }

  os::Path root_;
  HashMemory hashes_;
  IgnoreRules rules_;
  std::set<os::Path> leave_;
  Tree tree_;
};

// Stays the same for the same folder of the same user, wherever it is sent.
std::string folder_id(const os::Path& folder) {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  std::string name = folder.filename().string();
  std::ranges::replace_if(
      name,
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-'; },
      '_');
  return fmt::format(
      "{}-{}",
      name.substr(0, 40),
      sha256_of(fmt::format("{}\n{}\n{}", host, ::getuid(), folder.string()))
          .substr(0, 12));
}

// The time of a file is carried over but does not make it another.
bool is_same(const json& here, const json& there) {
  for (const char* key : {"hash", "mode", "link", "folder"}) {
    if (here.contains(key) != there.contains(key) ||
        (here.contains(key) && here[key] != there[key])) {
      return false;
    }
  }
  return true;
}

std::string digest_of(const Tree& tree) {
  Sha256 digest;
  for (const auto& [name, facts] : tree.entries) {
    digest.update(
        fmt::format(
            "{}\n{} {} {}\n",
            name,
            facts.value("hash", ""),
            facts.value("mode", 0U),
            facts.value("link", "")));
  }
  return digest.finish();
}

// Makes the folder `id` there what the tree is.
Result<os::Path> sync_tree(
    Session& session,
    const Tree& tree,
    const std::string& id,
    Sent& sent) {
  LOCKSTEP_ASSIGN(
      const json there,
      session.call("manifest", {{"id", id}}, os::Deadline::after(kPatience)));
  LOCKSTEP_ASSIGN(const std::string path, text_field(there, "path"));
  const json known = there.value("files", json::object());
  json changed = json::object();
  std::map<std::string, Blob> blobs;
  for (const auto& [name, facts] : tree.entries) {
    const auto found = known.find(name);
    if (found != known.end() && is_same(facts, *found)) {
      continue;
    }
    changed[name] = facts;
    if (facts.contains("hash")) {
      const auto hash = facts["hash"].get<std::string>();
      blobs[hash] = {
          tree.sources.at(hash), hash, facts["size"].get<uint64_t>()};
      ++sent.files;
      sent.bytes += facts["size"].get<uint64_t>();
    }
  }
  json removed = json::array();
  for (const auto& [name, facts] : known.items()) {
    if (!tree.entries.contains(name)) {
      removed.push_back(name);
    }
  }
  sent.removed += removed.size();
  const std::string digest = digest_of(tree);
  if (changed.empty() && removed.empty() &&
      there.value("digest", "") == digest) {
    return os::Path(path);
  }
  // Deeper names first, so that folders are empty when their turn comes.
  std::ranges::reverse(removed);
  std::vector<Blob> list;
  for (auto& [hash, blob] : blobs) {
    list.push_back(std::move(blob));
  }
  LOCKSTEP_TRY(check_room(session, list, there.value("free", uint64_t{0})));
  LOCKSTEP_TRY(send_blobs(session, list, false));
  LOCKSTEP_TRY(session.call(
      "sync",
      {{"id", id}, {"digest", digest}, {"files", changed}, {"remove", removed}},
      os::Deadline::after(kPatience)));
  return os::Path(path);
}

// A file that is being written may change between look and send: looks again.
Result<os::Path> sync_patiently(
    Session& session,
    const os::Path& source,
    const std::string& id,
    const std::function<Result<Tree>()>& look,
    Sent* sent) {
  for (int attempt = 1;; ++attempt) {
    Sent so_far;
    auto tree = look();
    auto path = tree ? sync_tree(session, *tree, id, so_far)
                     : Result<os::Path>(tree.error());
    if (path || attempt == kAttempts ||
        path.error().code() != ErrorCode::kAborted) {
      if (sent != nullptr) {
        *sent = so_far;
      }
      return std::move(path).with_context(
          fmt::format("sending {}", source.string()));
    }
  }
}

Result<os::Path> whole_path(const os::Path& path) {
  std::error_code error;
  os::Path whole = fs::canonical(path, error);
  if (error) {
    return os_error(
        fmt::format("cannot read {}", path.string()), error.value());
  }
  return whole;
}

}  // namespace

Result<os::Path> sync_folder(
    Session& session,
    const os::Path& folder,
    Sent* sent,
    const std::vector<os::Path>& leave) {
  LOCKSTEP_ASSIGN(const os::Path root, whole_path(folder));
  return sync_patiently(
      session,
      folder,
      folder_id(root),
      [&] { return Walk(root, leave).run(); },
      sent);
}

Result<os::Path> sync_file(Session& session, const os::Path& file, Sent* sent) {
  LOCKSTEP_ASSIGN(const os::Path whole, whole_path(file));
  const std::string name = whole.filename().string();
  LOCKSTEP_ASSIGN(
      const os::Path folder,
      sync_patiently(
          session,
          file,
          folder_id(whole),
          [&] { return Walk(whole.parent_path(), {}).run_one(name); },
          sent));
  return folder / name;
}

os::Path placed_folder_of(const os::Path& path) {
  const os::Path folders = lockstep_home() / "workdirs";
  const os::Path below = path.lexically_relative(folders);
  return below.empty() || *below.begin() == ".." || *below.begin() == "."
             ? os::Path()
             : folders / *below.begin();
}

Result<os::Path>
pass_on_folder(Session& session, const os::Path& folder, Sent* sent) {
  if (folder.empty() || placed_folder_of(folder) != folder) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("{} was never sent to this machine", folder.string()));
  }
  LOCKSTEP_ASSIGN(const os::Path root, whole_path(folder));
  return sync_patiently(
      session,
      folder,
      folder.filename().string(),
      [&] { return Walk(root, {}).run(); },
      sent);
}

}  // namespace lockstep::reach
