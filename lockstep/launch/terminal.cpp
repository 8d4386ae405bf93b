#include "lockstep/launch/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>

namespace lockstep::launch {
namespace {

constexpr size_t kMostQueued = 1 << 20;
constexpr const char* kEraseLine = "\r\x1b[K";

size_t columns(int descriptor) {
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  return 80;
}

// The first `count` characters: bytes would cut a letter in two.
std::string_view first_characters(std::string_view text, size_t count) {
  size_t end = 0;
  while (end < text.size()) {
    const bool begins =
        (static_cast<unsigned char>(text[end]) & 0xc0U) != 0x80U;
    if (begins && count-- == 0) {
      break;
    }
    ++end;
  }
  return text.substr(0, end);
}

}  // namespace

struct Terminal::State {
  int descriptor = 2;
  std::mutex mutex;
  std::condition_variable wake;
  std::string queue;
  std::string status;
  bool shown = false;  // a status line is on the screen
  bool status_changed = false;
  bool writing = false;
  bool closing = false;
  size_t written = 0;  // bytes, to see whether the reader moves

  bool has_work() const { return !queue.empty() || status_changed; }
  std::string take();
  void write_out(const std::string& text);
};

Terminal::Terminal(int descriptor)
    : is_terminal_(::isatty(descriptor) == 1),
      state_(std::make_shared<State>()) {
  state_->descriptor = descriptor;
}

Terminal::~Terminal() {
  status("");
  const bool done = drain();
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
  }
  state_->wake.notify_all();
  if (thread_.joinable()) {
    done ? thread_.join() : thread_.detach();
  }
}

void Terminal::start_thread() {
  if (!thread_.joinable()) {
    thread_ = std::thread([state = state_] { write_loop(state); });
  }
}

void Terminal::line(const std::string& text) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->shown) {
      state_->queue += kEraseLine;
      state_->shown = false;
      state_->status_changed = true;
    }
    state_->queue += text;
    state_->queue += '\n';
    start_thread();
  }
  state_->wake.notify_all();
}

void Terminal::status(const std::string& text) {
  if (!is_terminal_) {
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    if (text == state_->status) {
      return;
    }
    state_->status = text;
    state_->status_changed = true;
    start_thread();
  }
  state_->wake.notify_all();
}

size_t Terminal::room() const {
  const std::lock_guard lock(state_->mutex);
  const size_t used = state_->queue.size();
  return used >= kMostQueued ? 0 : kMostQueued - used;
}

bool Terminal::drain() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  while (thread_.joinable() && (state.has_work() || state.writing)) {
    const size_t before = state.written;
    const bool moved = state.wake.wait_for(lock, std::chrono::seconds(2), [&] {
      return !(state.has_work() || state.writing) || state.written != before;
    });
    if (!moved) {
      return false;
    }
  }
  return true;
}

// What to write next; the mutex is held.
std::string Terminal::State::take() {
  std::string text = std::move(queue);
  queue.clear();
  if (status_changed) {
    if (shown) {
      text += kEraseLine;
    }
    // One column less: a full line would wrap and could not be erased.
    text += first_characters(status, columns(descriptor) - 1);
    shown = !status.empty();
    status_changed = false;
  }
  return text;
}

void Terminal::State::write_out(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t size =
        ::write(descriptor, text.data() + done, text.size() - done);
    if (size < 0 && errno == EAGAIN) {
      pollfd ready{descriptor, POLLOUT, 0};
      ::poll(&ready, 1, 1000);
      continue;
    }
    if (size < 0 && errno != EINTR) {
      return;  // nobody reads any more
    }
    if (size > 0) {
      done += static_cast<size_t>(size);
      const std::lock_guard lock(mutex);
      written += static_cast<size_t>(size);
      wake.notify_all();
    }
  }
}

void Terminal::write_loop(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    state->wake.wait(lock, [&] { return state->closing || state->has_work(); });
    if (!state->has_work()) {
      return;
    }
    const std::string text = state->take();
    state->writing = true;
    lock.unlock();
    state->write_out(text);
    lock.lock();
    state->writing = false;
    state->wake.notify_all();
  }
}

}  // namespace lockstep::launch
