#pragma once

// What stays behind when a folder travels: the rules of .lockstepignore, in
// the syntax of .gitignore. Later rules win; "!" takes back; a final "/" means
// folders only; a "/" elsewhere ties a rule to the folder of its file; "*" and
// "?" stop at "/", "**" does not; "[a-z]" is a class. As with git, nothing
// below a folder that stays behind can be taken back: the walk does not go
// there. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::reach {

class IgnoreRules {
 public:
  // The text of an ignore file that lies in `folder` (relative to the root,
  // "" for the root itself).
  void add(std::string_view text, std::string_view folder = "");
  // `path` is relative to the root, with "/" between its parts.
  bool ignores(std::string_view path, bool is_folder) const;

 private:
  struct Rule {
    std::string folder;  // of its file: "" or "a/b/"
    std::string pattern;
    bool negated = false;
    bool folders_only = false;
    bool anchored = false;
  };
  std::vector<Rule> rules_;
};

// Whether a path matches a pattern as a whole; exposed for its tests.
bool matches_glob(std::string_view pattern, std::string_view path);

}  // namespace lockstep::reach
