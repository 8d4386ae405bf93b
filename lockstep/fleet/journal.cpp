#include "lockstep/fleet/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::fleet {
namespace {

using nlohmann::json;

// What stands in the file, as far as it is whole; `kept` is that part.
std::vector<JournalStep>
read_steps(const std::string& text, std::string* kept, int* records) {
  std::vector<JournalStep> steps;
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = text.find('\n', start);
    if (end == std::string::npos) {
      break;
    }
    const json one =
        json::parse(text.substr(start, end - start), nullptr, false);
    if (!one.is_object() || !one.contains("n")) {
      break;
    }
    const int number = one.value("n", 0);
    if (one.contains("of")) {
      const int of = one.value("of", 0);
      const auto step = std::ranges::find(steps, of, &JournalStep::number);
      if (step != steps.end()) {
        step->outcome = one.value("outcome", json());
      }
    } else {
      JournalStep step;
      step.number = number;
      step.step = one.value("step", "");
      step.subject = one.value("subject", "");
      step.time = one.value("time", 0.0);
      step.order = one.value("order", json());
      if (one.value("whole", false)) {
        step.outcome = json();
      }
      steps.push_back(std::move(step));
    }
    if (records != nullptr) {
      *records = std::max(*records, number);
    }
    start = end + 1;
  }
  if (kept != nullptr) {
    *kept = text.substr(0, start);
  }
  return steps;
}

}  // namespace

os::Path journal_file(const os::Path& folder) {
  return folder / "journal.jsonl";
}

Result<std::unique_ptr<Journal>> Journal::open(JournalOptions options) {
  os::FileSystem& files = os::real_files();
  LOCKSTEP_TRY(files.make_directories(options.folder));
  std::unique_ptr<Journal> journal(new Journal(std::move(options)));
  const os::Path folder = journal->options_.folder;
  const os::Path lock = folder / "lock";
  journal->lock_ =
      os::Descriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (journal->lock_.get() < 0) {
    return os_error(fmt::format("cannot open {}", lock.string()), errno);
  }
  if (::flock(journal->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error(
               ErrorCode::kUnavailable,
               fmt::format(
                   "another lockstep command works on the cluster '{}'",
                   folder.filename().string()))
        .with_fix("wait until it has ended, or end it");
  }
  const os::Path file = journal_file(folder);
  if (files.exists(file)) {
    LOCKSTEP_ASSIGN(const std::string text, files.read(file));
    std::string kept;
    journal->steps_ = read_steps(text, &kept, &journal->records_);
    if (kept.size() != text.size()) {
      LOCKSTEP_TRY(files.write_atomic(file, kept));
    }
  } else {
    // By rename, so that the folder knows the file after a crash too.
    LOCKSTEP_TRY(files.write_atomic(file, ""));
  }
  LOCKSTEP_ASSIGN(journal->file_, files.open_append(file));
  return journal;
}

Result<std::vector<JournalStep>> Journal::read(const os::Path& folder) {
  os::FileSystem& files = os::real_files();
  if (!files.exists(journal_file(folder))) {
    return std::vector<JournalStep>();
  }
  LOCKSTEP_ASSIGN(const std::string text, files.read(journal_file(folder)));
  return read_steps(text, nullptr, nullptr);
}

Result<void> Journal::write(const json& record) {
  if (dead_) {
    return Error(*dead_);
  }
  const int number = record["n"].get<int>();
  const std::string line =
      record.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  const auto put = [&]() -> Result<void> {
    if (options_.hook) {
      LOCKSTEP_TRY(options_.hook(number, JournalOptions::Moment::kBefore));
    }
    LOCKSTEP_TRY(file_->append(line).with_context("writing the journal"));
    LOCKSTEP_TRY(file_->sync().with_context("writing the journal"));
    if (options_.hook) {
      LOCKSTEP_TRY(options_.hook(number, JournalOptions::Moment::kAfter));
    }
    return {};
  };
  auto done = put();
  if (!done) {
    dead_ = done.error();
  }
  return done;
}

Result<int> Journal::begin(
    const std::string& step,
    const std::string& subject,
    json order) {
  const std::lock_guard lock(mutex_);
  JournalStep one;
  one.number = ++records_;
  one.step = step;
  one.subject = subject;
  one.time = options_.clock->unix_seconds();
  one.order = std::move(order);
  steps_.push_back(one);
  LOCKSTEP_TRY(write(
      {{"n", one.number},
       {"time", one.time},
       {"step", one.step},
       {"subject", one.subject},
       {"order", one.order}}));
  return one.number;
}

Result<void> Journal::done(int number, json outcome) {
  const std::lock_guard lock(mutex_);
  const auto step = std::ranges::find(steps_, number, &JournalStep::number);
  if (step == steps_.end()) {
    return Error(
        ErrorCode::kInternal, fmt::format("no step {} in the journal", number));
  }
  step->outcome = outcome;
  return write(
      {{"n", ++records_},
       {"time", options_.clock->unix_seconds()},
       {"of", number},
       {"outcome", std::move(outcome)}});
}

Result<void>
Journal::note(const std::string& step, const std::string& subject, json value) {
  const std::lock_guard lock(mutex_);
  JournalStep one;
  one.number = ++records_;
  one.step = step;
  one.subject = subject;
  one.time = options_.clock->unix_seconds();
  one.order = std::move(value);
  one.outcome = json();
  steps_.push_back(one);
  return write(
      {{"n", one.number},
       {"time", one.time},
       {"step", one.step},
       {"subject", one.subject},
       {"order", one.order},
       {"whole", true}});
}

std::vector<JournalStep> Journal::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

std::vector<JournalStep> Journal::unfinished() const {
  const std::lock_guard lock(mutex_);
  std::vector<JournalStep> open;
  std::ranges::copy_if(
      steps_, std::back_inserter(open), [](const JournalStep& one) {
        return !one.outcome.has_value();
      });
  return open;
}

std::optional<JournalStep> Journal::last(
    const std::string& step,
    const std::string& subject) const {
  const std::lock_guard lock(mutex_);
  for (size_t i = steps_.size(); i > 0; --i) {
    const JournalStep& one = steps_[i - 1];
    if (one.step == step && (subject.empty() || one.subject == subject)) {
      return one;
    }
  }
  return {};
}

Result<void> Journal::forget() {
  const std::lock_guard lock(mutex_);
  steps_.clear();
  records_ = 0;
  file_.reset();
  LOCKSTEP_TRY(
      os::real_files().write_atomic(journal_file(options_.folder), ""));
  LOCKSTEP_ASSIGN(
      file_, os::real_files().open_append(journal_file(options_.folder)));
  return {};
}

}  // namespace lockstep::fleet
