#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>

#include "lockstep/commands/command.h"

namespace lockstep::commands {
namespace {

// A verb with the words that may follow it, read from the command tree.
struct Verb {
  std::string path;  // "run", "data get"
  std::string meaning;
  std::vector<std::string> options;
  std::vector<std::string> verbs;  // below it
};

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
    for (const std::string& name : option->get_snames()) {
      names.push_back("-" + name);
    }
  }
  return names;
}

void collect(
    const CLI::App& app,
    const std::string& path,
    std::vector<Verb>& verbs) {
  Verb verb{path, app.get_description(), option_names(app), {}};
  if (!path.empty()) {
    for (const std::string& name : option_names(*app.get_parent())) {
      if (std::ranges::find(verb.options, name) == verb.options.end()) {
        verb.options.push_back(name);
      }
    }
  }
  for (const CLI::App* child : app.get_subcommands(
           [](const CLI::App* one) { return !one->get_group().empty(); })) {
    verb.verbs.push_back(child->get_name());
  }
  verbs.push_back(verb);
  for (const CLI::App* child : app.get_subcommands(
           [](const CLI::App* one) { return !one->get_group().empty(); })) {
    collect(
        *child,
        path.empty() ? child->get_name() : path + " " + child->get_name(),
        verbs);
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

// The same table serves bash and zsh.
std::string case_table(const std::vector<Verb>& verbs) {
  std::string text;
  for (const Verb& verb : verbs) {
    text += fmt::format(
        "    '{}') words='{} {}' ;;\n",
        verb.path,
        joined(verb.verbs),
        joined(verb.options));
  }
  return text;
}

std::string verb_pattern(const std::vector<Verb>& verbs) {
  std::string text;
  for (const Verb& verb : verbs) {
    if (!verb.path.empty()) {
      text += fmt::format("{}'{}'", text.empty() ? "" : "|", verb.path);
    }
  }
  return text;
}

std::string bash_text(const std::vector<Verb>& verbs) {
  return fmt::format(
      R"(# bash completion of lockstep; 'source <(lockstep completion bash)'
_lockstep() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" path='' words='' word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "${{path:+$path }}$word" in
      {0}) path="${{path:+$path }}$word" ;;
    esac
  done
  case "$path" in
{1}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ "$current" != -* && -n "$path" ]]; then
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _lockstep lockstep
)",
      verb_pattern(verbs),
      case_table(verbs));
}

std::string zsh_text(const std::vector<Verb>& verbs) {
  return fmt::format(
      R"(#compdef lockstep
# zsh completion of lockstep; put it into a folder of $fpath as _lockstep
_lockstep() {{
  local place='' list='' word
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "${{place:+$place }}$word" in
      {0}) place="${{place:+$place }}$word" ;;
    esac
  done
  case "$place" in
{1}  esac
  compadd -- ${{=list}}
  [[ -n "$place" ]] && _files
}}
if [[ "$funcstack[1]" == _lockstep ]]; then
  _lockstep "$@"
else
  compdef _lockstep lockstep
fi
)",
      verb_pattern(verbs),
      [&] {
        std::string text = case_table(verbs);
        size_t at = 0;
        while ((at = text.find(") words=", at)) != std::string::npos) {
          text.replace(at, 8, ") list=");
        }
        return text;
      }());
}

std::string fish_text(const std::vector<Verb>& verbs) {
  std::string text =
      "# fish completion of lockstep; 'lockstep completion fish | source'\n";
  for (const Verb& verb : verbs) {
    std::string condition = "__fish_use_subcommand";
    if (!verb.path.empty()) {
      condition = "";
      size_t start = 0;
      while (start <= verb.path.size()) {
        const size_t end =
            std::min(verb.path.find(' ', start), verb.path.size());
        condition += fmt::format(
            "{}__fish_seen_subcommand_from {}",
            start == 0 ? "" : "; and ",
            verb.path.substr(start, end - start));
        start = end + 1;
      }
    }
    for (const std::string& below : verb.verbs) {
      text += fmt::format(
          "complete -c lockstep -n '{}' -a '{}'\n", condition, below);
    }
    for (const std::string& option : verb.options) {
      const bool is_long = option.starts_with("--");
      text += fmt::format(
          "complete -c lockstep -n '{}' -{} '{}'\n",
          condition,
          is_long ? "l" : "s",
          option.substr(is_long ? 2 : 1));
    }
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("completion", "shell completion, to be sourced");
  verb->footer("Example: source <(lockstep completion bash)");
  auto shell = std::make_shared<std::string>();
  verb->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL");
  set_action(*verb, context, [&app, shell]() -> Result<int> {
    std::vector<Verb> verbs;
    collect(app, "", verbs);
    const std::string text = *shell == "bash"  ? bash_text(verbs)
                             : *shell == "zsh" ? zsh_text(verbs)
                                               : fish_text(verbs);
    std::fputs(text.c_str(), stdout);
    return 0;
  });
}

}  // namespace lockstep::commands
