#include "lockstep/launch/exit_order.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::launch {

ExitOrder::ExitOrder() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

void ExitOrder::watch(int pid) {
  os::Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = pid;
  if (process &&
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, process.get(), &event) == 0) {
    processes_[pid] = std::move(process);
  }
}

std::vector<int> ExitOrder::take() {
  std::vector<int> ended;
  // One at a time: a list that is taken in parts starts again from its end.
  epoll_event event{};
  while (::epoll_wait(epoll_.get(), &event, 1, 0) == 1) {
    const auto process = processes_.find(event.data.fd);
    ended.push_back(process->first);
    // Not by closing it: a child that is being started may hold it too.
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, process->second.get(), nullptr);
    processes_.erase(process);
  }
  return ended;
}

}  // namespace lockstep::launch
