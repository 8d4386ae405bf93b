#include "lockstep/launch/exit_order.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep::launch {
namespace {

// A child that ends when it is told to.
struct Child {
  int pid = 0;
  int order = -1;
};

Child start() {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  Child child;
  child.pid = ::fork();
  if (child.pid == 0) {
    ::close(pipe[1]);
    char byte = 0;
    ::_exit(::read(pipe[0], &byte, 1) == 1 ? 0 : 1);
  }
  ::close(pipe[0]);
  child.order = pipe[1];
  return child;
}

// And waits until it has, without taking it.
void end(const Child& child) {
  ASSERT_EQ(::write(child.order, "x", 1), 1);
  siginfo_t info{};
  ASSERT_EQ(
      ::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOWAIT),
      0);
}

void bury(const std::vector<Child>& children) {
  for (const Child& child : children) {
    int status = 0;
    EXPECT_EQ(::waitpid(child.pid, &status, 0), child.pid);
    ::close(child.order);
  }
}

TEST(ExitOrderTest, IsThatOfTheEndsAndNotOfTheStarts) {
  ExitOrder order;
  std::vector<Child> children;
  for (int i = 0; i < 12; ++i) {
    children.push_back(start());
    order.watch(children.back().pid);
  }
  EXPECT_TRUE(order.take().empty());
  std::vector<int> ended;
  for (const size_t i : {7, 2, 11, 0, 9, 1}) {
    end(children[i]);
    ended.push_back(children[i].pid);
  }
  EXPECT_EQ(order.take(), ended);
  EXPECT_TRUE(order.take().empty()) << "each is told once";
  ended.clear();
  for (const size_t i : {10, 8, 6, 5, 4, 3}) {
    end(children[i]);
    ended.push_back(children[i].pid);
  }
  EXPECT_EQ(order.take(), ended);
  bury(children);
}

TEST(ExitOrderTest, OneThatEndedBeforeItWasWatchedIsSeen) {
  ExitOrder order;
  const Child child = start();
  end(child);
  order.watch(child.pid);
  EXPECT_EQ(order.take(), std::vector{child.pid});
  bury({child});
}

TEST(ExitOrderTest, NobodyIsNotSeen) {
  ExitOrder order;
  order.watch(999'999'999);
  EXPECT_TRUE(order.take().empty());
}

}  // namespace
}  // namespace lockstep::launch
