#pragma once

// What may be shown of a job with secrets where redact() of job.h does not
// find a value as it stands: in words that are quoted, and in events, whose
// texts JSON escapes. Pure values.

#include <string>
#include <vector>

#include "lockstep/launch/job.h"
#include "lockstep/wire/event.h"

namespace lockstep::launch {

// Each word by itself, before it is quoted.
std::vector<std::string> redact(const Job& job, std::vector<std::string> words);
// Words of a command as one line for a shell.
std::string shown_line(const Job& job, const std::vector<std::string>& words);

// Masks what ranks and the control side write into events.jsonl.
class EventMask {
 public:
  // Masks nothing.
  EventMask() = default;
  explicit EventMask(const Job& job) : hidden_(secret_texts(job)) {}

  // True when `line` may hold a value: masked() must be written instead.
  bool may_concern(const std::string& line) const;
  // With all texts masked, and without fields that are not known. The kind
  // stays, by which an event is read.
  wire::Event masked(const wire::Event& event) const;

 private:
  std::string hide(std::string text) const;
  std::vector<std::string> hidden_;  // the longest first
};

}  // namespace lockstep::launch
