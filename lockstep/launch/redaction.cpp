#include "lockstep/launch/redaction.h"

#include "lockstep/launch/shell.h"

namespace lockstep::launch {

std::vector<std::string> redact(
    const Job& job,
    std::vector<std::string> words) {
  for (std::string& word : words) {
    word = redact(job, std::move(word));
  }
  return words;
}

std::string shown_line(const Job& job, const std::vector<std::string>& words) {
  // Once more: a value may stand in several words.
  return redact(job, shell_line(redact(job, words)));
}

}  // namespace lockstep::launch
